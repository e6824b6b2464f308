"""Operators defined at run time by an expression: values, dtypes, layouts, gradients, errors."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import re
import threading

import pytest
import torch
from common import CUDA_KERNELS, DELEGATED, ROOT, HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

import torch_hologram
from torch_hologram import pointwise
from torch_hologram.custom.rows import ROWS

_numbers = itertools.count()


def define(expression: str, **options) -> torch_hologram.PointwiseOperator:
    """An operator with a name of its own."""
    return pointwise(f"test_custom_{next(_numbers)}", expression, **options)


def in_python(operator: torch_hologram.PointwiseOperator, *operands: torch.Tensor) -> torch.Tensor:
    """The same line of Python, with torch's functions."""
    names = {**vars(torch), **dict(zip(operator.operands, operands, strict=True))}
    names["truediv"] = names["div"]
    return eval(operator.expression, {}, names)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparison of every bit but those of NaN."""
    tensor = torch.where(tensor == tensor, tensor, torch.nan).contiguous().cpu()
    return tensor.view({4: torch.int32, 8: torch.int64, 2: torch.int16}[tensor.itemsize])


SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, math.inf, -math.inf, math.nan, 1e-42, 3e38, -7.25)


def of_zeros_either(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 0.0


# torch.clamp of tensors is torch's kernel: of two zeros CUDA's takes the other.
LINES = {"clamp(x, y, x + 1)": of_zeros_either} if CUDA_KERNELS else {}


def samples(dtype: torch.dtype, operands: int) -> list[torch.Tensor]:
    """Special values of each operand with special values of the next, then normal ones."""
    generator = torch.Generator().manual_seed(1)
    pairs = torch.tensor(list(itertools.product(SPECIAL, repeat=2)), dtype=torch.float64)
    columns = []
    for i in range(operands):
        normal = torch.randn(1000, dtype=torch.float64, generator=generator)
        columns.append(torch.cat([pairs.roll(i // 2, 0)[:, i % 2], 2 * normal]).to(dtype))
    return [column.to("hologram") for column in columns]


# Every row of the op table that expressions have, the operators of Python, numbers on both sides.
EXPRESSIONS = [
    "x + y",
    "x - y * 2",
    "2 - x / y",
    "1 / x + 3 / y",
    "-x + +y",
    "x ** 2 + y ** 3",
    "x ** -1 + y ** -2",
    "x ** 0.5 - y ** -0.5",
    "x ** 1.7 + 2 ** y",
    "x ** 1 + y ** 0",
    "x ** y",
    "pow(x, y) * pow(x, 2)",
    "x * sigmoid(1.702 * x)",
    "0.5 * x * (1 + erf(x / 2 ** 0.5))",
    "tanh(x) * exp(-x * x)",
    "exp2(x) - expm1(y)",
    "log(x) + log2(y) + log1p(x * x)",
    "sqrt(x) + rsqrt(y)",
    "sin(x) * cos(y)",
    "floor(x) + ceil(y) - round(x) * trunc(y)",
    "maximum(x, y) - minimum(x, y)",
    "abs(x) + relu(y) * neg(x)",
    "reciprocal(x) * reciprocal(x)",
    "clamp(x, -0.5, 2)",
    "clamp(x, y, x + 1)",
    "where(x > y, x, y * 2)",
    "where((x > 0) & (y > 0) | ~(x < y), x, y)",
    "where((x >= 0) ^ (y <= 0), x - y, x + y)",
    "where(logical_or(x == y, logical_not(x != 0.5)), x, -y)",
    "add(x, y) + sub(x, y) * mul(x, y) / div(x, y)",
    "(x > 0) * y + (x <= 0.5) * x",
    "(x + 0.1) * (3 + 1e-3 * y) - 2 ** 3",
    "x * y + z * x - y * z + where(z > x, x, y)",
]
PREDICATES = ["x > y", "(x < y) & (x > -1)", "~(x == y)", "logical_xor(x > 0, y > 0)"]


class TestValues(HologramTestCase):
    @parametrize("expression", EXPRESSIONS)
    @parametrize("dtype", [torch.float32, torch.float64])
    def test_bits_of_operation_by_operation(self, expression, dtype):
        operator = define(expression)
        operands = samples(dtype, len(operator.operands))
        result = operator(*operands)
        self.assertEqual(result.dtype, dtype)
        its = LINES.get(expression, lambda tensor: tensor)
        self.assertEqual(bits(its(result)), bits(its(in_python(operator, *operands))))

    @parametrize("expression", EXPRESSIONS)
    @parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_computed_in_float32_and_rounded_once(self, expression, dtype):
        operator = define(expression)
        operands = samples(dtype, len(operator.operands))
        result = operator(*operands)
        wanted = in_python(operator, *(operand.float() for operand in operands)).to(dtype)
        self.assertEqual(result.dtype, dtype)
        its = LINES.get(expression, lambda tensor: tensor)
        self.assertEqual(bits(its(result)), bits(its(wanted)))

    @parametrize("expression", PREDICATES)
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
    def test_comparisons_make_bools(self, expression, dtype):
        operator = define(expression)
        x, y = (operand.nan_to_num(0, 9, -9).to(dtype) for operand in samples(torch.float32, 2))
        self.assertEqual(operator(x, y).dtype, torch.bool)
        self.assertEqual(operator(x, y).cpu(), in_python(operator, x, y).cpu())
        self.assertFalse(operator(x.float().requires_grad_(), y.float()).requires_grad)

    @parametrize("device", ["hologram", "cpu", "meta"])
    @parametrize(
        "dtypes",
        list(
            itertools.product(
                [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool],
                [torch.float64, torch.float16, torch.int32, torch.complex64],
            )
        ),
        name_fn=lambda d: "_".join(str(t)[6:] for t in d),
    )
    def test_type_promotion(self, device, dtypes):
        operator = define("x * y + 2 * x")
        x = torch.arange(6, device=device).to(dtypes[0])
        for shape in ((6,), ()):
            y = torch.full(shape, 3, device=device).to(dtypes[1])
            try:
                wanted = in_python(operator, x, y)
            except NotImplementedError as error:  # complex bfloat16, which torch 2.14 has by name
                with self.assertRaisesRegex(NotImplementedError, re.escape(str(error))):
                    operator(x, y)
                continue
            result = operator(x, y)
            self.assertEqual(result.dtype, wanted.dtype)
            if device != "meta":
                self.assertEqual(result.cpu(), wanted.cpu())

    def test_integers_promote_operation_by_operation(self):
        x = torch.tensor([1, 2, 4], device="hologram")
        self.assertEqual(define("x * 2 + x ** 2")(x).cpu(), torch.tensor([3, 8, 24]))
        self.assertEqual(define("x * 0.5")(x).cpu(), torch.tensor([0.5, 1, 2]))
        self.assertEqual(define("1 / x")(x).cpu(), torch.tensor([1, 0.5, 0.25]))
        self.assertEqual(define("where(x > 1, x, 0)")(x).cpu(), torch.tensor([0, 2, 4]))
        self.assertEqual(define("maximum(x, 2)")(x).cpu(), torch.tensor([2, 2, 4]))
        self.assertEqual(define("(x > 1) * 3")(x).cpu(), torch.tensor([0, 3, 3]))

    def test_a_bool_operand_as_a_condition(self):
        operator = define("where(mask & (x > 0), x, -1)")
        x = torch.tensor([1.0, -1.0, 2.0], device="hologram")
        mask = torch.tensor([True, True, False], device="hologram")
        self.assertEqual(operator(mask, x).cpu(), torch.tensor([1.0, -1.0, -1.0]))
        self.assertEqual(operator(mask.cpu(), x.cpu()), torch.tensor([1.0, -1.0, -1.0]))
        # A condition with a value of its own.
        both = define("where(mask, x, mask * 7)")
        self.assertEqual(both(mask, x).cpu(), torch.tensor([1.0, -1.0, 0.0]))
        with self.assertRaisesRegex(RuntimeError, "condition to be a boolean tensor"):
            define("where(mask, x, 0)")(x, x)

    def test_layouts(self):
        operator = define("(a - b) * c + sigmoid(a)")
        base = torch.randn(4, 6, 5, device="hologram")
        forms = {
            "dense": base,
            "transposed": torch.randn(5, 6, 4, device="hologram").permute(2, 1, 0),
            "sliced": torch.randn(8, 6, 10, device="hologram")[::2, :, 1::2],
            "expanded": torch.randn(1, 6, 1, device="hologram").expand(4, 6, 5),
            "row": torch.randn(5, device="hologram"),
            "column": torch.randn(6, 1, device="hologram"),
            "number": torch.randn((), device="hologram"),
            "cpu number": torch.tensor(0.3),
        }
        for names in itertools.product(forms, repeat=3):
            operands = [forms[name] for name in names]
            if all(operand.is_cpu for operand in operands):
                continue
            with self.subTest(names=names):
                result = operator(*operands)
                self.assertEqual(bits(result), bits(in_python(operator, *operands)))

    def test_empty_and_without_dimensions(self):
        operator = define("x * y + 1")
        empty = torch.empty(0, 3, device="hologram")
        self.assertEqual(operator(empty, torch.ones(3, device="hologram")).shape, (0, 3))
        zero = torch.tensor(2.0, device="hologram")
        self.assertEqual(operator(zero, zero).item(), 5.0)
        self.assertEqual(operator(zero, zero).shape, ())

    def test_many_operands(self):
        names = [f"a{i}" for i in range(12)]
        operator = define(" + ".join(names))
        operands = [torch.randn(5, device="hologram") for _ in names]
        self.assertEqual(bits(operator(*operands)), bits(in_python(operator, *operands)))
        operands[3].requires_grad_()
        operator(*operands).sum().backward()
        self.assertEqual(operands[3].grad.cpu(), torch.ones(5))

    @pytest.mark.host_memory
    def test_memory_that_a_cpu_tensor_sees(self):
        operator = define("x * 2 + 1")
        x = torch.arange(3.0, device="hologram")
        array = torch.hologram.alias_as_cpu(x)
        self.assertEqual(operator(x).cpu(), torch.tensor([1.0, 3.0, 5.0]))
        array[0] = 5
        self.assertEqual(operator(x)[0].item(), 11.0)

    def test_autocast_leaves_it_alone(self):
        operator = define("exp(x) * y")
        for device in ("hologram", "cpu"):
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.ones(3, device=device, dtype=dtype)
                with torch.autocast(device, dtype=torch.bfloat16):
                    result = operator(x, x)
                self.assertEqual(result.dtype, dtype)
                self.assertEqual(result.cpu(), torch.exp(x).cpu())


instantiate_parametrized_tests(TestValues)


class TestRecording(HologramTestCase):
    def test_it_fuses_with_its_neighbours(self):
        operator = define("x * sigmoid(beta * x)")
        x = torch.randn(1000, device="hologram")
        beta = torch.tensor(1.5, device="hologram")
        plain = torch.hologram.explain(lambda: ((x + 1) * torch.sigmoid(beta * (x + 1))).relu())
        ours = torch.hologram.explain(lambda: operator(x + 1, beta).relu())
        self.assertEqual(bits(ours.result), bits(plain.result))
        self.assertEqual((ours.passes, ours.instructions), (1, 5))
        self.assertEqual(ours.bytes_moved, 4000 + 4 + 4000)
        self.assertIn("test_custom.py", ours.text())

    def test_its_gradients_fuse(self):
        operator = define("x * sigmoid(x)")
        x = torch.randn(1000, device="hologram", requires_grad=True)
        grad = torch.randn(1000, device="hologram")
        operator(x).sum().backward()  # defines the operator of the gradient
        torch.hologram.flush()
        explained = torch.hologram.explain(
            lambda: torch.autograd.grad(operator(x * 2) * 3, x, grad)[0]
        )
        self.assertEqual((len(explained.flushes), explained.passes), (1, 1))
        self.assertIn("# " + operator.name.split("::")[1] + "Backward", explained.text())

    def test_nothing_flushes(self):
        operator = define("x + 1")
        x = torch.zeros(10, device="hologram")
        torch.hologram.reset_stream_stats()
        for _ in range(10):
            x = operator(x)
        self.assertEqual(torch.hologram.stream_stats()["recorded"], 10)
        self.assertEqual(torch.hologram.stream_stats()["executed"], 0)
        self.assertEqual(x.cpu(), torch.full((10,), 10.0))
        self.assertEqual(torch.hologram.stream_stats()["passes"], 1)

    def test_reported_as_native(self):
        operator = define("x + 1")
        torch.hologram.reset_fallback_report()
        operator(torch.zeros(10, device="hologram"))
        self.assertIn(operator.name, str(torch.hologram.fallback_report()))
        self.assertFalse([r for r in torch.hologram.fallback_report() if r.kind == DELEGATED])


SMOOTH = [
    "x * sigmoid(y * x)",
    "x / y - y / x",
    "2 / x + 3 - y",
    "exp(-x * x) + expm1(y) * exp2(x)",
    "log(x * x + 1) + log2(y * y + 2) - log1p(x * x)",
    "sqrt(x * x + 1) * rsqrt(y * y + 1)",
    "tanh(x) * erf(y)",
    "sin(x) * cos(y) - -x",
    "x ** 2 + y ** 3 - x ** -1 + 1.5 ** y",
    "(x * x + 1) ** y",
    "reciprocal(x) * y",
    "abs(x) + relu(y)",
    "maximum(x, y) * minimum(x, 2 * y)",
    "where(x > y, x * y, x - y)",
    "clamp(x, -0.5, 0.5) * clamp(y, x - 1, x + 1)",
    "x + floor(y) + trunc(y)",
    "(x > 0) * y * x",
    "x - y + 1",
]


class TestGradients(HologramTestCase):
    @parametrize("expression", SMOOTH)
    def test_derived(self, expression):
        operator = define(expression)
        x, y = (
            torch.tensor(values, dtype=torch.float64, device="hologram", requires_grad=True)
            for values in ([0.3, -1.2, 2.6, -0.7], [0.8, 1.4, -0.3, -1.9])
        )
        torch.autograd.gradcheck(operator, (x, y), check_forward_ad=True)
        torch.autograd.gradgradcheck(operator, (x, y))

    @parametrize("expression", SMOOTH)
    def test_as_torch_derives_them(self, expression):
        operator = define(expression)
        ours = [s.requires_grad_() for s in samples(torch.float32, 2)]
        theirs = [s.detach().clone().requires_grad_() for s in ours]
        grad = torch.randn(ours[0].shape, device="hologram")
        for a, b in zip(
            torch.autograd.grad(operator(*ours), ours, grad),
            torch.autograd.grad(in_python(operator, *theirs), theirs, grad, materialize_grads=True),
            strict=True,
        ):
            normal = slice(len(SPECIAL) ** 2, None)
            self.assertEqual(a[normal].cpu(), b[normal].cpu())

    def test_at_the_corners_as_torch(self):
        corners = torch.tensor([0.0, -0.0, 1.0, -1.0, math.nan, math.inf], device="hologram")
        x = corners.repeat(6).requires_grad_()
        y = corners.repeat_interleave(6).requires_grad_()
        expressions = "abs(x) relu(x) maximum(x,y) minimum(x,y) clamp(x,-1,1) clamp(x,y,1) x**y"
        for expression in [*expressions.split(), "where(x>y,x,y)", "x**0*y", "2**x", "0**x"]:
            operator = define(expression)
            operands = (x, y)[: len(operator.operands)]
            if expression == "clamp(x,y,1)":
                wanted = torch.clamp(x, y, torch.tensor(1.0, device="hologram"))
            else:
                wanted = in_python(operator, *operands)
            for a, b in zip(
                torch.autograd.grad(operator(*operands).sum(), operands),
                torch.autograd.grad(wanted.sum(), operands, materialize_grads=True),
                strict=True,
            ):
                self.assertEqual(a.cpu(), b.cpu(), msg=expression)

    def test_longer_than_a_window(self):
        """Derivatives of thousands of operations, recorded in parts."""
        function = define("x" + "*x" * 480)
        x = torch.tensor([1.0, -1.0, 0.5, 0.999, 1.0009765625], dtype=torch.float64)
        results = []
        for device in ("cpu", "hologram"):
            value = start = x.to(device).requires_grad_()
            value = function(value)
            for _ in range(4):
                (value,) = torch.autograd.grad(value.sum(), start, create_graph=True)
            results.append(value.detach().cpu())
        self.assertEqual(bits(results[1]), bits(results[0]))
        exact = math.prod(range(478, 482)) * x**477
        self.assertEqual(results[1], exact, rtol=1e-9, atol=0)

    def test_given(self):
        # A straight-through estimator: the derivative is not that of the expression.
        round_through = define("round(x)", derivative="1")
        x = torch.tensor([0.4, 1.6], device="hologram", requires_grad=True)
        grad = torch.tensor([3.0, 5.0], device="hologram")
        self.assertEqual(torch.autograd.grad(round_through(x), x, grad)[0].cpu(), grad.cpu())
        for derivative in (("y", "2 * x"), {"x": "y", "y": "2 * x"}):
            operator = define("x * y", derivative=derivative)
            y = torch.tensor([2.0, 3.0], device="hologram", requires_grad=True)
            gx, gy = torch.autograd.grad(operator(x, y), (x, y), grad)
            self.assertEqual(gx.cpu(), torch.tensor([6.0, 15.0]))
            self.assertEqual(gy.cpu(), torch.tensor([3 * 0.8, 5 * 3.2]))
        cube = define("x * x * x", derivative="3 * x ** 2")
        z = torch.tensor([0.5, -2.0], dtype=torch.float64, device="hologram", requires_grad=True)
        torch.autograd.gradcheck(cube, (z,), check_forward_ad=True)
        torch.autograd.gradgradcheck(cube, (z,))
        zero = define("x * 2", derivative="0")
        self.assertEqual(torch.autograd.grad(zero(x).sum(), x)[0].cpu(), torch.zeros(2))
        masked = define("where(m, x, 0)", derivative={"x": "where(m, 1, 0)"})
        mask = torch.tensor([True, False], device="hologram")
        self.assertEqual(
            torch.autograd.grad(masked(mask, x).sum(), x)[0].cpu(), torch.tensor([1.0, 0.0])
        )

    @parametrize("device", ["hologram", "cpu"])
    def test_broadcast_and_mixed_dtypes(self, device):
        operator = define("x * y + z")
        x = torch.randn(3, 1, device=device, requires_grad=True)
        y = torch.randn(4, device=device, dtype=torch.bfloat16, requires_grad=True)
        z = torch.randn((), device=device, dtype=torch.float64, requires_grad=True)
        result = operator(x, y, z)
        result.sum().backward()
        self.assertEqual((result.shape, result.dtype), ((3, 4), torch.float32))
        for operand in (x, y, z):
            self.assertEqual(operand.grad.shape, operand.shape)
            self.assertEqual(operand.grad.dtype, operand.dtype)
        self.assertEqual(z.grad.item(), 12.0)
        self.assertEqual(x.grad, y.detach().float().sum().expand(3, 1))

    def test_complex_operands(self):
        operator = define("x * y + sin(x)")
        x = torch.randn(4, dtype=torch.complex128, device="hologram", requires_grad=True)
        torch.autograd.gradcheck(operator, (x, x.detach() * 2))

    def test_no_grad_modes(self):
        operator = define("x * x")
        x = torch.ones(3, device="hologram", requires_grad=True)
        with torch.no_grad():
            self.assertFalse(operator(x).requires_grad)
        with torch.inference_mode():
            self.assertEqual(operator(x).cpu(), torch.ones(3))
        result = operator(x).sum()
        result.backward()
        with self.assertRaisesRegex(RuntimeError, "backward through the graph a second time"):
            result.backward()

    def test_a_saved_operand_that_was_written(self):
        operator = define("x * x")
        x = torch.ones(3, device="hologram", requires_grad=True) * 1
        result = operator(x).sum()
        x.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            result.backward()
        # Nothing is saved that no gradient needs.
        y = torch.ones(3, device="hologram", requires_grad=True) * 1
        result = define("2 * x + 1")(y).sum()
        y.add_(1)
        result.backward()


instantiate_parametrized_tests(TestGradients)


class TestTorch(HologramTestCase):
    def test_opcheck(self):
        operator = define("x * sigmoid(y) + where(x > y, x, 0.5)")
        for device in ("hologram", "cpu"):
            x = torch.randn(2, 3, device=device, requires_grad=True)
            y = torch.randn(3, device=device, requires_grad=True)
            tests = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
            if device == "cpu":
                tests.append("test_autograd_registration")  # which knows CPU and CUDA only
            torch.library.opcheck(operator.op, (x, y), test_utils=tests)

    def test_it_is_an_operator_of_torch(self):
        operator = pointwise("test_custom_lib::named", "x + 1")
        self.assertIs(operator.op, torch.ops.test_custom_lib.named.default)
        self.assertIn(torch.Tag.pointwise, operator.op.tags)
        x = torch.zeros(2, device="hologram")
        self.assertEqual(torch.ops.test_custom_lib.named(x=x).cpu(), torch.ones(2))
        short = define("x + 1")
        name = short.name.removeprefix("hologram_custom::")
        self.assertIs(getattr(torch.ops.hologram_custom, name).default, short.op)

    def test_compile(self):
        operator = define("x * sigmoid(beta * x)")

        def loss(x, beta):
            return operator(x * 2, beta).relu().sum()

        for backend in ("hologram", "aot_eager", "eager"):
            compiled = torch.compile(loss, backend=backend, fullgraph=True, dynamic=True)
            for n in (5, 9):
                x = torch.randn(n, device="hologram", requires_grad=True)
                beta = torch.randn((), device="hologram", requires_grad=True)
                wanted = torch.autograd.grad(loss(x, beta), (x, beta))
                for a, b in zip(
                    torch.autograd.grad(compiled(x, beta), (x, beta)), wanted, strict=True
                ):
                    self.assertEqual(a.cpu(), b.cpu())

    def test_functional_transforms(self):
        operator = define("x * x * y")
        x = torch.randn(4, 3, device="hologram")
        y = torch.randn(4, device="hologram")
        self.assertEqual(torch.vmap(operator)(x, y).cpu(), (x * x * y[:, None]).cpu())
        self.assertEqual(
            torch.vmap(operator, in_dims=(1, None), out_dims=1)(x, y).cpu(),
            (x * x * y[:, None]).cpu(),
        )
        gradient = torch.func.vmap(torch.func.grad(lambda a, b: operator(a, b).sum()))
        self.assertEqual(gradient(x, y).cpu(), (2 * x * y[:, None]).cpu())
        _, tangent = torch.func.jvp(operator, (x, x), (torch.ones_like(x), torch.zeros_like(x)))
        self.assertEqual(tangent.cpu(), (2 * x * x).cpu())
        hessian = torch.func.hessian(lambda a: operator(a, a).sum())(x[0])
        self.assertEqual(hessian.cpu(), torch.diag(6 * x[0]).cpu())
        # The dtype is that without vmap, where y has no dimensions.
        self.assertEqual(torch.vmap(operator)(x, y.double()).dtype, torch.float32)

    def test_pickle(self):
        operator = define("x * 2 + y", derivative=("2", "1"))
        self.assertIs(pickle.loads(pickle.dumps(operator)), operator)
        self.assertIs(copy.deepcopy(operator), operator)
        module = torch.nn.Linear(2, 2)
        module.activation = operator
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        self.assertIs(torch.load(file, weights_only=False).activation, operator)
        run_python(
            """
            import pickle, sys, torch
            operator = pickle.loads(bytes.fromhex(sys.argv[1]))
            x = torch.ones(2, device="hologram")
            assert operator(x, x).tolist() == [3.0, 3.0]
            assert pickle.loads(bytes.fromhex(sys.argv[1])) is operator
            """,
            pickle.dumps(operator).hex(),
        )
        run_python(
            """
            import pickle, sys, torch_hologram
            torch_hologram.pointwise(sys.argv[2], "x + y")
            try:
                pickle.loads(bytes.fromhex(sys.argv[1]))
            except ValueError as error:
                assert "is defined otherwise here" in str(error), error
            else:
                raise AssertionError("loaded")
            """,
            pickle.dumps(operator).hex(),
            operator.name,
        )

    def test_import_is_lazy(self):
        run_python(
            """
            import sys, torch, torch_hologram
            assert "torch_hologram.custom" not in sys.modules
            torch_hologram.pointwise
            assert "torch_hologram.custom" in sys.modules
            """
        )

    def test_threads_define_and_call(self):
        errors: list[BaseException] = []
        made: list[torch_hologram.PointwiseOperator] = []
        shared = define("x * tanh(x)")  # its gradient is defined by whoever is first
        start = threading.Barrier(4)
        names = [f"test_custom_contested_{i}" for i in range(8)]

        def work(index: int) -> None:
            try:
                start.wait()
                for name in names:
                    made.append(pointwise(name, f"x * {index} + exp(x)"))
                x = torch.full((8,), 0.5, device="hologram", requires_grad=True)
                shared(x).sum().backward()
                wanted = math.tanh(0.5) + 0.5 * (1 - math.tanh(0.5) ** 2)
                torch.testing.assert_close(x.grad.cpu(), torch.full((8,), wanted))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            raise error
        self.assertEqual(sorted(o.name.split("::")[1] for o in made), sorted(4 * names))
        x = torch.ones(3, device="hologram")
        for operator in made:
            self.assertEqual(bits(operator(x)), bits(in_python(operator, x)))

    def test_threads_define_while_garbage_is_collected(self):
        """CPython's ast.parse fails at times where a finalizer lets another thread parse."""
        run_python(
            """
            import ast, gc, sys, threading, torch
            from torch_hologram import pointwise

            class Garbage:
                def __init__(self):
                    self.me = self
                def __del__(self):
                    for _ in range(200):
                        pass

            sys.setswitchinterval(1e-5)
            gc.set_threshold(50)
            errors = []
            done = threading.Event()

            def define(index):
                try:
                    for i in range(60):
                        Garbage()
                        pointwise(f"threads_{index}_{i}", "x * 3 + exp(x) - (y * 2 + z)")
                except BaseException as error:
                    errors.append(error)

            def parse():  # as other libraries do
                while not done.is_set():
                    Garbage()
                    try:
                        ast.parse("x * 3 + exp(x) - (y * 2 + z)")
                    except SystemError:
                        pass

            definers = [threading.Thread(target=define, args=(i,)) for i in range(3)]
            other = threading.Thread(target=parse)
            for thread in (other, *definers):
                thread.start()
            for thread in definers:
                thread.join()
            done.set()
            other.join()
            for error in errors:
                raise error
            """
        )


