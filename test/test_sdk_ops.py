"""The SDK's operations on flat buffers: values against torch's on the CPU, lengths, misuse."""

from __future__ import annotations

import inspect
import math
import re

import numpy as np
import pytest
import torch
from common import BACKEND, BACKENDS, CUDA_KERNELS, ROOT, HologramTestCase, run_python
from torch.nn import functional as F
from torch.testing._internal.common_utils import run_tests

import torch_hologram as hg

ops = hg.ops

SIZES = (0, 1, 7, 16, 1000, 40007)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.4e38, -3.4e38, 1.0, -1.0]

# What torch says on the CPU, of the operands and the numbers after them.
ELEMENTWISE = {
    "vector_add": (2, (), torch.add),
    "vector_sub": (2, (), torch.sub),
    "vector_mul": (2, (), torch.mul),
    "vector_div": (2, (), torch.div),
    "vector_min": (2, (), torch.minimum),
    "vector_max": (2, (), torch.maximum),
    "vector_abs": (1, (), torch.abs),
    "vector_neg": (1, (), torch.neg),
    "vector_relu": (1, (), torch.relu),
    "vector_clip": (1, (-0.5, 0.75), torch.clamp),
    "scalar_add": (1, (0.1,), torch.add),
    "scalar_mul": (1, (-2.5,), torch.mul),
    "sqrt": (1, (), torch.sqrt),
    "exp": (1, (), torch.exp),
    "log": (1, (), torch.log),
    "sigmoid": (1, (), torch.sigmoid),
    "tanh": (1, (), torch.tanh),
    "gelu": (1, (), lambda x: F.gelu(x, approximate="tanh")),
    "softmax": (1, (), lambda x: torch.softmax(x, 0)),
    "mad": (3, (), lambda a, b, c: torch.add(torch.mul(a, b), c)),
    "memcpy": (1, (), torch.clone),
}
INTEGERS = {
    "vector_add_i32": torch.add,
    "vector_sub_i32": torch.sub,
    "vector_mul_i32": torch.mul,
}
REDUCTIONS = {"reduce_sum": torch.sum, "reduce_min": torch.amin, "reduce_max": torch.amax}
LOSSES = {
    "mse_loss": F.mse_loss,
    "cross_entropy_loss": lambda p, t: -(t * p.log().clamp(min=-100)).mean(),
    "binary_cross_entropy_loss": F.binary_cross_entropy,
}
OTHERS = {"fill", "gemm", "matvec", "vector_div_i32"}


# The device computes these by itself, like the CPU within torch's tolerance.
OWN_MATH = {"exp", "gelu", "log", "sigmoid", "softmax", "sqrt", "tanh"}
# Sums are made in an order of their own: torch's tolerance of float32.
SUMS = {"rtol": 1.3e-6, "atol": 1e-5}


class OpsTestCase(HologramTestCase):
    def setUp(self):
        super().setUp()
        self.executor = hg.Executor(BACKEND)
        self.random = np.random.default_rng(1)

    def tearDown(self):
        self.executor.close()
        super().tearDown()

    def buffer(self, array):
        buffer = self.executor.allocate(array.size, array.dtype)
        buffer.from_numpy(array)
        return buffer

    def normal(self, n):
        return self.random.standard_normal(n).astype(np.float32)

    def empty(self, n, dtype="float32"):
        """A result, of elements that nothing computes."""
        return self.buffer(np.full(n, 77, dtype))

    def assert_bits(self, got, expected):
        if isinstance(expected, torch.Tensor):
            expected = expected.numpy()
        self.assertEqual(got.dtype, expected.dtype)
        if got.dtype == np.float32:  # NaNs have no sign
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
            got, expected = (
                np.nan_to_num(x, nan=0, posinf=np.inf, neginf=-np.inf) for x in (got, expected)
            )
        if got.tobytes() != expected.tobytes():  # assertEqual would take each byte for itself
            raise AssertionError(f"{got} is not {expected}")

    def assert_result(self, name, buffer, arrays, numbers=(), n=None):
        """A buffer has what torch's operator gives: on the CPU, or of OWN_MATH on the device."""
        reference = ELEMENTWISE[name][2]
        inputs = [torch.from_numpy(array) for array in arrays]
        expected = reference(*inputs, *numbers)
        got = buffer.to_numpy()[:n]
        if name in OWN_MATH:
            self.assertEqual(torch.from_numpy(got), expected)
            expected = reference(*(x.to("hologram") for x in inputs), *numbers).cpu()
        self.assert_bits(got, expected)


