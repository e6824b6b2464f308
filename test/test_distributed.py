"""torch.distributed on the device: collectives as Gloo's on CPU tensors, what is built on them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from common import CUDA_KERNELS, HologramTestCase
from ranks import finish_ranks, run_ranks, start_ranks
from sim_device import build_sim
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

COLLECTIVES = Path(__file__).parent / "collectives.py"
# What init_process_group() is given, with which tensors of the device and those that it is compared
# with are served.
GROUPS = (
    {"nccl": ["nccl"], "one_for_each": ["cpu:gloo,cuda:nccl,hologram:hologram"]}
    if CUDA_KERNELS
    else {
        "default": [],
        "gloo": ["gloo"],
        "hologram": ["hologram"],
        "hologram_beside_gloo": ["cpu:gloo,hologram:hologram"],
    }
)
# An engine of one process group whose work and whose futures show what it did.
WITH_RESULTS = None if CUDA_KERNELS else "gloo"
# It waits for ever at the first collective, for which the ranks look for each other.
MEET = "dist.all_reduce(x)" if CUDA_KERNELS else ""
# NCCL's watchdog waits four times as long (a minute) for what other ranks write down, before it
# ends the process.
AT_ONCE = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}
START = """
    import warnings
    warnings.simplefilter("ignore")
    import datetime, faulthandler, os, sys, torch
    import torch.distributed as dist
    faulthandler.dump_traceback_later(100, exit=True)  # before ranks.py ends it
    D = "hologram"
    torch.backends.cudnn.allow_tf32 = False

    def start(backend=None, **options):
        dist.init_process_group(backend, **options)
        global rank, size
        rank, size = dist.get_rank(), dist.get_world_size()
        # The next group's ranks are not to find the store of this one's.
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
"""


class TestCollectives(HologramTestCase):
    """The same calls on tensors of the CPU and of the device, with what both say."""

    def same(self, *arguments: str, **env: str) -> None:
        first, second = run_ranks(COLLECTIVES, *arguments, env=env)
        rows = json.loads(first.stdout)
        if differ := [row for row in rows if row[3] != row[4]]:
            self.fail(f"{len(differ)} differ, first {differ[:3]}")
        self.assertEqual(json.loads(second.stdout), [])
        # NCCL has fewer operations: with torch 2.11 it has results for 455 rows.
        self.assertGreater(sum(not row[3][0] for row in rows), 450 if CUDA_KERNELS else 500)

    @parametrize("group", GROUPS)
    def test_in_a_group(self, group):
        self.same(*GROUPS[group])

    @parametrize("memory", ["device", "host"])
    def test_on_the_simulated_device(self, memory):
        self.same(
            HOLOGRAM_BACKENDS="sim,cpu",
            HOLOGRAM_BACKEND_PATH=build_sim(),
            HOLOGRAM_TEST_SIM_MEMORY=memory,
        )

    @parametrize("memory", ["device", "host"])
    def test_copies_are_counted(self, memory):
        run_ranks(
            START
            + """
    start()
    def pinned():
        return torch.hologram.host_memory_stats()["allocated_bytes.allocated"]

    x = torch.ones(1 << 20, device=D)
    torch.hologram.synchronize()
    before = pinned()
    dist.all_reduce(x)
    shared = os.environ["HOLOGRAM_TEST_SIM_MEMORY"] == "host"
    assert (pinned() == before) == shared, (before, pinned())
    report = torch.hologram.fallback_report()
    copied = report.operators("copied").get("c10d::allreduce_", 0)
    assert copied == (not shared), report

    # Who polls, and does not wait, has the results, too.
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    assert x[0].item() == 4, x
            """,
            env={
                "HOLOGRAM_BACKENDS": "sim,cpu",
                "HOLOGRAM_BACKEND_PATH": build_sim(),
                "HOLOGRAM_TEST_SIM_MEMORY": memory,
            },
        )

    def test_gathered_in_any_shape(self):
        """As NCCL does it, where Gloo wants rows like the input's."""
        run_ranks(
            START
            + """
    start("hologram")
    x = torch.full((2, 3), rank + 1.0, device=D)
    for shape in (12,), (2, 6), (2, 2, 3), (4, 3):
        out = torch.empty(shape, device=D)
        dist.all_gather_into_tensor(out, x)
        assert out.flatten().tolist() == [1.0] * 6 + [2.0] * 6, (shape, out)
    out = torch.empty(2, device=D)
    dist.all_gather_into_tensor(out, x[0, 0])
    assert out.tolist() == [1.0, 2.0]
    try:
        dist.all_gather_into_tensor(torch.empty(11, device=D), x)
    except (RuntimeError, ValueError) as error:
        assert "size" in str(error), error
    else:
        raise AssertionError("gathered in too little memory")
            """
        )

    @parametrize("group", [None, "gloo"])
    def test_meshes_of_a_group_that_is_bound_to_a_device(self, group):
        run_ranks(
            START
            + f"""
    from torch.distributed.device_mesh import init_device_mesh
    start({group!r}, device_id=torch.device(D, int(os.environ["RANK"])))
    mesh = init_device_mesh(D, (2, 1), mesh_dim_names=("a", "b"))
    x = torch.ones(3, device=D)
    dist.all_reduce(x, group=mesh["a"].get_group())
    dist.all_reduce(x, group=mesh["b"].get_group())
    assert x.tolist() == [2.0] * 3
    dist.barrier()
    dist.destroy_process_group()
            """
        )

    def test_checked_by_torch(self):
        """TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper of torch's around the backend."""
        run_ranks(
            START
            + """
    for name in None, "gloo", "hologram":
        start(name)
        x = torch.ones(3, device=D) * (rank + 1)
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 3, x
        dist.destroy_process_group()
            """,
            env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        )