class TestDocs(HologramTestCase):
    def test_every_function_is_named(self):
        text = (ROOT / "docs" / "custom-operators.md").read_text()
        named = re.search(r"of the same name: `(.*?)`", text, re.DOTALL)[1].split()
        self.assertEqual(named, sorted(ROWS))


class TestAgain(HologramTestCase):
    """A name that is defined twice, as by a cell of a notebook."""

    def test_the_same_definition(self):
        first = pointwise("test_custom_again", "x * sigmoid(x)")
        self.assertIs(pointwise("test_custom_again", "x * sigmoid(x)"), first)
        self.assertIs(pointwise("hologram_custom::test_custom_again", "x * sigmoid(x)"), first)

    def test_another_definition(self):
        name = "test_custom_edited"
        x = torch.linspace(-1, 1, 9, device="hologram", requires_grad=True)
        first = pointwise(name, "x * 2")
        kept = first(x)
        second = pointwise(name, "x * x * y")
        third = pointwise(name, "x * x * y", derivative={"x": "x * 7", "y": "0"})
        self.assertEqual([one.name for one in (first, second, third)], [first.name] * 3)
        self.assertIs(torch.ops.hologram_custom.test_custom_edited.default, third.op)
        y = torch.full((9,), 3.0, device="hologram")
        self.assertEqual(bits(second(x, y)), bits(x * x * y))
        self.assertEqual(bits(first(x)), bits(x * 2))
        for result, gradient in (
            (kept, torch.full_like(x, 2.0)),
            (second(x, y), 2 * x * y),
            (third(x, y), 7 * x),
        ):
            (got,) = torch.autograd.grad(result.sum(), x)
            self.assertEqual(got, gradient.detach())
        torch.library.opcheck(second.op, (torch.randn(3), torch.randn(3)))
        # The first definition again is a definition like any other.
        self.assertEqual(bits(pointwise(name, "x * 2")(x)), bits(x * 2))
        with self.assertRaisesRegex(ValueError, "defined otherwise here"):
            pickle.loads(pickle.dumps(third))


