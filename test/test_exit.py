"""The interpreter exits cleanly, whatever was going on just before."""

from __future__ import annotations

import pytest
from common import HOST_MEMORY, run_python
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

# Each one leaves autograd's device thread something to clean up that needs the interpreter: Python
# functions in the graph, hooks, tensors with Python objects whose last owner it is.
BACKWARD = """
import torch

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

x = torch.ones(16, device="hologram", requires_grad=True)
torch.autograd.set_multithreading_enabled(True)  # the device's thread in place of this one
x.register_hook(lambda gradient: gradient.clone())
y = Double.apply(x)
y.register_hook(lambda gradient: gradient + 0)
(y * y).sum().backward()
assert x.grad[0].item() == 8
"""


class TestExit(TestCase):
    def exits(self, source: str, times: int) -> None:
        # torch waits this many seconds for an autograd thread that does not end: far longer than a
        # busy machine needs for a program, so that waiting is told from being slow.
        patience = {"TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT": "300"}
        for _ in range(times):
            process = run_python(source, check=False, env=patience, timeout=120)
            self.assertEqual((process.returncode, process.stderr), (0, ""))

    def test_after_a_backward(self):
        self.exits(BACKWARD, 20)

    def test_no_wait_for_a_thread_that_a_backward_started(self):
        # As what a device's libraries start there may, it has the name of autograd's thread.
        process = run_python(
            """
            import atexit, sys, threading, time
            begin = []
            atexit.register(lambda: print(time.monotonic() - begin[0]))  # after all others
            import torch
            torch.autograd.set_multithreading_enabled(True)
            x = torch.ones(16, device="hologram", requires_grad=True)

            def start(gradient):
                threading.Thread(target=threading.Event().wait, daemon=True).start()

            x.register_hook(start)
            (x * 2).sum().backward()
            assert threading.active_count() == 2
            atexit.register(lambda: begin.append(time.monotonic()))
            """
        )
        self.assertLess(float(process.stdout), 1.5)  # torch_hologram waits for 2 s at most

    @pytest.mark.full
    @parametrize("part", range(9))
    def test_after_a_backward_often(self, part):
        # With the 20 above 200 times, in parts that can run side by side.
        self.exits(BACKWARD, 20)

    def test_after_a_backward_on_the_cpu(self):
        # The device's autograd thread is started by any backward.
        self.exits(
            "import torch\nx = torch.ones(2, requires_grad=True)\n(x * 2).sum().backward()", 4
        )

    @parametrize("device", ["cpu", "hologram"] if HOST_MEMORY else ["cpu"])
    def test_while_a_thread_of_gloo_is_in_python(self, device):
        # It computes without the interpreter's lock, which it needs again. Gloo's tensors are on
        # the CPU where the host cannot touch the device's memory.
        self.exits(
            f"""
            import tempfile, threading, torch
            import torch.distributed as dist
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0,
                                    world_size=1)
            values, is_computing = torch.rand(1500, 1500), threading.Event()

            def compute(future):
                is_computing.set()
                for _ in range(3):
                    values @ values

            x = torch.ones(4, device="{device}")
            seen = dist.all_reduce(x, async_op=True).get_future().then(compute)
            is_computing.wait()
            """,
            2,
        )

    def test_without_any_use(self):
        self.exits("import torch", 1)

    def test_with_live_objects_everywhere(self):
        self.exits(
            """
            import atexit, torch
            stream, event = torch.hologram.Stream(), torch.hologram.Event(enable_timing=True)
            event.record(stream)
            generator = torch.Generator(device="hologram")
            module = torch.nn.Linear(4, 4).hologram()
            cycle = [torch.ones(100, device="hologram"), None]
            cycle[1] = cycle
            pinned = torch.ones(100).pin_memory()
            capsule = torch.ones(100, device="hologram").__dlpack__()
            if torch.hologram.get_device_properties().host_addressable:
                alias = torch.hologram.alias_as_cpu(torch.ones(100, device="hologram"))
            torch.tensors_of_the_module = [torch.ones(1, device="hologram")]
            atexit.register(lambda: module(torch.ones(1, 4, device="hologram")).sum().backward())
            """,
            2,
        )

    def test_exit_status_is_kept(self):
        process = run_python(BACKWARD + "\nimport sys\nsys.exit(3)", check=False)
        self.assertEqual(process.returncode, 3)
        process = run_python(BACKWARD + "\nraise KeyError('mine')", check=False)
        self.assertEqual(process.returncode, 1)
        self.assertIn("KeyError: 'mine'", process.stderr)

    def test_tensors_deleted_at_exit(self):
        process = run_python(
            """
            import torch

            class Owner:
                def __init__(self):
                    self.tensor = torch.ones(10, device="hologram")

                def __del__(self):
                    print("freed", self.tensor.is_hologram)

            owner = Owner()
            """
        )
        self.assertEqual(process.stdout, "freed True\n")


instantiate_parametrized_tests(TestExit)

if __name__ == "__main__":
    run_tests()