class TestOrder(HologramTestCase):
    """A collective is in stream order, and has run what is recorded of its memory alone."""

    def test_what_is_recorded_comes_first(self):
        run_ranks(
            START
            + """
    start()
    x = torch.ones(1000, device=D)
    other = torch.ones(1000, device=D) + 1
    for step in range(20):
        x = x * 2 + rank
        work = dist.all_reduce(x, async_op=True)
        other = other + 1
        work.wait()
        x = x / 2
    expected = torch.ones(1000)
    for step in range(20):
        expected = (expected * 2 * 2 + 1) / 2
    assert torch.equal(x.cpu(), expected), (x, expected)
    assert other[0].item() == 22
            """
        )

    def test_other_memory_stays_recorded(self):
        run_ranks(
            START
            + """
    start()

    def flushes():
        stats = torch.hologram.stream_stats()
        return sum(count for name, count in stats.items() if name.startswith("flushes."))

    x, y = torch.ones(100, device=D), torch.ones(100, device=D)
    stream = torch.hologram.Stream()
    torch.hologram.synchronize()
    with torch.hologram.stream(stream):
        y = y + 1
    x = x + 1
    before = flushes()
    dist.all_reduce(x)
    assert flushes() - before == 1, (before, flushes())
    assert x[0].item() == 4 and y[0].item() == 2
    # Memory that has been waited for is nobody else's any more, as soon as the engine's thread has
    # let go of it: operations on it are recorded.
    import time
    for attempt in range(200):
        before = flushes()
        x.add_(1).mul_(2)
        if flushes() == before:
            break
        time.sleep(0.01)
    assert flushes() == before, attempt
            """
        )

    def test_results(self):
        run_ranks(
            START
            + f"""
    start({WITH_RESULTS!r})
    """
            + """
    x = torch.full((4,), rank + 1.0, device=D)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    seen = future.then(lambda done: done.value()[0] * 2)
    assert seen.wait().device.type == D and seen.wait().tolist() == [6.0] * 4
    work.wait()
    assert future.value()[0] is x or torch.equal(future.value()[0], x)
    assert work.result()[0].data_ptr() == x.data_ptr()
    assert work.get_future().value()[0].device.type == D
    received = torch.zeros(2, device=D)
    if rank == 0:
        dist.send(torch.ones(2, device=D), 1)
    else:
        any_rank = None if dist.get_backend() == "gloo" else 0
        assert dist.recv(received, any_rank) == 0 and received.tolist() == [1.0, 1.0]
    dist.barrier()
    if dist.get_backend() == "gloo":
        dist.monitored_barrier()
    group = dist.new_group([0, 1])
    things = [None, None]
    dist.all_gather_object(things, {"rank": rank, "x": x}, group=group)
    assert [its["rank"] for its in things] == [0, 1] and things[1]["x"].device.type == D
            """
        )

    def test_rank_r_is_on_device_r(self):
        run_ranks(
            START
            + """
    start()
    assert torch.hologram.current_device() == rank == torch.ones(1, device=D).device.index
    torch.hologram.set_device(0)
    dist.new_group([0, 1])
    assert torch.hologram.current_device() == 0
    dist.barrier()  # a rank may leave the new group before the other has found it
    dist.destroy_process_group()
    torch.hologram.set_device(1 - rank)
    if rank == 0:
        start()
        assert torch.hologram.current_device() == 1
    else:
        start()
            """
        )


