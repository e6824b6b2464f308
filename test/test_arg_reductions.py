"""Where the greatest and the least elements are: argmax, argmin, max and min along a dimension."""

from __future__ import annotations

import itertools

import torch
from common import HologramTestCase
from test_reductions import DEVICE, FLOATS, INTEGERS, SHAPES, layouts, numbers, on_device, passes
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

SEARCHES = (torch.argmax, torch.argmin)
EXTREMA = (torch.max, torch.min)


def dims_of(shape: tuple[int, ...]) -> list[int]:
    return list(range(-len(shape), len(shape))) or [0, -1]


class TestArgReductions(HologramTestCase):
    def assert_same(self, actual, expected, what):
        for mine, its in zip(actual, expected, strict=True):
            self.assertEqual(mine.dtype, its.dtype, what)
            self.assertEqual(mine.stride(), its.stride(), what)
            self.assertEqual(mine.cpu(), its, rtol=0, atol=0, equal_nan=True, msg=what)

    def check(self, x: torch.Tensor) -> None:
        for layout in layouts(x):
            device_x = on_device(layout)
            what = f"{tuple(x.shape)} {layout.stride()} {x.dtype}"
            for dim, keepdim in itertools.product((None, *dims_of(x.shape)), (False, True)):
                for function in SEARCHES if x.dtype is not torch.bool else ():
                    expected = function(layout, dim, keepdim)
                    self.assert_same([function(device_x, dim, keepdim)], [expected], what)
                for function in EXTREMA if dim is not None else ():
                    expected = function(layout, dim, keepdim)
                    self.assert_same(function(device_x, dim, keepdim), expected, what)

    @parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool))
    def test_values(self, dtype):
        for shape in SHAPES:
            self.check(numbers(shape, dtype))

    @parametrize("dtype", FLOATS)
    def test_the_first_of_several(self, dtype):
        """Of equal elements, and of NaNs, which count as the greatest and the least."""
        inf, nan = float("inf"), float("nan")
        rows = [
            [1.0, 3.0, 3.0, 1.0, 2.0],
            [nan, 3.0, nan, 1.0, 2.0],
            [3.0, 1.0, nan, inf, nan],
            [inf, inf, -inf, -inf, nan],
            [-inf, -inf, -inf, -inf, -inf],
            [inf, inf, inf, inf, inf],
            [-0.0, 0.0, -0.0, 0.0, -0.0],
            [nan, nan, nan, nan, nan],
        ]
        for times in (1, 40, 900):
            self.check(torch.tensor(rows, dtype=dtype).repeat(1, times))

    @parametrize("length", (3071, 3072, 3073, 100_003))
    def test_long_rows(self, length):
        for place in (0, 1, 1536, 3070, length - 1):
            x = torch.zeros(2, length)
            x[0, place] = 1
            x[1, place:] = -1
            self.check(x)

    def test_positions_beyond_the_exact_floats(self):
        x = torch.zeros(2**24 + 5, dtype=torch.uint8)
        x[-1] = 1
        for dtype in (torch.uint8, torch.float32, torch.bfloat16):
            y = x.to(dtype, copy=True)
            self.assertEqual(y.to(DEVICE).argmax().item(), 2**24 + 4, dtype)
            self.assertEqual(y[:-5].to(DEVICE).argmin(0).item(), 0, dtype)
            y[-6] = 2
            self.assertEqual(y[:-5].to(DEVICE).argmax(0).item(), 2**24 - 1, dtype)

    def test_they_are_recorded(self):
        for dtype in (torch.float32, torch.float16, torch.int64):
            x = numbers((30, 40), dtype).to(DEVICE)
            self.assertEqual(passes(lambda: x.argmax(1)), 1)  # noqa: B023
            self.assertEqual(passes(lambda: x.argmin()), 1)  # noqa: B023
            self.assertEqual(passes(lambda: x.max(1)), 1)  # noqa: B023
            self.assertEqual(passes(lambda: x.min(0)), 2)  # noqa: B023
            self.assertEqual(passes(lambda: (x + 1).max(1, keepdim=True)), 1)  # noqa: B023

    def test_what_reads_the_index_on_the_device(self):
        x = numbers((30, 40), torch.float32)
        for dim in (0, 1):
            values, indices = x.to(DEVICE).max(dim, keepdim=True)
            self.assertEqual(x.to(DEVICE).gather(dim, indices).cpu(), values.cpu())
            self.assertEqual(((indices + 1) * 2).cpu(), (x.max(dim, keepdim=True)[1] + 1) * 2)

    def test_out(self):
        x = numbers((6, 50), torch.float32)
        device_x = x.to(DEVICE)
        out = torch.empty(6, dtype=torch.int64, device=DEVICE)
        self.assertIs(torch.argmax(device_x, 1, out=out), out)
        self.assertEqual(out.cpu(), x.argmax(1))
        both = torch.empty(50, device=DEVICE), torch.empty(50, dtype=torch.int64, device=DEVICE)
        result = torch.min(device_x, 0, out=both)
        self.assertEqual([t.data_ptr() for t in result], [t.data_ptr() for t in both])
        self.assert_same(both, x.min(0), "out")
        with self.assertWarnsRegex(UserWarning, "An output with one or more elements was resized"):
            torch.argmin(device_x, 0, out=out)
        self.assertEqual(out.cpu(), x.argmin(0))

    def test_out_that_is_the_operand(self):
        for dtype in (torch.float32, torch.int64):
            results = []
            for place in ("cpu", DEVICE):
                x = numbers((5, 4), dtype).to(place)
                indices = torch.empty(5, dtype=torch.int64, device=place)
                torch.max(x, 1, out=(x[:, 0].clone(), indices))
                y = numbers((7, 1), dtype).to(place)
                torch.max(y, 1, keepdim=True, out=(y, torch.empty_like(y, dtype=torch.int64)))
                results.append((indices.cpu(), y.cpu()))
            self.assert_same(*results, dtype)

    def test_gradients(self):
        x = numbers((6, 50), torch.float32)
        for dim in (0, 1):
            gradients = []
            for place in ("cpu", DEVICE):
                leaf = x.to(place, copy=True).requires_grad_()
                (leaf.max(dim).values ** 2).sum().backward()
                gradients.append(leaf.grad.cpu())
            self.assertEqual(*gradients)

    @parametrize(
        "call",
        (
            lambda t: t.argmax(2),
            lambda t: t.argmin(-3),
            lambda t: t.max(2),
            lambda t: t.min(-3),
            lambda t: t[:0].argmax(),
            lambda t: t[:0].argmax(0),
            lambda t: t[:0].max(0),
            lambda t: t[:, :0].min(1),
            lambda t: (t > 0).argmax(1),
            lambda t: t.to(torch.complex64).argmax(1),
            lambda t: t.to(torch.complex64).max(1),
            lambda t: torch.argmax(t, 1, out=torch.empty(4, device=t.device)),
            lambda t: torch.max(t, 1, out=(torch.empty(4, device=t.device),) * 2),
        ),
    )
    def test_bad_input(self, call):
        x = torch.randn(4, 5)
        with self.assertRaises(Exception) as expected:
            call(x)
        with self.assertRaises(type(expected.exception)):
            call(x.to(DEVICE))
        self.assertEqual(x.to(DEVICE).argmax().cpu(), x.argmax())

    def test_nothing_to_search(self):
        x = torch.empty(0, 3)
        self.assertEqual(x.to(DEVICE).argmax(1).cpu(), x.argmax(1))
        self.assert_same(x.to(DEVICE).max(1), x.max(1), "no rows")


instantiate_parametrized_tests(TestArgReductions)

if __name__ == "__main__":
    run_tests()
