"""The CUDA backend without a GPU: csrc/cuda as it is, on the driver of test/cuda.

What it computes, copies, streams and events, memory, processes; faults are in
test_cuda_driver_faults.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from common import ROOT, HologramTestCase
from cuda_driver import DEVICES, KERNEL_FILES, LATE, build_driver, run_on_cuda, write_kernels
from sim_device import FREED_MEMORY, after_host_access
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils import cpp_extension


def run_beside_the_cpu(program: str, **env: object) -> None:
    run_on_cuda(DEVICES + textwrap.dedent(program), backends="cpu,cuda", **env)


def run_emitted(program: str, work: str, use: str, **env: object) -> None:
    """Runs `use` after the program, with the kernels that its `work` has emitted in a process
    before."""
    keep = f"""
    import os
    _C.start_capture(1, [])
    {work}
    _C.keep_kernels(1, True)
    (text,) = _C.kept_kernels(1)
    with open(os.environ["HOLOGRAM_CUDA_KERNELS"] + "/emitted.sm_90.cubin", "w") as file:
        file.write(text)
    """
    with tempfile.TemporaryDirectory() as folder:
        kernels = write_kernels(Path(folder))
        for then in (keep, use):
            run_beside_the_cpu(
                textwrap.dedent(program) + textwrap.dedent(then),
                HOLOGRAM_CUDA_KERNELS=kernels,
                **env,
            )


class TestComputing(HologramTestCase):
    """The bits of the CPU, by kernels."""

    def test_equals_the_cpu(self):
        run_beside_the_cpu(
            """
            torch.manual_seed(0)
            functions = [
                lambda x, y: torch.where(x > y, x, y) + x,
                lambda x, y: (x[:, ::2] * y[:, 1::2]).t().contiguous(),
                lambda x, y: x.sum(), lambda x, y: x.sum(0), lambda x, y: (x + y).amax(1),
                lambda x, y: x.cumsum(1), lambda x, y: x[:, 3:70].cumsum(0),
                lambda x, y: torch.maximum(x, y[5]) * 3,
            ]
            of_floats = [
                lambda x, y: torch.softmax(x, 1), lambda x, y: torch.log_softmax(x, 0),
                lambda x, y: torch.sqrt(x) / (y + 1), lambda x, y: x.mean(1),
                lambda x, y: torch.layer_norm(x, (130,)),
            ]
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
                          torch.uint8, torch.bool):
                x, y = ((torch.randn(37, 130) * 20).abs().to(dtype) for _ in range(2))
                for function in functions + of_floats * dtype.is_floating_point:
                    check(function, x, y, devices=(gpu, other_gpu))
            assert runs()["cold"] >= 100 and runs()["cpu"] == 0, runs()
            """
        )

    def test_a_strided_value_that_is_stored_as_it_is(self):
        """With enough elements a group runs operation by operation."""
        run_beside_the_cpu(
            """
            def both(x, y):
                copied = x[:, ::2] * 1
                return torch.cat([copied, (copied * (y + 1)).sum(1, keepdim=True)], 1)
            before = runs()["pieces"]
            check(both, torch.randn(400, 200), torch.randn(400, 100))
            assert runs()["pieces"] > before
            """
        )

    def test_random_numbers(self):
        run_beside_the_cpu(
            """
            def draw(device, kind):
                torch.manual_seed(7)
                x = torch.empty(1001, device=device)
                return kind(x), x.uniform_(3, 4)
            kinds = [lambda x: x.uniform_(), lambda x: x.bernoulli_(0.3),
                     lambda x: torch.randint(100, x.shape, device=x.device)]
            for kind in kinds:
                for ours, theirs in zip(draw(gpu, kind), draw(cpu, kind)):
                    assert torch.equal(ours.cpu(), theirs.cpu())
            # Through log, sin and cos.
            normal = [draw(device, lambda x: x.normal_())[0].cpu() for device in (gpu, cpu)]
            torch.testing.assert_close(*normal, rtol=1e-6, atol=1e-6)
            assert runs()["cpu"] == 0, runs()
            """
        )

    def test_a_training_step(self):
        """With products by torch's kernels, whose sums are in the CPU's order."""
        run_beside_the_cpu(
            """
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(),
                                        torch.nn.LayerNorm(30), torch.nn.Linear(30, 5))
            x, target = torch.randn(16, 20), torch.randint(5, (16,))
            def train(device, make):
                import copy
                mine = copy.deepcopy(model).to(device)
                optimizer = make(mine.parameters())
                for _ in range(3):
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(mine(x.to(device)), target.to(device))
                    loss.backward()
                    optimizer.step()
                return [loss.cpu()] + [p.detach().cpu() for p in mine.parameters()]
            for make in (lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
                         lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)):
                for ours, theirs in zip(train(gpu, make), train(cpu, make)):
                    assert torch.equal(ours, theirs)
            assert runs()["cpu"] == 0, runs()
            """,
            HOLOGRAM_CUBLAS_LT="none",
        )

    def test_kernels_emitted_for_groups(self):
        """Of many tensors too, which have their table in memory of the run."""
        program = """
        def work(device):
            torch.manual_seed(0)
            weights = [torch.randn(40, 3 + i, device="cpu").to(device) for i in range(5)]
            optimizer = torch.optim.AdamW(weights, foreach=True)
            for _ in range(2):
                for weight in weights:
                    weight.grad = torch.randn(weight.shape, device="cpu").to(device)
                torch.hologram.flush()
                optimizer.step()
                torch.hologram.flush()
            return [w.cpu() for w in weights] + [torch.softmax(weights[0] * 2, 1).cpu()]
        """
        use = """
        for ours, theirs in zip(work(gpu), work(cpu)):
            assert torch.equal(ours, theirs)
        assert runs()["emitted"] > 1 and runs()["cold"] == runs()["cpu"] == 0, runs()
        # The driver waits for a stream before it copies what is not page-locked.
        driver = ctypes.CDLL("libcuda.so.1")
        copies = driver.simulated_cuda_calls(b"cuMemcpyHtoDAsync_v2")
        assert copies > 10, copies
        assert driver.simulated_cuda_calls(b"pageable") == 0
        """
        run_emitted(program, "work(gpu)", use)

    def test_long_rows_are_folded_by_one_launch(self):
        """Whose last block joins what the others have: again and again, on several streams."""
        program = """
        def work(device):
            torch.manual_seed(0)
            rows = [torch.randn(n, 40_003, device="cpu").to(device) for n in (1, 3)]
            results = []
            for _ in range(3):
                for x in rows:
                    for fold in (torch.sum, torch.amax):
                        results.append(fold(x, 1))
                        torch.hologram.flush(device)
            return results
        """
        use = """
        torch.hologram.set_device(1)
        results = []
        for stream in (torch.hologram.current_stream(1), torch.hologram.Stream(1)):
            with torch.hologram.stream(stream):
                results.append(work(gpu))
        torch.hologram.synchronize()
        for ours in results:
            for x, y in zip(ours, work(cpu)):
                assert torch.equal(x.cpu(), y.cpu())
        assert runs() == {"emitted": 24, "pieces": 0, "cold": 0, "cpu": 0, "moves": 0}, runs()
        """
        run_emitted(program, "work(gpu)", use, HOLOGRAM_TEST_CUDA_DELAY=2000)

    def test_tables_of_many_launches(self):
        """More than there is page-locked memory for at a time, while nothing is done yet."""
        program = """
        def work(device, count, length=800):
            tensors = [torch.full((1 + i % 3,), float(i), device="cpu").to(device)
                       for i in range(length)]
            for number in range(count):
                torch._foreach_mul_(tensors, 1 + number / 8)
                torch._foreach_add_(tensors, number)
                torch.hologram.flush(device)
            return torch.cat([x.cpu() for x in tensors])
        """
        use = """
        work(gpu, 1)
        driver = ctypes.CDLL("libcuda.so.1")
        before = driver.simulated_cuda_calls(b"cuMemHostAlloc")
        assert torch.equal(work(gpu, 40), work(cpu, 40))
        assert runs()["emitted"] > 20 and runs()["cold"] == runs()["cpu"] == 0, runs()
        assert driver.simulated_cuda_calls(b"pageable") == 0
        # 40 tables of 30 KB.
        assert driver.simulated_cuda_calls(b"cuMemHostAlloc") > before
        """
        run_emitted(program, "work(gpu, 3, 3)", use, HOLOGRAM_TEST_CUDA_DELAY=2000)

    def check_tables_of_graphs(self, pageable: str, **env: object) -> None:
        program = """
        def work(device, count, length=400):
            dtypes = torch.float32, torch.float64, torch.bfloat16
            lists = [[torch.full((1 + i % 3,), float(i), dtype=dtype, device="cpu").to(device)
                      for i in range(length)] for dtype in dtypes]
            for number in range(count):
                for tensors in lists:
                    torch._foreach_mul_(tensors, 1 + number / 8)
                torch.hologram.flush(device)
            return torch.cat([x.cpu().double() for tensors in lists for x in tensors])
        """
        use = f"""
        driver = ctypes.CDLL("libcuda.so.1")
        for _ in range(3):  # other tensors than before
            assert torch.equal(work(gpu, 12), work(cpu, 12))
        stats = torch.hologram.stream_stats(gpu)
        names = "made", "launched", "failed"
        made, launched, failed = (stats[f"replays.{{name}}"] for name in names)
        assert made == 1 and launched > 24 and failed == 0, stats
        assert driver.simulated_cuda_calls(b"pageable") {pageable}
        """
        run_emitted(program, "work(gpu, 3)", use, HOLOGRAM_TEST_CUDA_DELAY=200, **env)

    def test_tables_of_graphs(self):
        """They are sent without waiting for what the GPU has to do, and again where they differ."""
        self.check_tables_of_graphs("== 0")

    def test_tables_without_page_locked_memory(self):
        """They wait for what the GPU has to do, and are the same."""
        every = ",".join(str(number) for number in range(1, 5000))
        self.check_tables_of_graphs("> 30", HOLOGRAM_TEST_CUDA_NO_HOST_MEMORY=every)

    def test_copies_between_strides_in_programs(self):
        """They end no program, and are part of its graph, whichever addresses they have."""
        program = """
        def work(device, count):
            results = []
            x = torch.arange(4 * 6 * 8.0).view(4, 6, 8).to(device)
            for number in range(count):
                z = (x * (number + 1)).transpose(1, 2).contiguous() + 1
                into = torch.zeros(8, 4, 16, device=device)
                into[:, :, 1::3].copy_(z.permute(1, 0, 2)[:, :, :5])
                results.append(into + 1)
                torch.hologram.flush(device)
            return torch.stack([result.cpu() for result in results])
        """
        use = """
        work(gpu, 3)
        names = "flushes.kernel", "flushes.user", "calls", "replays.launched", "replays.failed"
        before = torch.hologram.stream_stats(gpu)
        moves = runs()["moves"]
        assert torch.equal(work(gpu, 40), work(cpu, 40))
        after = torch.hologram.stream_stats(gpu)
        kernel, user, calls, launched, failed = (after[n] - before[n] for n in names)
        assert kernel == 0 and user == 40 and calls == 80, (kernel, user, calls)
        assert launched > 30 and failed == 0, (launched, failed)
        assert runs()["moves"] - moves == 80, runs()["moves"] - moves
        y = torch.arange(12.0, device=gpu).view(3, 4)
        text = str(torch.hologram.explain(lambda: y.t().contiguous() + 1))
        assert "copy_" in text, text
        """
        run_emitted(program, "work(gpu, 3)", use)

    def test_a_flush_is_one_launch_by_the_driver(self):
        """Beside a look at which context the thread has: what nobody asks for is not recorded."""
        program = """
            import ctypes
            driver = ctypes.CDLL("libcuda.so.1")
            FUNCTIONS = ("cuLaunchKernel", "cuGraphLaunch", "cuGraphExecKernelNodeSetParams",
                         "cuGraphInstantiate_v2", "cuCtxGetCurrent", "cuCtxPushCurrent_v2",
                         "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode",
                         "cuEventRecord", "cuEventQuery", "cuEventCreate",
                         "cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2", "cuModuleGetFunction")
            def calls():
                return [driver.simulated_cuda_calls(name.encode()) for name in FUNCTIONS]
            def made_by(work):
                work(10)
                before = calls()
                result = work(50)
                return result, dict(zip(FUNCTIONS, (b - a for a, b in zip(before, calls()))))
            x, y = (torch.ones(1000, device="hologram") for _ in range(2))
            def turns(times):
                for _ in range(times):
                    z = x + y
                    torch.hologram.flush()
                    z.mul_(3)
                    torch.hologram.flush()
                return z
            z, made = made_by(turns)
            assert made.pop(LAUNCH) == 100, made
            # A graph's kernel has other parameters.
            assert made.pop("cuGraphExecKernelNodeSetParams") <= 100, made
            # Two programs take turns: now and then the queue looks which of them are done.
            assert made.pop("cuCtxGetCurrent") < 110, made
            assert made.pop("cuThreadExchangeStreamCaptureMode") < 20, made
            assert made.pop("cuEventCreate") + made.pop("cuEventRecord") < 10, made
            assert made.pop("cuEventQuery") < 20, made
            assert not any(made.values()), made
            assert z.tolist() == [6] * 1000
            def again(times):
                for _ in range(times):
                    x.add_(y)
                    torch.hologram.flush()
            _, made = made_by(again)
            assert (made.pop(LAUNCH), made.pop("cuCtxGetCurrent")) == (50, 50), made
            assert not any(made.values()), made
            assert x.tolist() == [61] * 1000
            """
        # Before 13000 a graph takes longer.
        for version, launch in (13000, "cuGraphLaunch"), (12090, "cuLaunchKernel"):
            with self.subTest(version=version):
                run_on_cuda(
                    f"LAUNCH = {launch!r}\n" + textwrap.dedent(program),
                    HOLOGRAM_TEST_CUDA_VERSION=version,
                )

    def test_a_profiler_sees_launches(self):
        """It knows kernels by the calls that launch them, and is told of no graph."""
        run_on_cuda(
            """
            import ctypes
            from torch.profiler import profile
            driver = ctypes.CDLL("libcuda.so.1")
            def work(x):
                before = [driver.simulated_cuda_calls(name) for name in NAMES]
                for _ in range(20):
                    x.add_(1)
                    torch.hologram.flush()
                return [driver.simulated_cuda_calls(n) - b for n, b in zip(NAMES, before)]
            NAMES = b"cuLaunchKernel", b"cuGraphLaunch"
            x = torch.ones(1000, device="hologram")
            work(x)
            assert work(x) == [0, 20]
            with profile() as profiled:
                assert work(x) == [20, 0]
            assert any(event.name.startswith("hologram::pass") for event in profiled.events())
            assert work(x) == [0, 20]
            assert x.tolist() == [81] * 1000
            """,
            HOLOGRAM_TEST_CUDA_VERSION=13000,
        )

    def test_launches_in_any_order(self):
        """Kernels that come again and others, each as its own program, with results kept or not."""
        run_beside_the_cpu(
            """
            import random
            STEPS = [
                lambda x: x.add_(1), lambda x: x.sub_(x.sum(-1, keepdim=True) // 16),
                lambda x: x.copy_(x.cumsum(-1) % 7), lambda x: x.fill_(3), lambda x: x.neg_(),
                lambda x: x.copy_(x.flip(0)), lambda x: x.copy_(x.roll(1, 1)),
                lambda x: x.copy_(x.sum(0)), lambda x: x[::2].mul_(2), lambda x: x.t().add_(2),
                lambda x: x.copy_(x.to(torch.int64)), lambda x: x.remainder_(11),
                lambda x: x.copy_(x.index_select(0, (x[0, :1].long() % 4).to(x.device))),
                lambda x: x.copy_(torch.stack([x, x + 1])[1]),
            ]
            def results(device):
                made = random.Random(3)
                several = [torch.arange(16, device=device).view(4, 4).to(dtype) for dtype in
                           (torch.float32, torch.float64, torch.int64, torch.int16)]
                kept = []
                for _ in range(500):
                    step, x = made.choice(STEPS), made.choice(several)
                    step(x)
                    if made.random() < 0.3:
                        kept.append(x + 1)
                    torch.hologram.flush(device)
                return several + kept
            for ours, theirs in zip(results(gpu), results(cpu)):
                assert torch.equal(ours.cpu(), theirs.cpu()), (ours, theirs)
            import ctypes
            driver = ctypes.CDLL("libcuda.so.1")
            graphs = {name: driver.simulated_cuda_calls(name.encode()) for name in (
                "cuGraphLaunch", "cuGraphExecKernelNodeSetParams", "cuGraphInstantiate_v2")}
            assert graphs["cuGraphLaunch"] > 300 and min(graphs.values()) > 5, graphs
            """
        )

    def test_groups_that_no_kernel_takes(self):
        """All, in a package whose cold kernels are others: the CPU's code runs on copies."""
        with tempfile.TemporaryDirectory() as folder:
            kernels = write_kernels(Path(folder), cold=KERNEL_FILES["moves.sm_90.cubin"])
            run_beside_the_cpu(
                f"""
                import sys
                sys.path.insert(0, {str(ROOT / "test")!r})
                import programs
                torch.hologram.set_device(gpu)
                programs.check_seeds(range(60), with_cpu=True)
                assert runs()["cpu"] > 500 and runs()["cold"] == 0, runs()

                # Views of one storage, with gaps, some of them written.
                def in_place(x):
                    x = x.clone()
                    x[::2, 3:].mul_(2).add_(x[1::2, :28])
                    x.flip(0)[4].copy_(x[7] + 1)
                    return x
                check(in_place, torch.randn(40, 31))

                # Denormals are flushed or not as where it was recorded, wherever it is run.
                x = torch.full((5,), 1e-30, device=gpu)
                torch.hologram.synchronize()
                assert torch.set_flush_denormal(True)
                flushed = x * 1e-10
                torch.set_flush_denormal(False)
                assert flushed.tolist() == [0] * 5, flushed
                kept = x * 1e-10
                torch.set_flush_denormal(True)
                result = kept.cpu()
                torch.set_flush_denormal(False)
                assert all(0 < v < 1e-39 for v in result.tolist()), result
                """,
                HOLOGRAM_CUDA_KERNELS=kernels,
                HOLOGRAM_TEST_CUDA_DELAY=10,
            )

    def test_random_programs(self):
        run_beside_the_cpu(
            f"""
            import sys
            sys.path.insert(0, {str(ROOT / "test")!r})
            import programs
            torch.hologram.set_device(gpu)
            programs.check_seeds(range(100, 220), with_cpu=True)
            assert runs()["cold"] > 1000 and runs()["cpu"] == 0, runs()
            """,
            HOLOGRAM_POISON_FREED=1,
            HOLOGRAM_TEST_CUDA_DELAY=10,
        )


class TestCopies(HologramTestCase):
    @parametrize("offset", [0, 256])
    def test_between_host_and_devices(self, offset):
        run_on_cuda(
            """
            for size in (1, 7, 1000, 300_001):
                host = torch.arange(size, dtype=torch.int32)
                here = host.to("hologram:0")
                there = here.to("hologram:1")
                assert torch.equal(there.cpu(), host) and torch.equal(here.clone().cpu(), host)
                pinned = host.pin_memory()
                assert pinned.is_pinned()
                again = pinned.to("hologram:1", non_blocking=True)
                back = torch.empty_like(pinned).pin_memory()
                back.copy_(again + there, non_blocking=True)
                torch.hologram.synchronize(1)
                assert torch.equal(back, 2 * host)
                assert torch.equal(here[::3].cpu(), host[::3])
                here[::2] = there[::2].to("hologram:0") * 5
                host[::2] *= 5
                assert torch.equal(here.cpu(), host)
            """,
            HOLOGRAM_TEST_CUDA_DELAY=500,
            HOLOGRAM_TEST_CUDA_OFFSET=offset,
        )

    def test_between_devices_without_the_host(self):
        """In the order of both devices' streams, and nobody waits."""
        run_on_cuda(
            """
            import ctypes, time
            driver = ctypes.CDLL("libcuda.so.1")
            calls = lambda name: driver.simulated_cuda_calls(name.encode())
            x = torch.arange(1000.0, device="hologram:0")
            y = torch.zeros(1000, device="hologram:1")
            y.copy_(x)
            torch.hologram.synchronize(0)
            torch.hologram.synchronize(1)
            assert torch.equal(y.cpu(), torch.arange(1000.0))
            to_host = calls("cuMemcpyDtoHAsync_v2")
            peers = calls("cuMemcpyPeerAsync")

            start = time.perf_counter()
            a = submit_additions(x, 5)
            there = a.to("hologram:1")
            a.add_(100)  # after it has been read
            torch.hologram.flush(0)
            b = submit_additions(there, 5)
            back = b.to("hologram:0")
            b.mul_(0)
            torch.hologram.flush(1)
            total = back + a
            # From and to other streams than the current ones.
            side = torch.hologram.Stream(0)
            with torch.hologram.stream(side):
                c = submit_additions(x, 3).to("hologram:1")
            c.add_(1)
            torch.hologram.flush(1)
            submitted = time.perf_counter() - start
            assert calls("cuMemcpyDtoHAsync_v2") == to_host
            assert calls("cuMemcpyPeerAsync") == peers + 3
            assert calls("cuCtxEnablePeerAccess") == 2
            del a, there, back, b  # memory is not handed out before it has been used
            fillers = [torch.full((1000,), -1.0, device=f"hologram:{i % 2}") for i in range(8)]
            torch.hologram.flush(0)
            torch.hologram.flush(1)
            torch.hologram.synchronize(0)
            torch.hologram.synchronize(1)
            assert submitted < (time.perf_counter() - start) / 2
            assert torch.equal(total.cpu(), 2 * torch.arange(1000.0) + 10 + 105), total.cpu()
            assert torch.equal(c.cpu(), torch.arange(1000.0) + 4), c.cpu()
            """,
            **LATE,
        )

    def test_tensors_of_two_devices(self):
        """They are refused as torch refuses those of two GPUs; the current one says nothing."""
        run_on_cuda(
            """
            x, y = (torch.ones(4, device=f"hologram:{i}") for i in range(2))
            for call in (lambda: x + y, lambda: torch.where(x > 0, x, y), lambda: x.add_(y),
                         lambda: torch.cat([x, y]), lambda: torch.dot(x, y)):
                text = message(call)
                assert "same device" in text and "hologram:0" in text and "hologram:1" in text, text
            assert (x + torch.tensor(1.0)).tolist() == [2] * 4
            torch.hologram.set_device(1)
            assert torch.ones(3, device="hologram").device.index == 1
            assert (x * 2).device.index == 0 and x.sort().values.device.index == 0
            with torch.hologram.device(0):
                assert torch.empty(3, device="hologram").device.index == 0
            assert torch.hologram.current_device() == 1
            event = torch.hologram.Event()
            event.record(torch.hologram.current_stream(0))
            torch.hologram.current_stream(1).wait_event(event)
            event.synchronize()
            """
        )

    def test_fills_of_every_size(self):
        run_on_cuda(
            """
            for dtype in (torch.uint8, torch.bool, torch.float16, torch.float32, torch.int64,
                          torch.float64, torch.complex64, torch.complex128):
                for size in (0, 1, 1001):
                    x = torch.zeros(size + 2, dtype=dtype, device="hologram")
                    x[1:-1].fill_(1)
                    assert x.tolist() == [0] + [1] * size + [0], (dtype, size)
                assert torch.full((5,), 1, dtype=dtype, device="hologram").tolist() == [1] * 5
            """
        )

    def test_copies_between_strides(self):
        run_beside_the_cpu(
            """
            LAYOUTS = {
                "transposed": lambda x: x.view(34, 36, 5).transpose(0, 1),
                "reversed": lambda x: x.view(5, 36, 34).permute(2, 1, 0),
                "heads": lambda x: x.view(2, 9, 34, 10).transpose(1, 2),
                "columns": lambda x: x.view(90, 68)[3:, 1:60],
                "steps": lambda x: x.view(90, 68)[1::3, ::7],
                "expanded": lambda x: x[7:41].view(34, 1).expand(34, 40),
                "last": lambda x: x.view(2, 34, 9, 10).to(memory_format=torch.channels_last),
                "many": lambda x: x[:256].view([2] * 8).permute(7, 6, 5, 4, 3, 2, 1, 0),
                "too many": lambda x: x[:512].view([2] * 9).permute(8, 7, 6, 5, 4, 3, 2, 1, 0),
            }
            for dtype in (torch.bool, torch.int16, torch.float32, torch.int64, torch.complex128):
                x = (torch.arange(6120) % 251).to(dtype)
                for name, of in LAYOUTS.items():
                    before = runs()["moves"]
                    check(lambda x: of(x).clone(memory_format=torch.contiguous_format), x)
                    assert runs()["moves"] - before == {"last": 2, "too many": 0}.get(name, 1), name
                    into = lambda x: of(torch.zeros_like(x)).copy_(of(x).flip(0))
                    if name != "expanded":
                        check(into, x)

            # Sizes that differ and casts are left to torch.
            before = runs()["moves"]
            x = torch.arange(48.0).view(6, 8)
            check(lambda x: torch.zeros(8, 6, device=x.device).copy_(x[0, :6]), x)
            check(lambda x: torch.zeros(8, 6, device=x.device, dtype=torch.half).copy_(x.t()), x)
            assert runs()["moves"] == before
            check(lambda x: x[:, 1:].copy_(x[:, :-1].clone()), x)
            square = torch.arange(36.0).view(6, 6)
            assert torch.equal(square.to(gpu)[:3].copy_(square.to(gpu)[3:]).cpu(), square[3:])
            y = square.to(gpu)
            try:
                y.view(-1)[:1].expand(6).copy_(y[1])
                raise AssertionError("written to one element six times")
            except RuntimeError as error:
                assert "single memory location" in str(error), error

            # In order with what is recorded before and after.
            a, b = (torch.arange(4096.0).view(64, 64).to(d) + 1 for d in (cpu, gpu))
            for t in (a, b):
                u = (t * 2).t().contiguous() + 1
                t.copy_(u.t())
                t += 3
            assert torch.equal(a.cpu(), b.cpu())
            side = torch.hologram.Stream(gpu)
            with torch.hologram.stream(side):
                side.wait_stream(torch.hologram.default_stream(gpu))
                c = (b * 2).t().contiguous()
            torch.hologram.default_stream(gpu).wait_stream(side)
            assert torch.equal(c.cpu(), (a * 2).t().cpu())
            """
        )

    def test_pinned_copies_do_not_wait(self):
        run_on_cuda(
            """
            import time
            host = torch.arange(1000.0).pin_memory()
            x = torch.zeros(1000, device="hologram")
            torch.hologram.synchronize()
            first, back = (torch.hologram.Event(enable_timing=True) for _ in range(2))
            start = time.perf_counter()
            first.record()
            x.copy_(host, non_blocking=True)
            y = submit_additions(x, 10)
            result = torch.empty(1000, pin_memory=True)
            result.copy_(y, non_blocking=True)
            back.record()
            submitted = time.perf_counter() - start
            assert not back.query()
            del host  # is not handed out again before it has been read
            others = [torch.full((1000,), -1.0).pin_memory() for _ in range(3)]
            back.synchronize()
            assert submitted < (time.perf_counter() - start) / 2
            assert torch.equal(result, torch.arange(1000.0) + 10), result
            """,
            **LATE,
        )


class TestStreams(HologramTestCase):
    def test_events_take_the_time_of_the_stream(self):
        run_on_cuda(
            """
            x = torch.ones(10, device="hologram")
            submit_additions(x, 1)
            torch.hologram.synchronize()
            first, last = (torch.hologram.Event(enable_timing=True) for _ in range(2))
            first.record()
            x = submit_additions(x, 10)
            last.record()
            assert not last.query() and not torch.hologram.current_stream().query()
            assert "must be completed" in message(lambda: first.elapsed_time(last))
            last.synchronize()
            elapsed = first.elapsed_time(last)  # of ten tasks, each late by 10 ms on average
            assert 20 < elapsed < 400, elapsed
            assert last.elapsed_time(first) == -elapsed
            assert x.tolist() == [11] * 10
            """,
            **LATE,
        )

    def test_an_operator_is_defined_beside_work_in_flight(self):
        """Torch defines some from NCCL's watchdog, when a collective does not end."""
        run_on_cuda(
            """
            x = submit_additions(torch.ones(10, device="hologram"), 20)
            y = x * 2  # recorded
            library = torch.library.Library("defined_late", "DEF")
            library.define("twice(Tensor x) -> Tensor")
            assert not torch.hologram.current_stream().query()
            assert y.tolist() == [42] * 10
            """,
            **LATE,
        )

    def test_streams_and_devices_wait_for_events(self):
        run_on_cuda(
            """
            side, far = torch.hologram.Stream(priority=-1), torch.hologram.Stream(1)
            done, later = (torch.hologram.Event() for _ in range(2))
            x = submit_additions(torch.zeros(10, device="hologram"), 5)
            done.record()
            side.wait_event(done)
            far.wait_event(done)
            later.record(side)
            with torch.hologram.stream(far):
                y = torch.ones(100, device="hologram:1") * 2
                assert not done.query()
                far.synchronize()
            assert done.query() and y.sum().item() == 200
            later.synchronize()
            assert x.sum().item() == 50
            """,
            **LATE,
        )

    def test_random_programs_equal_the_cpus(self):
        run_on_cuda(
            """
            import random
            streams = [torch.hologram.default_stream(), torch.hologram.Stream()]
            streams += [torch.hologram.Stream(priority=-1), torch.hologram.Stream(1)]
            for seed in range(60):
                choose = random.Random(seed)
                size = choose.choice((7, 4000))
                pairs = []  # a tensor of the CPU and what has to equal it
                for _ in range(3):
                    x = torch.randint(0, 100, (size,), dtype=torch.float32)
                    pairs.append([x, x.to("hologram")])
                for step in range(choose.randrange(10, 40)):
                    a, b = choose.choice(pairs), choose.choice(pairs)
                    kind = choose.randrange(9)
                    with torch.hologram.stream(choose.choice(streams[:3])):
                        if kind == 0:
                            x = torch.full((size,), float(step))
                            pairs.append([x, x.pin_memory().to("hologram", non_blocking=True)])
                        elif kind == 1 and len(pairs) > 2:
                            pairs.pop(choose.randrange(len(pairs)))
                        elif kind == 2:
                            assert torch.equal(a[0], a[1].cpu()), (seed, step)
                        elif kind == 3:
                            for x, y in zip(a, b):
                                x.mul_(0.5).add_(y)
                        elif kind == 4:  # a kernel of torch's
                            pairs.append([torch.flip(x, (0,)) for x in a])
                        elif kind == 5:
                            pairs.append([(x * (1 + 1j)).imag.contiguous() for x in a])
                        elif kind == 6:
                            pairs.append([a[0] + 1, (a[1].to("hologram:1") + 1).to("hologram:0")])
                        elif kind == 7:
                            torch.hologram.flush()
                        else:
                            pairs.append([torch.maximum(x + 1, y) - y for x, y in zip(a, b)])
                    del a, b
                for x, y in pairs:
                    assert torch.equal(x, y.cpu()), seed
            """,
            HOLOGRAM_TEST_CUDA_DELAY=100,
        )

    def test_threads_with_streams_of_their_own(self):
        run_on_cuda(
            """
            shared = [torch.arange(1000.0, device=f"hologram:{i}") for i in range(2)]
            def work(number):
                with torch.hologram.stream(torch.hologram.Stream(number % 2)):
                    mine = torch.zeros(1000, device=f"hologram:{number % 2}")
                    for step in range(60):
                        mine = (mine + shared[number % 2] * number) * 0.5
                        if step % 20 == number:
                            torch.hologram.current_stream().synchronize()
                        if step % 7 == 0:
                            torch.hologram.Event(enable_timing=True).record()
                        if step % 15 == 0:  # memory comes and goes
                            mine = torch.cat([mine, torch.empty(1 << 19, device=mine.device)])
                            mine = mine[:1000] + mine[:1000].cumsum(0) * 0
                expected = torch.zeros(1000)
                for step in range(60):
                    expected = (expected + torch.arange(1000.0) * number) * 0.5
                assert torch.equal(mine.cpu(), expected), number
            in_threads(work, 5)
            """,
            HOLOGRAM_TEST_CUDA_DELAY=100,
        )

    def test_gradients_on_two_devices(self):
        run_on_cuda(
            """
            torch.manual_seed(0)
            first, second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)
            x = torch.randn(16, 32)
            def gradients(here, there):
                models = first.to(here), second.to(there)
                for model in models:
                    model.zero_grad()
                y = torch.relu(models[0](x.to(here))) * 2
                models[1](y.to(there)).square().mean().backward()
                return [p.grad.cpu() for m in models for p in m.parameters()]
            expected = gradients("hologram:0", "hologram:0")
            for _ in range(3):
                for mine, theirs in zip(gradients("hologram:0", "hologram:1"), expected):
                    assert torch.equal(mine, theirs)
            """,
            HOLOGRAM_TEST_CUDA_DELAY=500,
        )

    def test_events_are_used_again(self):
        run_on_cuda(
            """
            import ctypes
            events = ctypes.CDLL("libcuda.so.1").simulated_cuda_events
            x = torch.ones(100, device="hologram")
            side = torch.hologram.Stream()
            def turn():
                global x
                timed = torch.hologram.Event(enable_timing=True)
                x = x * 0.5 + 1
                timed.record()
                with torch.hologram.stream(side):
                    y = x + 1
                x = y - 1
                torch.hologram.flush()
            for _ in range(100):
                turn()
            torch.hologram.synchronize()
            before = events()
            for step in range(600):
                turn()
                if step % 50 == 0:
                    x.sum().item()
            torch.hologram.synchronize()
            assert events() <= before + 200, (before, events())
            # Nobody asks whether these are done.
            for _ in range(5000):
                torch.hologram.Event().record()
            assert events() <= before + 2500, (before, events())
            assert abs(x[5].item() - 2) < 1e-3
            """,
            HOLOGRAM_TEST_CUDA_DELAY=0,
        )


class TestMemory(HologramTestCase):
    def test_the_host_faults(self):
        done = after_host_access({"HOLOGRAM_BACKENDS": "cuda"} | build_driver())
        self.assertEqual(done.returncode, -signal.SIGSEGV, done.stderr)

    def test_it_is_freed_while_another_stream_uses_it(self):
        run_on_cuda(
            """
            for size in (10, 5000, 1 << 20):
                side = torch.hologram.Stream()
                one = torch.ones(size, device="hologram")
                x = one * 3
                torch.hologram.synchronize()
                with torch.hologram.stream(side):
                    slow = submit_additions(one, 4)
                    y = slow + x
                    torch.hologram.flush()
                del x
                others = [torch.full((size,), 7.0, device="hologram") for _ in range(8)]
                torch.hologram.flush()
                assert not side.query()
                assert torch.equal(y.cpu(), torch.full((size,), 8.0))
                for other in others:
                    assert torch.equal(other.cpu(), torch.full((size,), 7.0))
            """,
            HOLOGRAM_POISON_FREED=1,
            **LATE,
        )

    def test_freed_memory_is_poisoned_after_the_work_that_used_it(self):
        run_on_cuda(FREED_MEMORY, HOLOGRAM_POISON_FREED=1, **LATE)

    def test_what_is_free(self):
        run_on_cuda(
            """
            free, total = torch.hologram.mem_get_info(0)
            assert total == 256 << 20 and free <= total, (free, total)
            x = torch.ones(25 << 20, device="hologram")  # 100 MiB
            assert torch.hologram.mem_get_info(0)[0] <= free - (100 << 20)
            assert torch.hologram.mem_get_info(1)[0] > 200 << 20
            del x
            torch.hologram.empty_cache()
            assert torch.hologram.mem_get_info(0)[0] >= free - (8 << 20)
            """,
            HOLOGRAM_TEST_CUDA_MEGABYTES=256,
        )

    def test_small_segments_share_what_the_driver_is_asked_for(self):
        """Of sizes that nobody had before; memory that none of them needs goes back."""
        run_on_cuda(
            """
            import ctypes
            driver = ctypes.CDLL("libcuda.so.1")
            def calls():
                return driver.simulated_cuda_calls(b"cuMemAlloc_v2")
            torch.ones(1000, device="hologram").sum().item()
            free, left = torch.hologram.mem_get_info()[0], []
            for turn in range(2):
                before = calls()
                # Of more than 16 size classes, and less than twice as many.
                held = [torch.full((int(2e4 * 1.17**i),), i, dtype=torch.uint8, device="hologram")
                        for i in range(20)]
                big = [torch.ones(3 << 20, dtype=torch.uint8, device="hologram") for _ in range(2)]
                taken = calls() - before
                assert taken <= 2 + len(big), taken
                assert torch.hologram.mem_get_info()[0] <= free - (16 << 20)
                for i, x in enumerate(held):
                    assert (x == i).all().item(), i
                addresses = sorted((x.data_ptr(), x.nbytes) for x in [*held, *big])
                assert all(a + n <= b for (a, n), (b, _) in zip(addresses, addresses[1:]))
                kept = held.pop(7)
                del held, big, x
                torch.hologram.empty_cache()
                assert (kept == 7).all().item()
                del kept
                torch.hologram.empty_cache()
                left.append(torch.hologram.mem_get_info()[0])
            # What kernels need for themselves stays, from the first turn on.
            assert left[0] == left[1] >= free - (4 << 20), (left, free)
            """,
            HOLOGRAM_TEST_CUDA_MEGABYTES=256,
        )

    def test_small_segments_where_memory_is_short(self):
        """There is no room for sixteen, but there is for one."""
        run_on_cuda(
            """
            torch.ones(1000, device="hologram").sum().item()
            torch.hologram.empty_cache()
            free = torch.hologram.mem_get_info()[0]
            assert 114 << 20 < free < 128 << 20, free
            big = torch.ones(112 << 20, dtype=torch.uint8, device="hologram")
            small = [torch.full((100_000 + 30_000 * i,), i, dtype=torch.uint8, device="hologram")
                     for i in range(4)]
            for i, x in enumerate(small):
                assert (x == i).all().item(), i
            """,
            HOLOGRAM_TEST_CUDA_MEGABYTES=128,
        )

    def test_partial_results_grow(self):
        """Memory of a stream's kernels is replaced while those before are at work."""
        run_on_cuda(
            """
            import threading
            def work():
                with torch.hologram.stream(torch.hologram.Stream()):
                    results = []
                    for rows in (1, 3, 9, 30, 90):
                        x = torch.ones(rows, 20_000, device="hologram")
                        results.append((x.sum(), x.cumsum(1).amax()))
                        torch.hologram.flush()
                    for rows, (total, most) in zip((1, 3, 9, 30, 90), results):
                        assert (total.item(), most.item()) == (rows * 20_000, 20_000), rows
            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            """,
            HOLOGRAM_POISON_FREED=1,
            HOLOGRAM_TEST_CUDA_DELAY=2000,
        )


class TestIdleMemory(HologramTestCase):
    def test_it_is_given_to_torchs_allocator(self):
        """That of CUDA, of which this torch may have none: its registry is in a library."""
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "libc10_cuda.so"
            subprocess.run(
                [
                    *("c++", "-std=c++20", "-shared", "-fPIC", str(ROOT / "test" / "c10_cuda.cpp")),
                    *(f"-I{path}" for path in cpp_extension.include_paths()),
                    *(f"-L{path}" for path in cpp_extension.library_paths()),
                    *(f"-Wl,-rpath,{path}" for path in cpp_extension.library_paths()),
                    *("-lc10", f"-Wl,-soname,{library.name}", "-o", str(library)),
                ],
                check=True,
            )
            run_on_cuda(
                """
                import ctypes
                registry = ctypes.CDLL("libc10_cuda.so")
                kept = torch.ones(1000, device="hologram")
                idle = torch.empty(50 << 20, dtype=torch.uint8, device="hologram").fill_(1)
                del idle
                torch.hologram.synchronize()
                assert torch.hologram.memory_reserved() > 50 << 20
                assert registry.ask_for_memory() == 1
                assert torch.hologram.memory_reserved() < 10 << 20
                assert kept.sum().item() == 1000
                # Not as long as there is far more that nobody holds.
                idle = torch.empty(5 << 20, dtype=torch.uint8, device="hologram")
                del idle
                before = torch.hologram.memory_reserved()
                assert registry.ask_for_memory() == 1
                assert torch.hologram.memory_reserved() == before > 5 << 20
                """,
                preload=library,
                HOLOGRAM_TEST_CUDA_MEGABYTES=100,
            )


class TestProcess(HologramTestCase):
    @parametrize("end", ["pass", "os._exit(0)", "sys.exit(0)"])
    def test_exit_with_work_in_flight(self, end):
        run_on_cuda(
            f"""
            import os, sys
            values = []
            for _ in range(3):
                with torch.hologram.stream(torch.hologram.Stream()):
                    values.append(submit_additions(torch.ones(1000, device="hologram"), 5))
                    values.append(values[-1] + 1)
            event = torch.hologram.Event()
            event.record()
            {end}
            """,
            **LATE,
        )

    def test_fork_with_work_in_flight(self):
        run_on_cuda(
            """
            import os
            event = torch.hologram.Event(enable_timing=True)
            values = []
            for _ in range(3):
                with torch.hologram.stream(torch.hologram.Stream()):
                    x = submit_additions(torch.ones(1000, device="hologram"), 3)
                    values.append(x + 1)
                    event.record()
            pinned = torch.ones(5).pin_memory()
            child = os.fork()
            if child == 0:
                del x, event, pinned  # is still allowed
                try:
                    values[0] + 1
                except RuntimeError as error:
                    os._exit(0 if "fork" in str(error) else 1)
                os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert [x[3].item() for x in values] == [5] * 3
            event.synchronize()
            """,
            **LATE,
        )

    def test_fork_before_a_device_is_used(self):
        """Importing torch and seeding ask nobody which there are: the driver is no child's then."""
        run_on_cuda(
            """
            import os
            def in_child(call):
                child = os.fork()
                if child == 0:
                    os._exit(call())
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            def use():
                drawn = torch.rand(1, device="hologram")
                torch.hologram.manual_seed(7)
                return int(not torch.equal(drawn, torch.rand(1, device="hologram")))
            def refused():
                text = message(use)
                return int("Cannot use CUDA in a child of a process that has asked" not in text)
            torch.manual_seed(7)
            assert "libcuda" not in open("/proc/self/maps").read()
            in_child(use)
            assert torch.hologram.is_available()
            in_child(refused)
            assert use() == 0
            """
        )

    def test_what_info_prints(self):
        done = subprocess.run(
            [sys.executable, "-m", "torch_hologram", "info"],
            env={**os.environ, "HOLOGRAM_BACKENDS": "cuda,cpu"} | build_driver(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertRegex(
            done.stdout,
            r"hologram:0  cuda, simulated GPU 0\n\s+4 \w+\n\s+8\.0 GiB\n(.*\n)*"
            r"hologram:1  cuda, simulated GPU 1\n(.*\n)*hologram:2  cpu",
        )
        self.assertRegex(done.stdout, r"HOLOGRAM_CUDA_KERNELS\s+'\S+/build/cuda/kernels'")


instantiate_parametrized_tests(TestCopies)
instantiate_parametrized_tests(TestProcess)

if __name__ == "__main__":
    run_tests()