class TestPrograms(HologramTestCase):
    """Random programs with collectives between operations have one result in every mode."""

    @parametrize("part", range(2))
    def test_with_collectives(self, part):
        count = int(os.environ.get("HOLOGRAM_TEST_RANK_PROGRAMS", "500")) // 2
        both = run_ranks(
            START
            + f"""
    start({WITH_RESULTS!r}, timeout=datetime.timedelta(seconds=60))
    import programs
    faulthandler.cancel_dump_traceback_later()
    totals = programs.check_seeds(range({part * count}, {(part + 1) * count}), of_ranks=True)
    print(totals.programs, totals.executed > 2 * totals.passes)
    dist.barrier()
            """,
            timeout=600,
        )
        for its in both:
            self.assertEqual(its.stdout, f"{count} True\n")


MODEL = (
    START
    + """
    start()
    N, STEPS = 4, 4

    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(D)

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        return torch.randn(N * size, 8, generator=generator).to(D)

    def train(model, parts=True, optimizer=None):
        optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
        losses = []
        for step in range(STEPS):
            x = batch(step).chunk(size)[rank] if parts else batch(step)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen = loss.detach().clone()
            if parts:
                dist.all_reduce(seen, dist.ReduceOp.AVG)
            losses.append(seen)
        return torch.stack(losses).cpu()

    alone = train(model(), parts=False)

    def check(losses):
        torch.testing.assert_close(losses, alone)
"""
)


