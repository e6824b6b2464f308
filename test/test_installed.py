"""What installing the package changes for programs that compute on the CPU: docs/installed.md."""

from __future__ import annotations

import unittest

import torch
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import run_tests

# One process that is a group of its own, so that no port has to be free.
# It ends without static destructors: what still refers to a group (a subgroup, DDP's reducer)
# outlives destroy_process_group, and Gloo, whose threads then still run, may, rarely, abort.
GROUP = """
    import atexit, os, sys, tempfile, torch
    import torch.distributed as dist

    def start(**options):
        dist.init_process_group(init_method="file://" + tempfile.mktemp(), rank=0, world_size=1,
                                **options)
        atexit.register(end)

    def end():
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(1 if hasattr(sys, "last_value") else 0)
"""
# torch's accelerator is CUDA without the package, where it finds a GPU, whatever is tested.
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""} if torch.cuda.is_available() else {}
# Without the package, with it through `import torch`, and with it after torch's own modules.
ORDERS = {
    "without": ("", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    "with": ("", {}),
    "later": ("import torch_hologram", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
}


class TestCpuPrograms(HologramTestCase):
    """Runs the same program without the package and with it, and compares what is printed."""

    def same_with_and_without(self, program: str) -> None:
        hidden = HIDDEN | {"HOLOGRAM_BACKENDS": "cpu"} if HIDDEN else {}
        printed = {
            order: run_python(program.replace("HERE", line), env=hidden | env).stdout
            for order, (line, env) in ORDERS.items()
        }
        self.assertNotEqual(printed["without"], "")
        self.assertEqual(printed["with"], printed["without"])
        self.assertEqual(printed["later"], printed["without"])

    def test_process_group_without_a_backend(self):
        self.same_with_and_without(
            GROUP
            + """
    HERE
    start()
    x = torch.arange(3.0)
    dist.all_reduce(x)
    dist.barrier()
    objects = [None]
    dist.all_gather_object(objects, {"a": 1})
    y = torch.ones(2)
    group = dist.new_group([0])
    dist.broadcast(y, 0, group=group)
    print(x, y, objects)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    ddp(torch.ones(3, 2)).sum().backward()
    print(ddp.module.weight.grad)
            """
        )

    def test_fully_shard_without_a_mesh(self):
        self.same_with_and_without(
            GROUP
            + """
    from torch.distributed.fsdp import fully_shard
    HERE
    start(backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.ones(3, 4)).square().sum()
        loss.backward()
        optimizer.step()
        print(loss, {p.device for p in model.parameters()}, type(next(model.parameters())))
            """
        )

    @unittest.skipIf(
        torch.version.cuda is not None, "this torch makes masks on CUDA, without the package too"
    )
    def test_flex_attention(self):
        self.same_with_and_without(
            """
            import warnings
            warnings.simplefilter("ignore")
            import torch
            from torch.nn.attention import flex_attention as flex
            HERE
            mask = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128)
            torch.manual_seed(0)
            q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
            out = flex.flex_attention(q, k, v, block_mask=mask, scale=0.5)
            print(out.device, out.double().sum())
            torch.testing.assert_close(
                out, torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=0.5))
            """
        )


class TestWhatChanges(HologramTestCase):
    """What torch itself decides by the accelerator, and the way around it."""

    def test_integers_are_devices(self):
        self.assertEqual(torch.ones(1, device=0).device, torch.device("hologram", 0))
        self.assertTrue(torch.ones(1, device="cpu").is_cpu)

    def test_pinned_batches(self):
        data = torch.utils.data.TensorDataset(torch.arange(4.0))
        for pin, of_the_device in ((True, True), (False, False)):
            (batch,) = next(iter(torch.utils.data.DataLoader(data, pin_memory=pin)))
            self.assertEqual((batch.is_pinned(), batch.is_cpu), (of_the_device, True))

    def test_processes_without_the_device(self):
        program = """
            import torch
            assert torch.accelerator.current_accelerator(check_available=True) is None
            assert not torch.accelerator.is_available()
            x = torch.arange(4.0)
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x),
                                                 pin_memory=True)
            assert not next(iter(loader))[0].is_pinned()
            try:
                torch.ones(1, device=0)
            except (RuntimeError, AssertionError):
                pass
            else:
                raise AssertionError("made")
        """
        for variable, value in (
            ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),
            ("HOLOGRAM_BACKENDS", ""),
        ):
            run_python(program, env={variable: value, "PYTHONWARNINGS": "ignore", **HIDDEN})

    def test_explicit_mesh_is_respected(self):
        process = run_python(
            GROUP
            + """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    start()
    model = fully_shard(torch.nn.Linear(4, 2), mesh=init_device_mesh("hologram", (1,)))
    print({p.device.type for p in model.parameters()})
            """
        )
        self.assertEqual(process.stdout, "{'hologram'}\n")

    def test_process_groups_serve_the_device(self):
        process = run_python(
            GROUP
            + """
    start()
    x = torch.ones(2, device="hologram")
    dist.all_reduce(x)
    print(dist.get_backend_config(), x.tolist())
            """
        )
        self.assertEqual(process.stdout, "cpu:gloo,hologram:hologram [1.0, 1.0]\n")


if __name__ == "__main__":
    run_tests()
