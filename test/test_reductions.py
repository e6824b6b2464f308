"""Reductions and programs over rows: values, layouts, passes, and what they refuse."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from common import HologramTestCase
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

DEVICE = "hologram"
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# Rows around the lengths of registers, tiles and classes; see csrc/atlas/group.h.
SHAPES: dict[tuple[int, ...], tuple[object, ...]] = {
    (): (None,),
    (7,): (None, 0),
    (5, 9): (None, 0, 1, (0, 1)),
    (1, 3, 1): (None, 0, 1, 2),
    (4, 8, 6, 5): (None, 0, 1, 3, (0, 2, 3), (1, 2), (0, 3), (1, 3)),
    (130, 300): (0, 1),
    (2, 7000): (None, 0, 1),
    (3, 130, 33): (1, (0, 1), (0, 2)),
}

ANY_DTYPE: dict[str, Callable] = {
    "sum": lambda t, **at: t.sum(**at),
    "amax": lambda t, **at: t.amax(**at) if at else t.max(),
    "amin": lambda t, **at: t.amin(**at) if at else t.min(),
    "any": lambda t, **at: t.any(**at),
    "all": lambda t, **at: t.all(**at),
    "count_nonzero": lambda t, **at: torch.count_nonzero(t, dim=at.get("dim")),
    "sum as float64": lambda t, **at: t.sum(dtype=torch.float64, **at),
}
OF_FLOATS: dict[str, Callable] = {
    "mean": lambda t, **at: t.mean(**at),
    "var": lambda t, **at: t.var(correction=0, **at) if at else t.var(unbiased=False),
    "std": lambda t, **at: t.std(**at),
    "logsumexp": lambda t, **at: t.logsumexp(**at or {"dim": tuple(range(t.dim())) or 0}),
    **{
        f"norm {order}": lambda t, order=order, **at: torch.linalg.vector_norm(t, order, **at)
        for order in (0, 0.5, 1, 2, 3, float("inf"), -float("inf"))
    },
}


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same values contiguous, permuted, with gaps, and broadcast."""
    yield x
    if x.dim() >= 2:
        yield x.transpose(0, -1).contiguous().transpose(0, -1)
        gaps = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)[..., ::2]
        yield gaps.copy_(x)
        yield x[:1].expand(x.shape)
    if x.dim() == 4:
        yield x.contiguous(memory_format=torch.channels_last)


def on_device(x: torch.Tensor) -> torch.Tensor:
    """A copy on the device with the strides of the original."""
    if x.dim() and x.shape[0] > 1 and x.stride(0) == 0:
        return on_device(x[:1].clone()).expand(x.shape)
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=DEVICE).copy_(x)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape) > 0 if dtype is torch.bool else (3 * torch.randn(shape)).to(dtype)