class TestTraining(HologramTestCase):
    """Losses over two processes are those of the global batch in one."""

    def run_model(self, program: str) -> None:
        run_ranks(MODEL + program)

    def test_data_parallel(self):
        self.run_model(
            """
    from torch.nn.parallel import DistributedDataParallel as DDP
    check(train(DDP(model())))
    check(train(DDP(model(), gradient_as_bucket_view=True, static_graph=True)))
    check(train(DDP(model(), bucket_cap_mb=0.0001)))
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    hooked = DDP(model())
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    check(train(hooked))
            """
        )

    def test_gradients_that_are_not_synchronised(self):
        self.run_model(
            """
    from torch.nn.parallel import DistributedDataParallel as DDP
    ddp = DDP(model())
    x = batch(0).chunk(size)[rank]
    with ddp.no_sync():
        ddp(x[:2]).square().sum().backward()
    own = ddp.module[0].weight.grad.clone()
    seen = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(seen, own)
    assert not torch.equal(seen[0], seen[1])
    ddp(x[2:]).square().sum().backward()
    one = model()
    one(batch(0)).square().sum().div(size).backward()
    torch.testing.assert_close(ddp.module[0].weight.grad, one[0].weight.grad)
            """
        )

    def test_uneven_inputs(self):
        self.run_model(
            """
    from torch.nn.parallel import DistributedDataParallel as DDP
    ddp = DDP(model())
    with ddp.join():
        for step in range(2 + rank):
            ddp(batch(step)).square().sum().backward()
    dist.barrier()
            """
        )

    def test_fully_shard(self):
        self.run_model(
            """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    def sharded(**options):
        its = model()
        for part in its[0], its[2], its:
            fully_shard(part, **options)
        return its

    check(train(sharded()))
    check(train(sharded(reshard_after_forward=False)))
    offloaded = sharded(offload_policy=CPUOffloadPolicy())
    check(train(offloaded))
    assert {p.device.type for p in offloaded.parameters()} == {"cpu"}
    mixed = train(sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))
    torch.testing.assert_close(mixed.float(), alone, rtol=0.02, atol=0.02)  # of numbers with 8 bits
            """
        )

    def test_tensor_parallel(self):
        self.run_model(
            """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module)
    mesh = init_device_mesh(D, (size,))
    check(train(parallelize_module(
        model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), parts=False))
    x = torch.arange(16.0, device=D).view(4, 4)
    y = (distribute_tensor(x, mesh, [Shard(0)]) * 2 + 1).redistribute(mesh, [Shard(1)])
    assert torch.equal(y.full_tensor(), x * 2 + 1)
            """
        )

    def test_sequence_parallel(self):
        self.run_model(
            """
    import copy
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module)

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(8)
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x):
            return self.down(self.up(self.norm(x)).relu())

    torch.manual_seed(0)
    one = Part().to(D)
    several = parallelize_module(copy.deepcopy(one), init_device_mesh(D, (size,)), {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    })
    whole = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1)).to(D)
    wanted = one(whole)
    wanted.square().sum().backward()
    got = several(whole.chunk(size, 1)[rank].contiguous())
    torch.testing.assert_close(got, wanted)
    got.square().sum().backward()
    torch.testing.assert_close(several.up.weight.grad.full_tensor(), one.up.weight.grad)
            """
        )

    def test_pipeline(self):
        self.run_model(
            """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    for schedule in ScheduleGPipe, Schedule1F1B:
        torch.manual_seed(0)
        parts = [torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)]
        x, y = torch.randn(8, 8), torch.randn(8, 4)
        one = torch.nn.Sequential(*parts).to(D)
        wanted = torch.nn.functional.mse_loss(one(x.to(D)), y.to(D))
        wanted.backward()
        grad = one[rank].weight.grad.clone()
        one.zero_grad()
        stage = PipelineStage(one[rank], rank, size, torch.device(D, rank))
        steps = schedule(stage, 4, loss_fn=torch.nn.functional.mse_loss)
        losses = []
        if rank == 0:
            steps.step(x.to(D))
        else:
            steps.step(target=y.to(D), losses=losses)
            torch.testing.assert_close(torch.stack(losses).mean(), wanted)
        torch.testing.assert_close(one[rank].weight.grad, grad)
            """
        )

    def test_hooks_and_sparse_gradients(self):
        self.run_model(
            """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel as DDP
    grads = []
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    torch.cuda.is_available = lambda: True  # it asks, and then waits for the gradients' device
    for hook, its in (
        (default_hooks.allreduce_hook, None),
        (default_hooks.fp16_compress_hook, None),
        (powerSGD_hook.powerSGD_hook, state),
    ):
        torch.manual_seed(0)
        ddp = DDP(torch.nn.Linear(40, 20).to(D))
        ddp.register_comm_hook(its, hook)
        for step in range(4):
            ddp.zero_grad()
            ddp(torch.ones(2, 40, device=D) * (rank + 1)).sum().backward()
        grads.append(ddp.module.weight.grad)
    torch.testing.assert_close(grads[1], grads[0])
    torch.testing.assert_close(grads[2], grads[0], rtol=1e-3, atol=1e-3)  # of rank one, nearly
    embedding = torch.nn.Embedding(10, 3, sparse=True).to(D)
    ddp = DDP(embedding)
    own = ddp(torch.tensor([rank, 5], device=D)).sum()
    if torch.hologram.get_device_properties().backend == "cuda":
        try:
            own.backward()
        except RuntimeError as error:
            assert "NCCL does not support all_reduce with sparse tensors" in str(error), error
            sys.exit()
    own.backward()
    x = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (4,)).to(D)
    dist.all_reduce(x)
    assert x.device.type == D and x.to_dense().tolist() == [1.0, 1.0, 4.0, 0.0], x
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.to_dense().tolist() == [2.0, 2.0, 8.0, 0.0], x
    grad = embedding.weight.grad.coalesce()
    assert grad.device.type == D and grad.indices().tolist() == [[0, 1, 5]]
    assert grad.values()[:, 0].tolist() == [0.5, 0.5, 1.0]
            """
        )

    def test_collectives_in_a_backward_and_in_a_graph(self):
        self.run_model(
            """
    from torch.nn.parallel import DistributedDataParallel as DDP

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):  # in autograd's thread
            grad = grad * (rank + 1)
            dist.all_reduce(grad)
            return grad

    x = torch.ones(3, device=D, requires_grad=True)
    Summed.apply(x * 1).sum().backward()
    assert x.grad.tolist() == [3.0] * 3
    check(train(torch.compile(DDP(model()), backend="aot_eager")))
            """
        )

    def test_fully_sharded_of_old(self):
        self.run_model(
            """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    check(train(FSDP(model(), device_id=torch.device(D, rank))))
            """
        )

    def test_zero_redundancy(self):
        self.run_model(
            """
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel as DDP
    ddp = DDP(model())
    check(train(ddp, optimizer=ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.AdamW, lr=1e-2)))
            """
        )

    def test_checkpoints(self):
        self.run_model(
            """
    import tempfile
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    saved = fully_shard(model())
    train(saved)
    dcp.save(saved.state_dict(), checkpoint_id=folder[0] + "/now")
    dcp.async_save(saved.state_dict(), checkpoint_id=folder[0] + "/later").result()
    for name in "now", "later":
        loaded = fully_shard(model())
        state = loaded.state_dict()
        dcp.load(state, checkpoint_id=f"{folder[0]}/{name}")
        loaded.load_state_dict(state)
        for a, b in zip(saved.parameters(), loaded.parameters()):
            assert torch.equal(a.full_tensor(), b.full_tensor())
        # One process has all of it.
        whole = model().state_dict()
        dcp.load(whole, checkpoint_id=f"{folder[0]}/{name}")
        for a, b in zip(saved.parameters(), whole.values()):
            assert torch.equal(a.full_tensor(), b)
            """
        )

    def test_batch_norm_of_the_global_batch(self):
        self.run_model(
            """
    from torch.nn.parallel import DistributedDataParallel as DDP

    def normed():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Conv1d(2, 3, 2), torch.nn.BatchNorm1d(3), torch.nn.Conv1d(3, 2, 2)).to(D)

    one, several = normed(), torch.nn.SyncBatchNorm.convert_sync_batchnorm(normed())
    several = DDP(several)
    for step in range(3):
        whole = batch(step).view(-1, 2, 4)
        here = one(whole)
        here.square().mean().backward()
        part = whole.chunk(size)[rank]
        there = several(part)
        there.square().mean().backward()
        torch.testing.assert_close(there, here.chunk(size)[rank])
        for a, b in zip(one.parameters(), several.module.parameters()):
            torch.testing.assert_close(a.grad, b.grad)
    for a, b in zip(one.buffers(), several.module.buffers()):
        torch.testing.assert_close(a, b)
            """
        )


