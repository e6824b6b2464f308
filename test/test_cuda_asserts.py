"""CUDA kernels that assert, each in a process of its own, which loses the GPU.

On the CPU these calls raise: what is marked `device_assert` in other files is about that.
"""

from __future__ import annotations

import pytest
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

# x has 3 elements, `wrong` is the index 5.
CALLS = {  # and what the error names: torch's kernels have the shapes of their tensors
    "index": ("x[wrong]", "aten::index.Tensor(float32 [3], int64 [1])"),
    "index_select": ("x.index_select(0, wrong)", "aten::index_select(float32 [3], int64 [1])"),
    "gather": ("x.gather(0, wrong)", "aten::gather(float32 [3], int64 [1])"),
    "scatter": (
        "x.scatter(0, wrong, one)",
        "aten::scatter.src(float32 [3], int64 [1], ",
    ),
    "index_add": (
        "x.index_add(0, wrong, one)",
        "aten::index_add(float32 [3], int64 [1], ",
    ),
    "index_put": ("x.index_put((wrong,), one)", "aten::_index_put_impl_("),
    "index_fill": ("x.index_fill(0, wrong, 1.0)", "aten::index_fill_"),
    "take": ("x.take(wrong)", "aten::take(float32 [3], int64 [1])"),
    "embedding": ("F.embedding(wrong, x[:, None])", "aten::"),
    "a class": (
        "F.nll_loss(torch.zeros(1, 2**24 + 3, device='hologram'), wrong + 2**24)",
        "aten::nll_loss_forward(float32 [1, 16777219], int64 [1]",
    ),
    "no probability": ("F.binary_cross_entropy(x, x)", "aten::binary_cross_entropy(float32 [3]"),
}
PROGRAM = """
import sys, torch
import torch.nn.functional as F
x, one = torch.arange(3.0, device="hologram"), torch.ones(1, device="hologram")
wrong = torch.tensor([5], device="hologram")
torch.hologram.synchronize()

def call():
    kept = eval(sys.argv[1])
    torch.hologram.synchronize()

later = (torch.hologram.synchronize, lambda: x.tolist(), lambda: (x + 1).cpu())
for use in (call, *later, *later):
    try:
        use()
    except torch.AcceleratorError as error:
        assert "device-side assert" in str(error), error
        # Which calls it may have been; torch's own check of a call stands in the call itself.
        assert sys.argv[2] in str(error) or str(error).startswith("CUDA error: "), error
    else:
        raise AssertionError("nothing was raised")
assert torch.ones(3).sum() == 3
"""


@pytest.mark.cuda
class TestAsserts(HologramTestCase):
    @parametrize("name", list(CALLS))
    def test_every_use_says_so(self, name):
        call, operator = CALLS[name]
        run_python(PROGRAM, call, operator, env={"HOLOGRAM_BACKENDS": "cuda"})


instantiate_parametrized_tests(TestAsserts)

if __name__ == "__main__":
    run_tests()