class TestReductions(HologramTestCase):
    def assert_as_exact(self, actual, expected, exact, what):
        """Within torch's tolerance of the CPU's values, or as near to float64 as they are.

        The greatest errors of the same sums in two orders differ by up to five times by chance; how
        exact sums are on the average is a test of its own.
        """
        self.assertEqual(actual.dtype, expected.dtype, what)
        self.assertEqual(actual.shape, expected.shape, what)
        self.assertEqual(actual.stride(), expected.stride(), what)
        if not expected.is_floating_point():
            self.assertTrue(torch.equal(actual, expected), what)
            return
        rtol, atol = default_tolerances(expected)
        if torch.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True):
            return
        mine, theirs = ((x.double() - exact).abs().max().item() for x in (actual, expected))
        self.assertLessEqual(mine, 5 * theirs, what)

    def check(self, name, function, x, dims):
        for layout in layouts(x):
            device_x = on_device(layout)
            for dim in dims:
                for at in ({},) if dim is None else ({"dim": dim}, {"dim": dim, "keepdim": True}):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # var of one element
                        expected = function(layout, **at)
                        exact = function(layout.double(), **at) if x.is_floating_point() else None
                        actual = function(device_x, **at).cpu()
                    what = f"{name} {at} of {tuple(x.shape)} {layout.stride()} {x.dtype}"
                    self.assert_as_exact(actual, expected, exact, what)

    @parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool))
    def test_values(self, dtype):
        for shape, dims in SHAPES.items():
            x = numbers(shape, dtype)
            for name, function in ANY_DTYPE.items():
                self.check(name, function, x, dims)
            if dtype in FLOATS:
                for name, function in OF_FLOATS.items():
                    self.check(name, function, x, dims)

    @parametrize("dtype", (torch.float32, torch.int32))
    def test_products(self, dtype):
        for shape in ((), (7,), (40, 30)):
            x = (numbers(shape, torch.float32) / 300 + 1).to(dtype)
            self.check("prod", lambda t, **at: t.prod(**at), x, (None, -1) if shape else (None,))

    @parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32, torch.bool))
    def test_two_results(self, dtype):
        x = numbers((6, 700), dtype)
        for k in range(2):
            self.check("aminmax", lambda t, k=k, **at: t.aminmax(**at)[k], x, (None, 0, -1))
            if dtype.is_floating_point:
                for function in (torch.var_mean, torch.std_mean):
                    name = function.__name__
                    self.check(name, lambda t, k=k, f=function, **at: f(t, **at)[k], x, (None, 1))
                    self.check(name, lambda t, k=k, f=function, **at: f(t, **at)[k], x, ((0, 1),))
        with self.assertRaisesRegex(RuntimeError, "no identity"):
            torch.empty(0, device=DEVICE).aminmax()

    def test_two_results_are_recorded(self):
        x = torch.randn(30, 40, device=DEVICE)
        before = torch.hologram.stream_stats()["recorded"]
        for function in (torch.var_mean, torch.std_mean):
            function(x, dim=1)
        x.aminmax(dim=1)
        self.assertGreaterEqual(torch.hologram.stream_stats()["recorded"] - before, 6)

    def test_they_are_recorded(self):
        x = torch.randn(30, 40, device=DEVICE)
        before = torch.hologram.stream_stats()["recorded"]
        for function in (*ANY_DTYPE.values(), *OF_FLOATS.values()):
            function(x, dim=1)
            now = torch.hologram.stream_stats()["recorded"]
            self.assertGreater(now, before)
            before = now

    @parametrize("length", (100, 1000, 10_000, 100_000))
    def test_sums_are_as_exact_as_on_the_cpu(self, length):
        torch.manual_seed(length)
        x = torch.randn(64, length)
        exact = x.double().sum(1)
        for layout in (x, x.t().contiguous().t()):
            errors = [
                (its.sum(1).cpu().double() - exact).abs().mean().item()
                for its in (on_device(layout), layout)
            ]
            # Of 64 errors the mean is known to about a tenth.
            self.assertLessEqual(errors[0], 1.3 * errors[1], layout.stride())

    def test_special_values(self):
        inf, nan = float("inf"), float("nan")
        for row in ([nan, 1.0], [-inf, -inf], [inf, -inf], [inf, 1.0], [-0.0, -0.0], [0.0, nan]):
            x = torch.tensor([row * 50] * 3)
            for name in ("sum", "amax", "amin", "mean", "logsumexp"):
                expected = getattr(x, name)(dim=1)
                self.assertEqual(getattr(x.to(DEVICE), name)(dim=1).cpu(), expected, equal_nan=True)
            for function in (F.softmax, F.log_softmax):
                expected = function(x, 1)
                self.assertEqual(function(x.to(DEVICE), 1).cpu(), expected, equal_nan=True)

    @parametrize("dtype", FLOATS)
    def test_extremes_of_special_values(self, dtype):
        """Kernels look for NaN once for several rows, in sums."""
        torch.manual_seed(0)
        special = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0])
        for columns in (1, 2, 15, 17, 31, 33, 64, 65, 100, 129, 768, 1000, 3071, 3073, 7000):
            x = torch.randn(70, columns).to(dtype)
            for row in range(0, 70, 3):
                x[row, torch.randint(columns, (2,))] = special[torch.randint(5, (2,))].to(dtype)
            for name in ("amax", "amin"):
                with self.subTest(columns=columns, name=name):
                    for values in (x, x.nan_to_num()):
                        wanted = getattr(values, name)(1)
                        self.assertEqual(getattr(values.to(DEVICE), name)(1).cpu(), wanted)

    def test_integers_wrap(self):
        x = torch.full((3, 5), 2**62)
        self.assertEqual(x.to(DEVICE).sum(1).cpu(), x.sum(1))
        self.assertEqual(x.to(DEVICE).prod(1).cpu(), x.prod(1))

    def test_out(self):
        x = torch.randn(4, 5)
        out = torch.empty(4, device=DEVICE)
        self.assertIs(torch.sum(x.to(DEVICE), 1, out=out), out)
        self.assertEqual(out.cpu(), x.sum(1))
        wrong = torch.ones(7, device=DEVICE)
        with self.assertWarnsRegex(UserWarning, "An output with one or more elements was resized"):
            torch.sum(x.to(DEVICE), 1, out=wrong)
        self.assertEqual(wrong.cpu(), x.sum(1))

    @parametrize(
        "call",
        (
            lambda t: t.sum(dim=(0, 0)),
            lambda t: t.sum(dim=2),
            lambda t: t.amax(dim=-3),
            lambda t: t[:0].amax(),
            lambda t: t[:0].amin(dim=0),
            lambda t: t.long().mean(),
            lambda t: t.sum(dtype=torch.complex64, out=torch.empty((), device=t.device)),
            lambda t: F.softmax(t, 5),
            lambda t: t.logsumexp((0, -2)),
            lambda t: t.logsumexp(()),
            lambda t: F.layer_norm(t, (4,)),
            lambda t: F.layer_norm(t, (5,), weight=torch.ones(4, device=t.device)),
        ),
    )
    def test_bad_input(self, call):
        x = torch.randn(4, 5)
        with self.assertRaises(Exception) as expected:
            call(x)
        with self.assertRaises(type(expected.exception)):
            call(x.to(DEVICE))
        self.assertEqual(x.to(DEVICE).sum().cpu(), x.sum())

    def test_nothing_to_reduce(self):
        x = torch.randn(3, 0)
        for call in (
            lambda t: t.sum(),
            lambda t: t.sum(1),
            lambda t: t.prod(1),
            lambda t: t.mean(1),
            lambda t: t.any(1),
            lambda t: t.all(1),
            lambda t: torch.linalg.vector_norm(t, dim=1),
            lambda t: F.softmax(t, 1),
            lambda t: t.logsumexp(1),
        ):
            self.assertEqual(call(x.to(DEVICE)).cpu(), call(x), equal_nan=True)

    def test_more_correction_than_elements(self):
        x = torch.randn(2, 3)
        for correction in (3, 4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = x.var(1, correction=correction)
                actual = x.to(DEVICE).var(1, correction=correction)
            self.assertEqual(actual.cpu(), expected, equal_nan=True)


def layer_norm_of_parts(x, weight, bias):
    distance = x - x.mean(-1, keepdim=True)
    variance = (distance * distance).mean(-1, keepdim=True)
    return distance * torch.rsqrt(variance + 1e-5) * weight + bias


def softmax_of_parts(x, weight, bias):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def log_softmax_of_parts(x, weight, bias):
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def rms_norm_of_parts(x, weight, bias):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def block(x, weight, bias):
    hidden = F.gelu(x + bias) + x
    return F.layer_norm(hidden, (x.shape[-1],), weight, bias)


# Each with the operator that it is, if there is one.
PROGRAMS: dict[str, tuple[Callable, Callable | None]] = {
    "layer norm": (
        layer_norm_of_parts,
        lambda x, weight, bias: F.layer_norm(x, (x.shape[-1],), weight, bias),
    ),
    "softmax": (softmax_of_parts, lambda x, weight, bias: F.softmax(x, -1)),
    "log softmax": (log_softmax_of_parts, lambda x, weight, bias: F.log_softmax(x, -1)),
    "rms norm": (
        rms_norm_of_parts,
        lambda x, weight, bias: F.rms_norm(x, (x.shape[-1],), weight, 1e-5),
    ),
    "bias, gelu, residual, layer norm": (block, None),
}
ROWS = ((1, 1), (3, 5), (5, 64), (70, 100), (33, 768), (2, 3073), (1, 40_000))


def operands(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(rows * columns)
    return tuple(torch.randn(s) for s in ((rows, columns), (columns,), (columns,)))


def passes(function: Callable) -> int:
    torch.hologram.flush()
    before = torch.hologram.stream_stats()["passes"]
    result = function()
    torch.hologram.synchronize()
    del result
    return torch.hologram.stream_stats()["passes"] - before


class TestRowPrograms(HologramTestCase):
    @parametrize("name", PROGRAMS)
    def test_the_parts_are_one_pass_and_the_bits_of_each_alone(self, name):
        parts, operator = PROGRAMS[name]
        for rows, columns in ROWS:
            x, weight, bias = (t.to(DEVICE) for t in operands(rows, columns))
            fused = parts(x, weight, bias)
            with torch.hologram.eager():
                alone = parts(x, weight, bias)
            self.assertTrue(torch.equal(fused, alone), (rows, columns))
            if operator is not None:
                self.assertTrue(torch.equal(operator(x, weight, bias), fused), (rows, columns))
            if rows > 1 and columns > 1:
                count = passes(lambda: parts(x, weight, bias))  # noqa: B023
                self.assertEqual(count, 1, (rows, columns))

    @parametrize("name", PROGRAMS)
    @parametrize("dtype", (torch.float32, torch.bfloat16))
    def test_gradients(self, name, dtype):
        parts, operator = PROGRAMS[name]
        for rows, columns in ROWS:
            results = []
            for place, its in (("cpu", torch.float64), (DEVICE, dtype)):
                inputs = [
                    t.to(dtype).to(place, its).requires_grad_() for t in operands(rows, columns)
                ]
                value = (operator or parts)(*inputs)
                torch.manual_seed(1)
                weights = torch.randn(rows, columns).to(dtype)
                (value * weights.to(place, its)).sum().backward()
                gradients = [t.grad.cpu() for t in inputs if t.grad is not None]
                results.append([value.detach().cpu(), *gradients])
            for exact, actual in zip(*results, strict=True):
                # The rounding of the results, and of the values between in bfloat16.
                scale = exact.abs().max().item() + 1e-3
                bound = (
                    {torch.float32: 2e-5, torch.bfloat16: 4e-2}[dtype] * scale * max(1, rows / 8)
                )
                self.assertLessEqual((actual.double() - exact).abs().max().item(), bound)

    def test_a_backward_is_one_pass(self):
        x, weight, bias = (t.to(DEVICE).requires_grad_() for t in operands(70, 100))
        value = F.layer_norm(x, (100,), weight, bias)
        gradient = torch.randn(70, 100).to(DEVICE)
        self.assertEqual(passes(lambda: torch.autograd.grad(value, (x, weight, bias), gradient)), 1)

    @parametrize("dtype", FLOATS)
    def test_rms_norm_is_one_pass_each_way(self, dtype):
        x, weight, _ = (t.to(DEVICE, dtype).requires_grad_() for t in operands(70, 100))
        self.assertEqual(passes(lambda: F.rms_norm(x, (100,), weight)), 1)
        value = F.rms_norm(x, (100,), weight)
        gradient = torch.randn(70, 100).to(DEVICE, dtype)
        self.assertEqual(passes(lambda: torch.autograd.grad(value, (x, weight), gradient)), 1)

    @parametrize("weighted", [False, True])
    @parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_rms_norm_has_the_strides_of_torch(self, dtype, weighted):
        """Of any operand, and in dimensions of one element, where a stride says nothing."""

        def strides(device, sizes, of_x, of_gradient):
            memory = torch.randn(64).to(device, dtype)
            x = memory.as_strided(sizes, of_x).detach().requires_grad_()
            weight = torch.ones(sizes[-1:], device=device, dtype=dtype) if weighted else None
            value = F.rms_norm(x, sizes[-1:], weight)
            (gradient,) = torch.autograd.grad(value, x, memory.as_strided(sizes, of_gradient))
            return value.stride(), gradient.stride()

        for sizes in ((1, 1), (1, 2), (2, 1), (3, 2), (1, 1, 2), (2, 1, 2), (1, 2, 1), (2, 2, 1)):
            order = range(len(sizes))
            permuted = torch.empty(sizes[::-1]).permute(*reversed(order)).stride()
            spread = tuple(2 * d + 3 for d in order)
            layouts = (
                torch.empty(sizes).stride(),
                permuted,
                spread,
                spread[::-1],
                (1,) * len(sizes),
            )
            for of_x, of_gradient in itertools.product(layouts, layouts):
                with self.subTest(sizes=sizes, of_x=of_x, of_gradient=of_gradient):
                    case = (sizes, of_x, of_gradient)
                    self.assertEqual(strides(DEVICE, *case), strides("cpu", *case))

    @parametrize("dtype", FLOATS)
    def test_rms_norm_as_torch(self, dtype):
        """Shapes of rows, and what is left to torch's composite: permuted, empty, other weights."""
        torch.manual_seed(0)
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 3e-2)
        x = torch.randn(4, 3, 70).to(dtype)
        for value, dims, weight, eps in (
            (x, 1, torch.randn(70).to(dtype), None),
            (x, 2, torch.randn(3, 70).to(dtype), 1e-3),
            (x, 3, None, None),
            (x[0, 0], 1, torch.randn(70).to(dtype), 0.0),
            (x[..., ::2], 1, torch.randn(35).to(dtype), None),
            (x.transpose(0, 2), 1, torch.randn(4).to(dtype), None),
            (x[:0], 1, torch.randn(70).to(dtype), None),
            (x[..., :0], 1, torch.randn(0).to(dtype), None),
            (x, 1, torch.randn(70), None),
            (x * 1e-6, 1, None, None),
        ):
            results = []
            for place in ("cpu", DEVICE):
                inputs = [
                    t.detach().to(place).requires_grad_() for t in (value, weight) if t is not None
                ]
                shape = value.shape[value.dim() - dims :]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of two dtypes
                    out = F.rms_norm(inputs[0], shape, *inputs[1:], eps=eps)
                torch.manual_seed(1)
                seed = torch.randn_like(value).to(place, out.dtype)
                results.append([out, *torch.autograd.grad(out, inputs, seed)])
            for expected, actual in zip(*results, strict=True):
                self.assertEqual(actual.stride(), expected.stride())
                scale = expected.abs().max().item() if expected.numel() else 0
                bounds = {"atol": tolerance * max(scale, 1), "rtol": tolerance}
                self.assertEqual(actual.cpu(), expected, **bounds)

    def test_rms_norm_gradients_of_gradients(self):
        x, weight = (torch.randn(s, dtype=torch.float64).to(DEVICE) for s in ((4, 5), (5,)))
        inputs = (x.requires_grad_(), weight.requires_grad_())
        for norm in (lambda a, b: F.rms_norm(a, (5,), b), lambda a, b: F.rms_norm(a, (4, 5))):
            self.assertTrue(torch.autograd.gradcheck(norm, inputs, check_forward_ad=True))
            self.assertTrue(torch.autograd.gradgradcheck(norm, inputs))

    @pytest.mark.host_memory
    def test_memory_that_somebody_sees(self):
        """What is written to it afterwards is not read, whichever operand it is."""
        for shared in range(3):
            inputs = [t.to(DEVICE) for t in operands(4, 6)]
            expected = F.layer_norm(inputs[0], (6,), *inputs[1:]).cpu()
            alias = torch.hologram.alias_as_cpu(inputs[shared])
            result = F.layer_norm(inputs[0], (6,), *inputs[1:])
            alias.fill_(9)
            self.assertTrue(torch.equal(result.cpu(), expected), shared)
        for shared in range(2):
            x, weight, bias = (t.to(DEVICE).requires_grad_() for t in operands(4, 6))
            value = F.layer_norm(x, (6,), weight, bias)
            expected = [
                g.cpu() for g in torch.autograd.grad(value.sum(), (x, weight), retain_graph=True)
            ]
            alias = torch.hologram.alias_as_cpu((x, weight)[shared].detach())
            gradients = torch.autograd.grad(value.sum(), (x, weight))
            alias.fill_(9)
            for gradient, wanted in zip(gradients, expected, strict=True):
                self.assertTrue(torch.equal(gradient.cpu(), wanted), shared)

    def test_threads_change_no_bits(self):
        x, weight, bias = (t.to(DEVICE) for t in operands(257, 1000))
        before = torch.get_num_threads()
        results = []
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(
                    [*(p(x, weight, bias) for p, _ in PROGRAMS.values()), x.sum(), x.sum(0)]
                )
                torch.hologram.synchronize()
        finally:
            torch.set_num_threads(before)
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                self.assertTrue(torch.equal(a, b))

    def test_broadcasts_are_one_pass(self):
        for shape, other in (
            ((30, 40), (40,)),
            ((30, 40), (30, 1)),
            ((2, 3, 4, 5), (1, 3, 1, 1)),
            ((6, 7, 8), (6, 1, 8)),
            ((2, 3, 5, 5), (2, 1, 5, 5)),
        ):
            x, y = torch.randn(shape), torch.randn(other)
            on = [t.to(DEVICE) for t in (x, y)]
            self.assertTrue(torch.equal(((on[0] + on[1]) * on[1]).cpu(), (x + y) * y))
            self.assertEqual(passes(lambda: (on[0] + on[1]).relu() * on[1]), 1)  # noqa: B023


instantiate_parametrized_tests(TestReductions)
instantiate_parametrized_tests(TestRowPrograms)

if __name__ == "__main__":
    run_tests()