class TestFaults(HologramTestCase):
    def assertTold(self, rank, words=""):
        """By an exception; NCCL's watchdog says it on stderr, and ends the process."""
        if CUDA_KERNELS:
            self.assertEqual(rank.returncode, -signal.SIGABRT, rank.stderr)
            self.assertRegex(rank.stderr, "[Tt]imed? ?out")
        else:
            self.assertEqual(rank.returncode, 0, rank.stderr)
            self.assertRegex(rank.stdout, f"told:.*{words}")

    @parametrize(
        "wrong", ["torch.ones(3 + rank, device=D)", "torch.ones(3, device=D).to(kinds[rank])"]
    )
    def test_tensors_that_differ(self, wrong):
        """Gloo itself ends the process; torch's check, which is asked for, tells all ranks."""
        both = run_ranks(
            START
            + f"""
    start(timeout=datetime.timedelta(seconds=20))
    kinds = torch.float32, torch.float64
    try:
        dist.all_reduce(torch.{wrong})
    except RuntimeError as error:
        print("told:", error)
    x = torch.ones(2, device=D)
    dist.all_reduce(x)
    assert x.tolist() == [2.0, 2.0]
            """,
            env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        )
        for its in both:
            self.assertIn("told: Detected mismatch between collectives on ranks", its.stdout)

    def test_a_killed_rank(self):
        processes = start_ranks(
            START
            + """
    start(timeout=datetime.timedelta(seconds=20))
    x = torch.ones(3, device=D)
    dist.all_reduce(x)
    if rank == 1:
        os.kill(os.getpid(), 9)
    try:
        dist.all_reduce(x)
        x.tolist()
    except RuntimeError as error:
        print("told:", str(error).splitlines()[0], flush=True)
    assert (torch.ones(3, device=D) + 1).tolist() == [2.0] * 3
    os._exit(0)
            """,
            env=AT_ONCE,
        )
        start = time.monotonic()
        first, second = finish_ranks(processes, check=False)
        self.assertEqual(second.returncode, -signal.SIGKILL)
        self.assertTold(first)
        self.assertLess(time.monotonic() - start, 60)

    def test_a_rank_that_does_not_come(self):
        first, _ = run_ranks(
            START
            + """
    import time
    start(timeout=datetime.timedelta(seconds=2))
    x = torch.ones(3, device=D) + 1
    MEET
    if rank == 1:
        time.sleep(8)
        os._exit(0)
    try:
        dist.all_reduce(x)
        x.tolist()
    except RuntimeError as error:
        print("told:", error, flush=True)
    os._exit(0)
            """.replace("MEET", MEET),
            check=False,
            env=AT_ONCE,
        )
        self.assertTold(first, "[Tt]imed? ?out")

    def test_what_the_engine_refuses(self):
        """In its words, which are those for tensors of its own, and the group goes on."""
        run_ranks(
            START
            + f"""
    start({"nccl" if CUDA_KERNELS else None!r})
    own = {"cuda" if CUDA_KERNELS else "cpu"!r}
            """
            + """
    def told(call):
        try:
            call()
        except Exception as error:
            return type(error), str(error).splitlines()[0].split("] ", 1)[-1]

    OF_GLOO = (
        lambda x: dist.broadcast(x, 7),
        lambda x: dist.all_gather([x], x),
        lambda x: dist.all_gather([x, x[1:]], x),
        lambda x: dist.scatter(x, [x, x[:1]], rank),
    ) if own == "cpu" else ()  # NCCL begins with them, or takes them
    for call in (
        lambda x: dist.all_reduce(x.to(torch.complex64), dist.ReduceOp.MAX),
        lambda x: dist.all_reduce(x, dist.ReduceOp.BAND),
        lambda x: dist.all_reduce(x.to_sparse(), dist.ReduceOp.MAX),
        lambda x: dist.send(x, rank),
        lambda x: dist.all_gather([x, x.double()], x),
        lambda x: dist.all_gather_into_tensor(x, x),
        lambda x: dist.reduce_scatter_tensor(x, x),
        lambda x: dist.all_to_all_single(x, x, [1, 2], [3, 1]),
        lambda x: dist.all_reduce("nothing"),
        *OF_GLOO,
    ):
        there, here = (told(lambda: call(torch.ones(4, 4).to(device))) for device in (own, D))
        assert there is not None and here == there, (there, here)
    x = torch.ones(4, device=D)
    x.untyped_storage().resize_(0)
    assert "its storage has 0" in told(lambda: dist.all_reduce(x))[1]
    x = torch.ones(4, device=D)
    assert "some on cpu" in told(lambda: dist.all_gather([x, x.cpu()], x))[1]
    dist.barrier()
    y = torch.ones(2, device=D)
    dist.all_reduce(y)
    assert y.tolist() == [2.0, 2.0]
            """
        )

    @parametrize("end", ["dist.destroy_process_group()", "sys.exit(0)"])
    def test_ends_with_a_collective_in_flight(self, end):
        run_ranks(
            START
            + f"""
    start()
    x = torch.ones(1000, device=D) + 1
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        work.wait()
    {end}
            """
        )

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            run_ranks(
                START
                + """
    try:
        start()
    except dist.DistNetworkError as error:
        assert "in use" in str(error), error
    else:
        raise AssertionError("started")
    assert not dist.is_initialized()
    assert (torch.ones(3, device=D) + 1).tolist() == [2.0] * 3
    os.environ["MASTER_PORT"] = "0"
    start(store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(3, device=D)
    dist.all_reduce(x)
                """,
                ranks=1,
                env={"MASTER_PORT": str(taken.getsockname()[1])},
            )

    def test_a_restart_after_a_killed_rank(self):
        """torchrun starts all ranks again, in processes of their own."""
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(
                textwrap.dedent(
                    START
                    + """
    start("hologram")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    x = torch.ones(3, device=D)
    dist.all_reduce(x)
    if attempt == 0 and rank == 1:
        os.kill(os.getpid(), 9)
    dist.all_reduce(x)
    line = f"rank {rank} of attempt {attempt} on {x.device} has {x[0].item()}"
    print(line + "\\n", end="", flush=True)
    dist.destroy_process_group()
                    """
                )
            )
            file.flush()
            done = subprocess.run(
                f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 "
                f"--max-restarts 1 {file.name}".split(),
                env={**os.environ, "HOLOGRAM_CPU_DEVICES": "2", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            )
        self.assertEqual(
            sorted(done.stdout.splitlines()),
            [f"rank {r} of attempt 1 on hologram:{r} has 4.0" for r in range(2)],
        )

    def test_a_checkpoint_that_is_cut_off(self):
        with tempfile.TemporaryDirectory() as folder:
            program = (
                START
                + f"""
    import torch.distributed.checkpoint as dcp
    state = {{"x": torch.arange(5.0, device=D) + 1}}
    dcp.save(state, checkpoint_id="{folder}/first")
    dcp.FileSystemWriter.finish = lambda *_, **__: os.kill(os.getpid(), 9)
    dcp.save({{"x": state["x"] * 2}}, checkpoint_id="{folder}/second")
                """
            )
            (cut,) = run_ranks(program, ranks=1, check=False)
            self.assertEqual(cut.returncode, -signal.SIGKILL, cut.stderr)
            run_ranks(
                START
                + f"""
    import torch.distributed.checkpoint as dcp
    state = {{"x": torch.zeros(5, device=D)}}
    try:
        dcp.load(state, checkpoint_id="{folder}/second")
    except dcp.CheckpointException:
        pass
    else:
        raise AssertionError("loaded")
    dcp.load(state, checkpoint_id="{folder}/first")
    assert state["x"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0], state
                """,
                ranks=1,
            )


instantiate_parametrized_tests(TestCollectives)
instantiate_parametrized_tests(TestFaults)
instantiate_parametrized_tests(TestPrograms)

if __name__ == "__main__":
    run_tests()
