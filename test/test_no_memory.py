"""Tensors that name the device and have no memory: fakes, wrappers of torch.func, subclasses.

torch's dispatcher keeps them from kernels. What looks at a tensor without it, and kernels that are
reached past it, have to work without memory or to raise; the CPU's kernels crash.
"""

from __future__ import annotations

import torch
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

import torch_hologram

NO_MEMORY = "no memory on the hologram device"

READERS = {
    "alias_as_cpu": torch.hologram.alias_as_cpu,
    "__dlpack__": lambda t: t.__dlpack__(),
    "from_dlpack": torch.from_dlpack,
    "to_dlpack": torch_hologram.to_dlpack,
}

# Called by a kernel of another library, for example, on whatever it was given.
WITHOUT_EFFECT = {
    "sync": torch.ops.hologram.sync,
    "data_ptr": lambda t: t.data_ptr(),
    "record_stream": lambda t: t.record_stream(torch.hologram.current_stream()),
    "is_pinned": lambda t: t.is_pinned(),
    "repr": repr,
    "attention choice": lambda t: torch._fused_sdp_choice(t, t, t),
}


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(2, 3, device="hologram"))


class TestNoMemory(HologramTestCase):
    @parametrize("reader", list(READERS))
    def test_fake_tensors_are_refused_by_what_reads(self, reader):
        with self.assertRaisesRegex(RuntimeError, NO_MEMORY):
            READERS[reader](fake())

    @parametrize("call", list(WITHOUT_EFFECT))
    def test_fake_tensors_are_taken_by_what_only_looks(self, call):
        WITHOUT_EFFECT[call](fake())

    @parametrize("transform", [torch.func.grad, torch.func.vmap])
    def test_wrappers_of_transforms_are_refused(self, transform):
        def read(x: torch.Tensor) -> torch.Tensor:
            # As an extension would call it that does not know of transforms.
            torch_hologram._C.synchronize_tensor(x)
            torch_hologram._C.alias_as_cpu(x)
            return x.sum()

        with self.assertRaisesRegex(RuntimeError, NO_MEMORY):
            transform(read)(torch.ones(2, 3, device="hologram"))

    def test_kernels_refuse_a_subclass_without_memory(self):
        process = run_python(
            """
            import torch

            class Wrapper(torch.Tensor):
                @staticmethod
                def __new__(cls):
                    return torch.Tensor._make_wrapper_subclass(
                        cls, (2, 3), device="hologram:0", dtype=torch.float32)
                __torch_dispatch__ = None

            for expression in ("x + 1", "x.sum()", "x @ x.t()", "x.cpu()", "y.copy_(x)",
                               "x.zero_()", "x.sort()"):
                print(expression, end=": ", flush=True)
                x, y = Wrapper(), torch.ones(2, 3, device="hologram")
                with torch._C._DisableTorchDispatch():
                    try:
                        eval(expression)
                        torch.hologram.synchronize()
                        print("returned")
                    except RuntimeError as error:
                        print(error)
                assert (y + 1).sum().item() == 12
            """
        )
        self.assertEqual(process.stdout.count(NO_MEMORY), 7, process.stdout)


instantiate_parametrized_tests(TestNoMemory)

if __name__ == "__main__":
    run_tests()