class TestValues(OpsTestCase):
    def test_every_operation_is_here(self):
        tested = {*ELEMENTWISE, *INTEGERS, *REDUCTIONS, *LOSSES, *OTHERS}
        self.assertEqual(tested, set(ops.BUFFERS))
        self.assertEqual(set(ops.__all__), {"BUFFERS", *ops.BUFFERS})

    def test_elementwise(self):
        for name, (count, numbers, _) in ELEMENTWISE.items():
            for n in SIZES:
                arrays = [self.normal(n) for _ in range(count)]
                result = self.empty(n)
                inputs = [self.buffer(array) for array in arrays]
                with self.subTest(name=name, n=n):
                    self.assertIsNone(getattr(ops, name)(self.executor, *inputs, result, *numbers))
                    self.assert_result(name, result, arrays, numbers)
                    for buffer, array in zip(inputs, arrays, strict=True):
                        self.assert_bits(buffer.to_numpy(), array)

    def test_special_values(self):
        pairs = np.array([(x, y) for x in SPECIAL for y in SPECIAL], np.float32)
        for name, (count, numbers, _) in ELEMENTWISE.items():
            arrays = [np.ascontiguousarray(pairs[:, i % 2]) for i in range(count)]
            result = self.empty(len(pairs))
            with self.subTest(name=name):
                getattr(ops, name)(self.executor, *map(self.buffer, arrays), result, *numbers)
                self.assert_result(name, result, arrays, numbers)

    def test_nan(self):
        a = self.buffer(np.array([math.nan, 1.0, math.nan], np.float32))
        b = self.buffer(np.array([1.0, math.nan, math.nan], np.float32))
        c = self.empty(3)
        for name in ("vector_min", "vector_max"):
            getattr(ops, name)(self.executor, a, b, c)
            self.assertTrue(np.isnan(c.to_numpy()).all())
        ops.vector_relu(self.executor, a, c)
        self.assertEqual(np.isnan(c.to_numpy()).tolist(), [True, False, True])

    def test_result_is_an_operand(self):
        for name, (count, numbers, _) in ELEMENTWISE.items():
            for position in range(count):
                arrays = [self.normal(100) for _ in range(count)]
                inputs = [self.buffer(array) for array in arrays]
                with self.subTest(name=name, position=position):
                    operation = getattr(ops, name)
                    operation(self.executor, *inputs, inputs[position], *numbers)
                    self.assert_result(name, inputs[position], arrays, numbers)

    def test_n(self):
        for name, (count, numbers, _) in ELEMENTWISE.items():
            arrays = [self.normal(20 + i) for i in range(count)]
            for n in (0, 5, np.int64(20)):
                result = self.empty(30)
                inputs = [self.buffer(array) for array in arrays]
                with self.subTest(name=name, n=n):
                    getattr(ops, name)(self.executor, *inputs, result, *numbers, n=n)
                    self.assert_result(name, result, [a[:n] for a in arrays], numbers, n)
                    self.assertEqual(result.to_numpy()[n:].tolist(), [77.0] * (30 - n))
            # By default the result says how many.
            result = self.empty(15)
            getattr(ops, name)(self.executor, *map(self.buffer, arrays), result, *numbers)
            self.assert_result(name, result, [a[:15] for a in arrays], numbers)

    def test_fill(self):
        c = self.empty(5)
        ops.fill(self.executor, c, 0.1, n=3)
        self.assertEqual(c.to_numpy().tolist(), [float(np.float32(0.1))] * 3 + [77.0] * 2)
        ops.fill(self.executor, c, math.inf)
        self.assertEqual(c.to_numpy().tolist(), [math.inf] * 5)

    def test_softmax_of_large_numbers(self):
        c = self.empty(3)
        ops.softmax(self.executor, self.buffer(np.array([1000, 1000, -1000], "f4")), c)
        self.assertEqual(c.to_numpy().tolist(), [0.5, 0.5, 0.0])

    def test_mad_rounds_twice(self):
        # (1 + e)(1 - e) - 1 = -e^2, which is lost where the product is rounded.
        e = np.float32(2.0**-13)
        a, b, c = (self.buffer(np.full(64, x, "f4")) for x in (1 + e, 1 - e, -1))
        ops.mad(self.executor, a, b, c, c)
        self.assertEqual(c.to_numpy().tolist(), [0.0] * 64)

    def test_reductions(self):
        for name, reference in REDUCTIONS.items():
            for n in SIZES[1:]:
                array = self.normal(n)
                got = getattr(ops, name)(self.executor, self.buffer(array))
                self.assertIs(type(got), float)
                self.assertEqual(got, reference(torch.from_numpy(array)).item(), **SUMS)
            array[3] = math.nan
            self.assertTrue(math.isnan(getattr(ops, name)(self.executor, self.buffer(array))))
            got = getattr(ops, name)(self.executor, self.buffer(array), n=3)
            self.assertEqual(got, reference(torch.from_numpy(array[:3])).item(), **SUMS)
        empty = self.empty(0)
        self.assertEqual(ops.reduce_sum(self.executor, empty), 0.0)
        for name in ("reduce_min", "reduce_max"):
            with self.assertRaisesRegex(RuntimeError, f"{name}: there is no element"):
                getattr(ops, name)(self.executor, empty)

    def test_losses(self):
        for name, reference in LOSSES.items():
            for n in SIZES:
                p, t = self.random.random((2, n), np.float32)
                got = getattr(ops, name)(self.executor, self.buffer(p), self.buffer(t))
                self.assertIs(type(got), float)
                expected = reference(torch.from_numpy(p), torch.from_numpy(t)).item()
                self.assertEqual(got, expected, **SUMS)
            got = getattr(ops, name)(self.executor, self.buffer(p), self.buffer(t), n=9)
            expected = reference(torch.from_numpy(p[:9]), torch.from_numpy(t[:9])).item()
            self.assertEqual(got, expected, **SUMS)

    def test_losses_at_the_ends(self):
        p = self.buffer(np.array([0.0, 1.0, 0.0, 1.0], "f4"))
        t = self.buffer(np.array([1.0, 1.0, 0.0, 0.0], "f4"))
        self.assertEqual(ops.cross_entropy_loss(self.executor, p, t), 25.0)
        self.assertEqual(ops.binary_cross_entropy_loss(self.executor, p, t), 50.0)

    @pytest.mark.device_assert
    def test_a_loss_of_no_probabilities(self):
        with self.assertRaisesRegex(RuntimeError, "between 0 and 1"):
            ops.binary_cross_entropy_loss(self.executor, self.empty(4), self.empty(4))

    def assert_product(self, got, expected):
        """Bit for bit, unless CUDA's kernels sum."""
        if not CUDA_KERNELS:
            self.assert_bits(got, expected)
        else:
            self.assertEqual(torch.from_numpy(got), expected, **SUMS)

    def test_products(self):
        for m, k, n in (
            (1, 1, 1),
            (4, 4, 4),
            (3, 5, 7),
            (64, 33, 20),
            (2, 0, 3),
            (0, 2, 3),
            (0, 0, 0),
        ):
            a, b = self.normal(m * k), self.normal(k * n)
            with self.subTest(m=m, k=k, n=n):
                expected = torch.from_numpy(a).view(m, k) @ torch.from_numpy(b).view(k, n)
                for extra in (0, 3):  # longer than it has to be
                    c = self.empty(m * n + extra)
                    ops.gemm(self.executor, self.buffer(a), self.buffer(b), c, m, k, n)
                    self.assert_product(c.to_numpy()[: m * n], expected.view(-1))
                    self.assertEqual(c.to_numpy()[m * n :].tolist(), [77.0] * extra)
                x = self.normal(k)
                expected = torch.from_numpy(a).view(m, k) @ torch.from_numpy(x)
                for extra in (0, 3):
                    y = self.empty(m + extra)
                    ops.matvec(self.executor, self.buffer(a), self.buffer(x), y, m, k)
                    self.assert_product(y.to_numpy()[:m], expected)

    def test_product_into_an_operand(self):
        a, b, x = self.normal(64), self.normal(64), self.normal(8)
        expected = torch.from_numpy(a).view(8, 8) @ torch.from_numpy(b).view(8, 8)
        for position in (0, 1):
            inputs = [self.buffer(a), self.buffer(b)]
            ops.gemm(self.executor, *inputs, inputs[position], 8, 8, 8)
            self.assert_product(inputs[position].to_numpy(), expected.view(-1))
        y = self.buffer(x)
        ops.matvec(self.executor, self.buffer(a), y, y, 8, 8)
        self.assert_product(y.to_numpy(), torch.from_numpy(a).view(8, 8) @ torch.from_numpy(x))
        # Where the result shares only a part of an operand's memory.
        memory = torch.from_numpy(np.concatenate([a, b])).to("hologram")
        parts = [hg.tensor_to_buffer(self.executor, memory[i : i + 64]) for i in (0, 64, 32)]
        ops.gemm(self.executor, *parts, 8, 8, 8)
        self.assert_product(parts[2].to_numpy(), expected.view(-1))

    def test_integers(self):
        ends = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 7], np.int64)
        pairs = np.array([(x, y) for x in ends for y in ends]).astype(np.int32)
        a, b = (np.ascontiguousarray(pairs[:, i]) for i in (0, 1))
        for name, reference in INTEGERS.items():
            c = self.empty(len(a), "int32")
            getattr(ops, name)(self.executor, self.buffer(a), self.buffer(b), c)
            self.assert_bits(c.to_numpy(), reference(torch.from_numpy(a), torch.from_numpy(b)))
            getattr(ops, name)(self.executor, self.buffer(a), self.buffer(b), c, n=2)

    def test_integer_division(self):
        a, b = self.random.integers(-(2**31), 2**31, (2, 1000)).astype(np.int32)
        b[:500] = self.random.integers(1, 100, 500)
        b[b == 0] = 1
        c = self.empty(1000, "int32")
        ops.vector_div_i32(self.executor, self.buffer(a), self.buffer(b), c)
        expected = torch.div(torch.from_numpy(a), torch.from_numpy(b), rounding_mode="trunc")
        self.assert_bits(c.to_numpy(), expected)
        self.assertEqual(
            c.to_numpy().tolist(), [int(x / y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        )

    # CUDA's kernels divide by zero, and do not say so.
    @pytest.mark.cpu_kernels
    def test_integer_division_without_a_result(self):
        # In a process of its own: the processor's instruction traps.
        run_python(
            """
            import numpy as np, torch_hologram as hg
            executor = hg.Executor()
            a, b, c = (executor.allocate(64, "int32") for _ in range(3))
            a.fill(-2**31); b.fill(-1)
            hg.ops.vector_div_i32(executor, a, b, c)
            assert (c.to_numpy() == -2**31).all()
            b.from_numpy(np.array([1] * 40 + [0] * 24, np.int32))
            for n in (None, 41):
                try:
                    hg.ops.vector_div_i32(executor, a, b, c, n=n)
                except RuntimeError as error:
                    assert str(error).endswith("division by zero, b[40] is 0"), error
                else:
                    raise AssertionError("divided")
            a.fill(7)
            hg.ops.vector_div_i32(executor, a, b, c, n=40)
            assert c.to_numpy().tolist() == [7] * 40 + [-2**31] * 24
            """
        )

    def test_chain(self):
        a = self.normal(1000)
        x, y = self.buffer(a), self.empty(1000)
        ops.scalar_mul(self.executor, x, y, 2.0)
        ops.vector_add(self.executor, x, y, y)
        ops.vector_relu(self.executor, y, y)
        ops.vector_sub(self.executor, y, x, x)
        t = torch.from_numpy(a)
        self.assert_bits(x.to_numpy(), torch.relu(t + t * 2.0) - t)


class TestDocumentation(OpsTestCase):
    def test_every_operation_is_in_the_table(self):
        text = (ROOT / "docs" / "runtime-sdk.md").read_text()
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        named = {name for row in rows for name in re.findall("`([a-z0-9_]+)`", row)}
        self.assertEqual(named, set(ops.BUFFERS))

    def test_examples(self):
        # The example asks for the package's own backends first.
        first = next((k.value for k in hg.backend.PRIORITY if hg.backend.is_available(k)), BACKEND)
        for arguments, status, text in (
            (["sdk_vector_add.py", "--size", "1001"], 0, f"1001 elements on {BACKEND}"),
            (
                ["sdk_vector_add.py", "--backend", "cuda"],
                *((0, "on cuda") if "cuda" in BACKENDS else (1, "'cuda' is not available")),
            ),
            (["sdk_vector_add.py", "--size", "-1"], 2, "must be 0 or more, not -1"),
            (["backend_selection.py"], 0, f"softmax of 1000 on {first}"),
            (["backend_selection.py", "--prefer", "metal"], 2, "'metal' is not available"),
        ):
            path = ROOT / "examples" / arguments[0]
            command = f"import runpy, sys; sys.argv = {arguments}; "
            command += f"runpy.run_path({str(path)!r}, run_name='__main__')"
            process = run_python(command, check=False)
            with self.subTest(arguments=arguments):
                self.assertEqual(process.returncode, status, process.stderr)
                self.assertIn(text, process.stdout + process.stderr)


class TestMisuse(OpsTestCase):
    def calls(self, make):
        """Of every operation: its name and arguments, with one buffer made by `make(dtype)`."""
        for name, count in ops.BUFFERS.items():
            parameters = list(inspect.signature(getattr(ops, name)).parameters)[1:]
            dtype = "int32" if name.endswith("_i32") else "float32"
            for position in range(count):
                arguments = [self.executor.allocate(16, dtype) for _ in range(count)]
                for parameter in parameters[count:]:
                    if name in ("gemm", "matvec"):
                        arguments.append(4)
                    elif parameter != "n":
                        arguments.append(0.5)
                arguments[position] = make(dtype)
                yield name, parameters[position], arguments

    def assert_refused(self, make, kind, text, sizes=True):
        for name, parameter, arguments in self.calls(make):
            if name == "fill" and not sizes:
                continue  # the one buffer says how many
            with self.subTest(name=name, parameter=parameter):
                with self.assertRaisesRegex(kind, text.format(name=name, parameter=parameter)):
                    getattr(ops, name)(self.executor, *arguments)

    def test_no_buffer(self):
        self.assert_refused(
            lambda dtype: np.zeros(16, dtype),
            TypeError,
            "^{name}: {parameter} must be a Buffer, not ndarray$",
        )

    def test_wrong_dtype(self):
        other = {"int32": "int64", "float32": "float64"}
        self.assert_refused(
            lambda dtype: self.executor.allocate(16, other[dtype]),
            TypeError,
            "^{name}: {parameter} is a buffer of (int|float)64, not of (int|float)32$",
        )

    def test_closed_buffer(self):
        def closed(dtype):
            buffer = self.executor.allocate(16, dtype)
            buffer.close()
            return buffer

        self.assert_refused(closed, RuntimeError, "^the buffer of 16 elements of .*32 is closed$")

    def test_closed_executor(self):
        for name, _, arguments in self.calls(lambda dtype: self.executor.allocate(16, dtype)):
            closed = hg.Executor(BACKEND)
            closed.close()
            with self.subTest(name=name):
                with self.assertRaisesRegex(RuntimeError, "^the executor is closed$"):
                    getattr(ops, name)(closed, *arguments)
                with self.assertRaisesRegex(TypeError, f"^{name}: expected an Executor first"):
                    getattr(ops, name)("cpu", *arguments)

    def test_too_short(self):
        for name, parameter, arguments in self.calls(
            lambda dtype: self.executor.allocate(3, dtype)
        ):
            if name in ("gemm", "matvec"):
                needed = 16 if name == "gemm" or parameter == "a" else 4
                numbers, text = {}, f"is {needed}, but {parameter} has 3 elements"
            else:
                numbers, text = {"n": 16}, f"^{name}: n is 16, but {parameter} has 3 elements$"
            with self.subTest(name=name, parameter=parameter):
                with self.assertRaisesRegex(ValueError, text):
                    getattr(ops, name)(self.executor, *arguments, **numbers)

    def test_shorter_than_the_result(self):
        a, c = self.executor.allocate(3), self.executor.allocate(16)
        with self.assertRaisesRegex(
            ValueError, "^vector_add: c has 16 elements, but b has 3 elements$"
        ):
            ops.vector_add(self.executor, c, a, c)
        with self.assertRaisesRegex(
            ValueError, "^mse_loss: predictions has 16 elements, but targets has 3 elements$"
        ):
            ops.mse_loss(self.executor, c, a)

    def test_n(self):
        c = self.executor.allocate(16)
        for n, kind, text in (
            (-1, ValueError, "vector_add: n is -1, which is negative"),
            (1.0, TypeError, "vector_add: n must be an integer, not float"),
            ("1", TypeError, "vector_add: n must be an integer, not str"),
        ):
            with self.assertRaisesRegex(kind, text):
                ops.vector_add(self.executor, c, c, c, n=n)
        for sizes, kind, text in (
            ((-4, -4, 4), ValueError, "gemm: m is -4, which is negative"),
            ((4, 4, "4"), TypeError, "gemm: n must be an integer, not str"),
            ((5, 4, 4), ValueError, r"gemm: m \* k is 20, but a has 16 elements"),
            ((4, 4.0, 4), TypeError, "float"),
        ):
            with self.assertRaisesRegex(kind, text):
                ops.gemm(self.executor, c, c, c, *sizes)

    def test_other_mistakes(self):
        c = self.executor.allocate(16)
        with self.assertRaisesRegex(TypeError, "missing 1 required positional argument: 'c'"):
            ops.vector_add(self.executor, c, c)
        with self.assertRaises(TypeError):
            ops.scalar_add(self.executor, c, c, "2")
        part = hg.tensor_to_buffer(self.executor, hg.buffer_to_tensor(c)[4:12])
        with self.assertRaisesRegex(RuntimeError, "written-to tensor"):
            ops.vector_add(self.executor, c, c, part)
        self.assertEqual(c.to_numpy().tolist(), [0.0] * 16)

    def test_sizes_are_integers(self):
        a = self.buffer(self.normal(4))
        for call in (
            lambda: ops.gemm(self.executor, a, self.empty(4), self.empty(4), 2.0, 2, 2),
            lambda: ops.gemm(self.executor, a, self.empty(4), self.empty(4), 2, 2, 2.0),
            lambda: ops.matvec(self.executor, a, self.empty(2), self.empty(2), 2.0, 2),
        ):
            with self.assertRaisesRegex(TypeError, "must be an integer, not float"):
                call()

    def test_signatures(self):
        for name in ops.BUFFERS:
            function = getattr(ops, name)
            self.assertEqual((function.__name__, function.__module__), (name, ops.__name__))
            self.assertTrue(function.__doc__)
        parameters = inspect.signature(ops.vector_clip).parameters
        self.assertEqual(list(parameters), ["executor", "a", "c", "low", "high", "n"])
        self.assertIsNone(parameters["n"].default)


if __name__ == "__main__":
    run_tests()