class TestErrors(HologramTestCase):
    def test_expressions(self):
        for expression, text in (
            ("x *", r"of bad: invalid syntax, .* not complete \(column 4\)\n  x \*\n     \^"),
            ("x +* 2", r"of bad: invalid syntax \(column 4\)\n  x \+\* 2\n     \^"),
            ("x * (x", r"never closed \(column 5\)"),
            ("(x +\n1) 2", r"line \d, column \d"),
            ("", "invalid syntax"),
            ("x * expp(x)", r"unknown function 'expp': did you mean exp\? \(column 5\)"),
            ("max(x, 0)", r"unknown function 'max': did you mean maximum\? \(column 1\)"),
            ("min(x, 0)", "did you mean minimum"),
            ("ln(x)", "did you mean log"),
            ("clip(x, 0, 1)", "did you mean clamp"),
            ("qqq(x)", r"unknown function 'qqq': there are abs, .*tanh.* \(column 1\)"),
            ("pi * x", rf"'pi' would be an operand: write the number {math.pi}, or"),
            ("fma(x, x, x)", "unknown function 'fma'"),
            ("__import__('os')", "unknown function '__import__'"),
            ("x.sin()", r"calls have no dots: write sin\(x\)"),
            ("2 * (x + 1).pow(2)", r"write pow\(x \+ 1, 2\) \(column 5\)"),
            ("torch.sin(x)", r"calls have no dots: write sin\(x\)"),
            ("x.max(0)", r"write maximum\(x, 0\)"),
            ("f(x)(x)", "Call is not supported"),
            ("x.real + 1", "Attribute is not supported"),
            ("x[0] + 1", "Subscript is not supported"),
            ("x @ x", "MatMult is not supported"),
            ("x // 2", "FloorDiv is not supported"),
            ("lambda x: x", "Lambda is not supported"),
            ("(y := x)", "NamedExpr is not supported"),
            ("x if x else 1", "write where"),
            ("x > 0 and x < 1", "write &"),
            ("not x", "write &"),
            ("0 < x < 1", "chain of comparisons"),
            ("exp(x, x)", r"exp\(\) takes 1 operand, not 2"),
            ("where(x > 0, x)", r"where\(\) takes 3 operands, not 2"),
            ("clamp(x, 0, max=1)", "by position"),
            ("maximum(*x)", "by position"),
            ("exp + 1", "'exp' is a function"),
            ("x + 'a'", "'a' is no number"),
            ("x + True", "True is no number"),
            ("x + 1j", "1j is no number"),
            ("x + 1" + "0" * 400, "too large"),
            ("x + 1 / 0", "div of numbers: division by zero"),
            ("x + (-1) ** 0.5", "no real number"),
            ("where(x * 2, x, 1)", "where needs a condition"),
            ("~(x + 1) * x", "logical_not needs a condition"),
            ("(x > 0) & (x * 2)", "logical_and needs a condition"),
            ("where(1 > 0, x, 1)", "of numbers alone"),
            ("1 + 2", "no operand in '1 \\+ 2'"),
            ("x", "no operation in 'x'"),
            ("é + 1", "not in ASCII"),
            ("-" * 5000 + "x", "nested too deeply|too many nested|too complex"),
            (" + ".join(f"x ** {i}.5" for i in range(600)), "at most 512 operations|nested"),
        ):
            with self.subTest(expression=expression[:40]):
                with self.assertRaisesRegex(ValueError, text):
                    pointwise("bad", expression)
        with self.assertRaisesRegex(TypeError, "expression of bad must be a string, not int"):
            pointwise("bad", 1)
        self.assertFalse(hasattr(torch.ops.hologram_custom, "bad"))

    def test_the_place_is_shown(self):
        with self.assertRaises(ValueError) as caught:
            pointwise("bad", "x * expp(x)")
        *_, line, caret = str(caught.exception).splitlines()
        self.assertEqual(caret.index("^"), line.index("expp"))

    def test_names(self):
        for name in ("", "1x", "a b", "a-b", "for", "a::", "::a", "a::b::c", "a.b", "é"):
            with self.assertRaisesRegex(ValueError, "is no name of an operator"):
                pointwise(name, "x + 1")
        with self.assertRaisesRegex(TypeError, "must be a string, not int"):
            pointwise(3, "x + 1")
        first = define("x + 1")
        for name in ("aten::add", "hologram::sync"):
            with self.assertRaisesRegex(ValueError, "there is an operator .* already"):
                pointwise(name, "x + 2")
        x = torch.zeros(2, device="hologram")
        self.assertEqual(first(x).cpu(), torch.ones(2))
        product = pointwise("test_custom_area", "pi * x * x", operands=("pi", "x"))
        self.assertEqual(product.operands, ("pi", "x"))

    def test_operands(self):
        with self.assertRaisesRegex(ValueError, "unknown operand 'y': the operands are x, z"):
            pointwise("bad", "x + y + z", operands=("x", "z"))
        with self.assertRaisesRegex(ValueError, "the operand 'z' is not used in 'x \\+ y'"):
            pointwise("bad", "x + y", operands=("x", "y", "z"))
        with self.assertRaisesRegex(ValueError, "the operand 'x' is named twice"):
            pointwise("bad", "x + y", operands=("x", "y", "x"))
        for name in ("exp", "1x", "if", "é"):
            with self.assertRaisesRegex(ValueError, f"'{name}' cannot be the name of an operand"):
                pointwise("bad", "x + 1", operands=("x", name))
        with self.assertRaisesRegex(TypeError, "operands must be a sequence of strings, not str"):
            pointwise("bad", "x + 1", operands="x")
        swapped = define("x - y", operands=("y", "x"))
        one, two = (torch.tensor(v, device="hologram") for v in (1.0, 2.0))
        self.assertEqual(swapped(one, two).item(), 1.0)
        self.assertEqual(swapped(x=one, y=two).item(), -1.0)

    def test_derivatives(self):
        for expression, derivative, text in (
            ("x * y", "y", r"one derivative for 2 operands \(x, y\)"),
            ("x * y", ("y",), r"1 derivatives for 2 operands \(x, y\)"),
            ("x * 2", ("2", "2"), r"2 derivatives for 1 operand \(x\)"),
            ("x * y", {"x": "y"}, "no derivative for the operand 'y'"),
            ("x * 2", {"x": "2", "w": "1"}, "a derivative for 'w', but the operands are x"),
            ("x * 2", "w", "derivative for x: unknown operand 'w': the operands are x"),
            ("x * 2", "grad", "unknown operand 'grad'"),
            ("x * 2", "2 *", "derivative for x: .*invalid syntax"),
            ("x > 2", "0", "the result is bool, which has no derivative"),
        ):
            with self.subTest(expression=expression, derivative=derivative):
                with self.assertRaisesRegex(ValueError, text):
                    pointwise("bad", expression, derivative=derivative)
        with self.assertRaisesRegex(TypeError, "derivative must be a string, .* not int"):
            pointwise("bad", "x * 2", derivative=2)
        with self.assertRaisesRegex(TypeError, "derivative for x must be a string, not int"):
            pointwise("bad", "x * 2", derivative=[2])

    def test_calls(self):
        operator = pointwise("test_custom_called", "x * y")
        x = torch.ones(2, 3, device="hologram")
        for call, text in (
            (lambda: operator(x), r"test_custom_called\(x, y\) is missing the operand 'y'"),
            (lambda: operator(x, x, x), "takes 2 operands, but 3 were given"),
            (lambda: operator(x, z=x), "has no operand 'z'"),
            (lambda: operator(x, x=x), "got the operand 'x' twice"),
            (lambda: operator(x, 2.0), "y must be a tensor, not float"),
            (lambda: operator(x, None), "y must be a tensor, not NoneType"),
        ):
            with self.assertRaisesRegex(TypeError, text):
                call()
        with self.assertRaisesRegex(RuntimeError, r"size of tensor a \(3\) must match"):
            operator(x, torch.ones(4, device="hologram"))
        with self.assertRaisesRegex(RuntimeError, "Expected all tensors to be on the same device"):
            operator(x, torch.ones(3))
        self.assertEqual(operator(x, x).cpu(), torch.ones(2, 3))


if __name__ == "__main__":
    run_tests()
