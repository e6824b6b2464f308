"""cumsum and cumprod: torch's bits, layouts, forms, passes, and what they refuse."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from common import CUDA_KERNELS, HologramTestCase, as_torch
from test_reductions import DEVICE, FLOATS, INTEGERS, layouts, on_device, passes
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

DTYPES = (*FLOATS, *INTEGERS, torch.bool)
# Rows around the lengths of registers, tiles and classes, and planes; see csrc/atlas/group.h.
SHAPES = ((7,), (5, 9), (1, 3, 1), (4, 8, 6, 5), (130, 300), (2, 7000), (70, 3100), (3, 130, 33))
SCANS = ("cumsum", "cumprod")


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype is torch.bool:
        return torch.randn(shape) > 0
    # Products that neither vanish nor overflow at once.
    x = torch.randn(shape) if dtype.is_floating_point else 3 * torch.randn(shape)
    return (x + x.sign()).to(dtype)


def recorded() -> int:
    return torch.hologram.stream_stats()["recorded"]


class TestScans(HologramTestCase):
    def assert_same(self, actual, expected, what=None):
        """Equal in bits, NaNs being one, and alike in all that torch tells of a tensor."""
        self.assertEqual(actual.dtype, expected.dtype, what)
        self.assertEqual(actual.shape, expected.shape, what)
        self.assertEqual(actual.stride(), expected.stride(), what)
        actual = actual.cpu()
        if expected.is_floating_point():
            self.assertTrue(torch.equal(actual.isnan(), expected.isnan()), what)
            actual, expected = (t.masked_fill(t.isnan(), 1) for t in (actual, expected))
            actual, expected = actual.contiguous(), expected.contiguous()
            bits = torch.int16 if expected.itemsize == 2 else torch.int32
            actual, expected = actual.view(bits), expected.view(bits)
        self.assertTrue(torch.equal(actual, expected), what)

    @parametrize("dtype", DTYPES)
    @parametrize("name", SCANS)
    def test_values(self, name, dtype):
        for shape in SHAPES:
            for x in layouts(numbers(shape, dtype)):
                device_x = on_device(x)
                for dim in range(-1, x.dim()):
                    before = recorded()
                    actual = getattr(torch, name)(device_x, dim)
                    what = f"dim {dim} of {shape} {x.stride()}"
                    self.assertGreater(recorded(), before, what)
                    self.assert_same(actual, getattr(torch, name)(x, dim), what)

    @parametrize("dtype", DTYPES)
    @parametrize("name", SCANS)
    def test_in_place(self, name, dtype):
        for x in layouts(numbers((4, 8, 6, 5), dtype)):
            if x.stride(0) == 0:
                continue
            for dim in range(x.dim()):
                wanted, actual = x.clone(), on_device(x)
                wanted = torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x)
                try:
                    getattr(wanted, name + "_")(dim)
                except RuntimeError:  # of truth values

                    def error_on(tensor, dim=dim):
                        with self.assertRaises(RuntimeError) as caught:
                            getattr(tensor, name + "_")(dim)
                        return str(caught.exception).split("\n", 1)[0]

                    mine = error_on(actual)
                    as_torch(
                        lambda place, x=x, mine=mine, error_on=error_on: self.assertEqual(
                            mine, error_on(x.to(place))
                        )
                    )
                    continue
                before = recorded()
                self.assertIs(getattr(actual, name + "_")(dim), actual)
                self.assertGreater(recorded(), before)
                self.assert_same(actual, wanted, f"dim {dim} of {x.stride()}")

    @parametrize("dtype", DTYPES)
    @parametrize("name", SCANS)
    def test_of_another_dtype(self, name, dtype):
        x = numbers((6, 40), dtype)
        for wanted in (*FLOATS, *INTEGERS):
            for dim in (0, 1):
                expected = getattr(x, name)(dim, dtype=wanted)
                actual = getattr(x.to(DEVICE), name)(dim, dtype=wanted)
                self.assert_same(actual, expected, wanted)

    @parametrize("name", SCANS)
    def test_out(self, name):
        scan = getattr(torch, name)
        x = numbers((6, 40), torch.float32)
        for dim in (0, 1):
            expected = scan(x, dim)
            out = torch.empty(6, 40, device=DEVICE)
            self.assertIs(scan(x.to(DEVICE), dim, out=out), out)
            self.assert_same(out, expected)
            turned = torch.empty(40, 6, device=DEVICE).t()
            before = recorded()
            scan(x.to(DEVICE), dim, out=turned)
            self.assertGreater(recorded(), before)
            self.assert_same(turned.contiguous(), expected)
            wide = torch.empty(6, 40, dtype=torch.float64, device=DEVICE)
            scan(x.to(DEVICE), dim, out=wide)  # as of float64
            self.assert_same(wide, scan(x, dim, out=torch.empty(6, 40, dtype=torch.float64)))
            wrong = torch.ones(7, device=DEVICE)
            with self.assertWarnsRegex(UserWarning, "An output with one or more elements was"):
                scan(x.to(DEVICE), dim, out=wrong)  # by torch's kernel
            if CUDA_KERNELS:
                self.assertEqual(wrong.cpu(), expected)
            else:
                self.assert_same(wrong, expected)
        # Of what is read: the same memory turned, and a part of it.
        both = torch.randn(6, 6)
        for part in (lambda t: (t, t), lambda t: (t[:3], t[3:])):
            wanted, actual = both.clone(), both.to(DEVICE)
            scan(part(wanted)[0], 1, out=part(wanted)[1])
            scan(part(actual)[0], 1, out=part(actual)[1])
            self.assert_same(actual, wanted)

    @parametrize("name", SCANS)
    def test_special_values(self, name):
        inf, nan = float("inf"), float("nan")
        for row in (
            [nan, 1.0], [1.0, nan], [inf, -inf], [-0.0, -0.0], [-0.0, 0.0], [inf, 0.0],
            [1e-45, 1e-40], [3e38, 3e38, -3e38], [65504.0, 16.0, -16.0],
        ):  # fmt: skip
            for dtype in FLOATS:
                x = torch.tensor([row, row, row]).to(dtype)
                for dim in (0, 1):
                    expected = getattr(x, name)(dim)
                    self.assert_same(getattr(x.to(DEVICE), name)(dim), expected, (row, dtype))
        # A sum starts from +0.
        self.assert_same(torch.tensor([[-0.0]]).to(DEVICE).cumsum(0), torch.tensor([[0.0]]))

    @parametrize("name", SCANS)
    def test_integers_wrap(self, name):
        for dtype in INTEGERS:
            x = torch.full((9, 35), torch.iinfo(dtype).max - 2, dtype=dtype)
            for dim in (0, 1):
                for wanted in (None, dtype, torch.int16, torch.uint8):
                    expected = getattr(x, name)(dim, dtype=wanted)
                    actual = getattr(x.to(DEVICE), name)(dim, dtype=wanted)
                    self.assert_same(actual, expected, (dtype, wanted))

    def test_long_rows(self):
        for shape, dim in (((1_000_003,), 0), ((3, 100_001), 1), ((40_001, 3), 0)):
            for dtype in (torch.float32, torch.bfloat16, torch.int32):
                x = numbers(shape, dtype)
                self.assert_same(x.to(DEVICE).cumsum(dim), x.cumsum(dim), (shape, dtype))
                # Together with what is before it.
                self.assert_same((x.to(DEVICE) + 1).cumsum(dim), (x + 1).cumsum(dim), shape)

    @parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64))
    def test_what_is_before_is_one_pass(self, dtype):
        for shape in ((5, 9), (70, 3100), (3, 20, 33)):
            x, y = numbers(shape, dtype), numbers(shape, dtype)
            here = (x.to(DEVICE), y.to(DEVICE), y[:, 0].contiguous().to(DEVICE))
            for dim in range(x.dim()):
                for function in (
                    lambda x, y, z, dim=dim: (x * 2 - y).cumsum(dim),
                    lambda x, y, z, dim=dim: (x + y).cumprod_(dim),
                    lambda x, y, z, dim=dim: (x.mul_(1).cumsum(dim), y + 1)[0],
                ):
                    torch.hologram.flush()
                    actual = function(*here)
                    with torch.hologram.eager():
                        alone = function(*here)
                    self.assertTrue(torch.equal(actual, alone))
                    self.assert_same(actual, function(x, y, None))
                    self.assertLessEqual(passes(lambda: function(*here)), 2)  # noqa: B023
                self.assertEqual(passes(lambda: (here[0] * 2 - here[1]).cumsum(dim)), 1)  # noqa: B023

    def test_beside_a_softmax(self):
        """As samplers take the likeliest tokens."""
        x = torch.randn(20, 700)
        device_x = x.to(DEVICE)

        def likely(t):
            p = F.softmax(t, -1)
            return p.cumsum(-1), p

        self.assertEqual(passes(lambda: likely(device_x)), 1)
        fused = likely(device_x)
        with torch.hologram.eager():
            alone = likely(device_x)
        for a, b in zip(fused, alone, strict=True):
            self.assertTrue(torch.equal(a, b))
        self.assertEqual(fused[0].cpu(), F.softmax(x, -1).cumsum(-1))

    def test_what_is_after_reads_it_from_memory(self):
        x = torch.randn(30, 40)

        def both_ways(t):
            y = t.cumsum(0)
            z = y.cumsum(1) * 2 + y
            y += 1
            return z, y.flip(0).cumsum(0), (t - t.cumsum(1).amax(1, keepdim=True))

        fused = both_ways(x.to(DEVICE))
        for a, b in zip(fused, both_ways(x), strict=True):
            self.assert_same(a, b)

    def test_both_dims_of_one_tensor(self):
        x = torch.randn(300, 90)
        device_x = x.to(DEVICE)
        results = device_x.cumsum(0), device_x.cumsum(1), device_x.cumprod(0), device_x.sum(0)
        for a, b in zip(results, (x.cumsum(0), x.cumsum(1), x.cumprod(0)), strict=False):
            self.assert_same(a, b)
        self.assertEqual(results[3].cpu(), x.sum(0))

    def test_views_and_memory_that_others_see(self):
        x = torch.randn(10, 12)
        host = torch.hologram.get_device_properties(0).host_addressable
        for shared in (False, True) if host else (False,):
            wanted, actual = x.clone(), x.to(DEVICE)
            seen = torch.hologram.alias_as_cpu(actual) if shared else None
            for step in (
                lambda t: t[2:7, 1:9].cumsum_(0),
                lambda t: t.t()[3].cumprod_(0),
                lambda t: t[:, ::3].cumsum_(1),
                lambda t: t.view(5, 24).cumsum_(-1),
            ):
                step(wanted)
                step(actual)
                if seen is not None:
                    self.assert_same(seen, wanted)
            self.assert_same(actual, wanted)

    @parametrize("name", SCANS)
    def test_gradients(self, name):
        x = numbers((7, 9), torch.float64) / 2
        x[2, 3] = 0
        for dim in (0, 1):
            results = []
            for place in ("cpu", DEVICE):
                leaf = x.to(place, copy=True).requires_grad_()
                weights = torch.linspace(-1, 2, 63, dtype=x.dtype).view(7, 9).to(place)
                (getattr(leaf * 2, name)(dim) * weights).sum().backward()
                results.append(leaf.grad.cpu())
            self.assertEqual(results[0], results[1])
        leaf = x[:3, :3].to(DEVICE, copy=True).requires_grad_()
        self.assertTrue(torch.autograd.gradcheck(lambda t: getattr(t, name)(1), (leaf,)))

    @parametrize("name", SCANS)
    def test_few_elements(self, name):
        scan = getattr(torch, name)
        for dtype in (torch.float32, torch.int32, torch.bool):
            for shape in ((), (0,), (3, 0), (0, 3), (1,), (1, 1, 1)):
                x = torch.ones(shape, dtype=dtype)
                for dim in (0, -1):
                    self.assert_same(scan(x.to(DEVICE), dim), scan(x, dim), (shape, dim))

    @parametrize(
        "call",
        (
            lambda t: t.cumsum(2),
            lambda t: t.cumprod(-3),
            lambda t: t.cumsum_(5),
            lambda t: t[0, 0].cumsum(1),
            lambda t: t.cumsum(0, dtype=torch.float64, out=torch.empty(4, 5, device=t.device)),
            lambda t: t.cumprod_(0, dtype=torch.float64),
            lambda t: t.long().cumsum_(0, dtype=torch.int32),
            lambda t: t[:1].expand(4, 5).cumsum_(0),
            lambda t: torch.cumsum(t, "rows"),
            lambda t: torch.cumprod(t > 0, 0, out=torch.empty(4, 5, device=t.device).bool()),
        ),
    )
    def test_bad_input(self, call):
        x = torch.randn(4, 5)
        with self.assertRaises(Exception) as expected:
            call(x)
        with self.assertRaises(type(expected.exception)) as actual:
            call(x.to(DEVICE))
        text, ours = (str(e.exception).split("\n", 1)[0] for e in (expected, actual))
        if "out" not in text and "rows" not in text:
            self.assertEqual(ours, text)
        self.assert_same(x.to(DEVICE).cumsum(0), x.cumsum(0))

    def test_out_on_another_device(self):
        with self.assertRaisesRegex(RuntimeError, "device"):
            torch.cumsum(torch.ones(3, device=DEVICE), 0, out=torch.empty(3))

    def test_texts(self):
        x = torch.randn(2, 3)
        explanation = torch.hologram.explain(lambda t: (t * 2).cumsum(1), x.to(DEVICE))
        self.assertIn("cumsum.f32", str(explanation))
        self.assertIn("along rows", str(explanation))
        self.assertIn("down rows", str(torch.hologram.explain(torch.cumprod, x.to(DEVICE), 0)))

    def test_composites_of_them(self):
        x = torch.rand(6, 30)
        for function in (
            lambda t: torch.cumulative_trapezoid(t, dx=0.5, dim=1),
            lambda t: torch.cumulative_trapezoid(t, t.cumsum(0), dim=0),
            lambda t: t.cumsum(1).diff(dim=1),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertEqual(function(x.to(DEVICE)).cpu(), function(x))


instantiate_parametrized_tests(TestScans)

if __name__ == "__main__":
    run_tests()
