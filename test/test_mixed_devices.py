"""Tensors of several devices in one call: refused in CUDA's words, but for what CUDA accepts.

test_bad_input.py has single calls; here every operator is asked.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torchgen
from common import CUDA_KERNELS, HologramTestCase, run_python, several_devices
from multi_device import BOTH_WAYS, ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from torch_hologram import _C

hologram = torch.hologram
SAME_DEVICE = "Expected all tensors to be on the same device"
# Of each operator: how many samples with two tensors or more, among how many of its samples.
SAMPLES = 6
CANDIDATES = 200

# Operators of op_db that take tensors of several devices, on CUDA as well.
ANY_DEVICE = {
    **dict.fromkeys(
        ("broadcast_tensors", "expand_as", "reshape_as", "resize_as_", "view_as"),
        "reads only the shape of the other tensor",
    ),
    **dict.fromkeys(
        ("atleast_1d", "atleast_2d", "atleast_3d"), "treats each tensor of its list by itself"
    ),
    **dict.fromkeys(
        ("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter"),
        "copies the source into a clone, and copies cross devices",
    ),
    "nn.functional.bilinear": "reads nothing of an empty batch",
    "to": "is there to cross devices",
    "nn.functional.ctc_loss": "moves the targets to the device of the scores",
    "diff": "does not look at prepend and append where n is 0",
}
INDEX = {
    **dict.fromkeys(
        (
            "__getitem__",
            "index_put",
            "_unsafe_masked_index",
            "_unsafe_masked_index_put_accumulate",
        ),
        "takes CPU tensors as indices",
    )
}

# Operators with a check of their own, in torch's code for every device, in other words.
OWN_WORDS = {
    "__getitem__": r"indices should be either on cpu or on the same device as the indexed tensor",
    "_unsafe_masked_index": "indices should be either on cpu or on the same device",
    "_chunk_cat": "expects all inputs tensors on the same device",
    "block_diag": "input tensors must all be on the same device",
    "cartesian_prod": "expects all tensors to have the same device",
    "cholesky_solve": "to be on the same device, but found",
    "gradient": "expected each tensor to be on the same device",
    "inner": r"Expected tensor to have \w+ DeviceType, but got tensor with \w+ DeviceType",
    "istft": "must be on the same device but got",
    "linalg.matrix_rank": "input tensors to be on the same device, but got",
    "linalg.multi_dot": "all tensors must be on the same device",
    "meshgrid": "expects all tensors to have the same device",
    "nanquantile": "must be on the same device as the input tensor",
    **dict.fromkeys(
        (f"nn.functional.conv{name}" for name in ("1d", "2d", "3d", "_transpose1d")),
        "Input type .* and weight type .* should be the same",
    ),
    "nn.functional.scaled_dot_product_attention": "to have the same device type, but got",
    "quantile": "must be on the same device as the input tensor",
    "stft": "must be on the same device but got",
    "tensor_split": "expected tensor_indices_or_sections to be on cpu, but it's on",
    "take_along_dim": r"Expected tensor to have [\w:]+ Device, but got tensor with [\w:]+ Device",
}

# Compile CUDA source; raise on every other device.
NOT_HERE = re.compile("jiterator_")


def is_operand(value: object) -> bool:
    """Whether a value belongs on the device: not a 0-dim tensor, nor an index made on the CPU."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "hologram"
        and value.dim() > 0
        and value.numel() > 0
    )


def on_the_cpu(op: OpInfo, leaves: list[object], spec: TreeSpec) -> NotImplementedError | None:
    """What torch says on the CPU where it has no kernel there (2.11: of _scaled_mm_v2)."""
    copies = [leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    first, arguments, options = tree_unflatten(copies, spec)
    try:
        op(first, *arguments, **options)
    except NotImplementedError as error:
        return error
    return None


def census(other: str) -> Iterator[tuple[str, Exception | None]]:
    """Calls every operator of op_db with one operand moved to another device.

    Yields:
        the operator's name and what it raised, for each operand of each sample.
    """
    torch.manual_seed(0)
    for op in op_db:
        dtypes = op.supported_dtypes("cpu")
        if not dtypes or NOT_HERE.match(op.name):
            continue
        dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
        done = 0
        # Not op.sample_inputs(): it inspects the stack for every sample, to name the test.
        samples = op.sample_inputs_func(op, "hologram", dtype, requires_grad=False)
        for sample in itertools.islice(samples, CANDIDATES):
            leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
            operands = [index for index, leaf in enumerate(leaves) if is_operand(leaf)]
            if len(operands) < 2:
                continue
            done += 1
            if done > SAMPLES:
                break
            for moved in operands:
                copies = [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in leaves]
                copies[moved] = copies[moved].to(other)
                first, arguments, options = tree_unflatten(copies, spec)
                try:
                    op(first, *arguments, **options)
                except NotImplementedError as error:
                    if on_the_cpu(op, leaves, spec) is None:
                        yield op.name, error
                except Exception as error:
                    yield op.name, error
                else:
                    yield op.name, None


def violations(other: str) -> list[str]:
    """What a census finds to be accepted, or refused in other words, against the lists above."""
    expected = {**ANY_DEVICE, **(INDEX if other == "cpu" else {})}
    found, accepted = set(), set()
    for name, error in census(other):
        if error is None:
            accepted.add(name)
            if name not in expected:
                found.add(f"{name}: accepted")
        elif not isinstance(error, RuntimeError):
            found.add(f"{name}: {type(error).__name__}: {error}")
        elif SAME_DEVICE in str(error):
            if not ("hologram:0" in str(error) and other in str(error)):
                found.add(f"{name}: does not name both devices: {error}")
        elif name not in OWN_WORDS or not re.search(OWN_WORDS[name], str(error)):
            found.add(f"{name}: {error}")
    found |= {f"{name}: listed but refused" for name in set(expected) - accepted}
    return sorted(found)


class TestEveryOperator(HologramTestCase):
    def test_one_operand_on_the_cpu(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertEqual(violations("cpu"), [])

    def test_one_operand_on_another_hologram_device(self):
        # The lists are about CUDA; these cross its devices, or only take indices from the CPU.
        process = run_python(
            """
            import sys, warnings
            sys.path.insert(0, sys.argv[1])
            warnings.simplefilter("ignore")
            import test_mixed_devices as here
            for row in here.violations("hologram:1"):
                print(row)
            """,
            str(Path(__file__).parent),
            env=several_devices(2),
        )
        self.assertEqual(process.stdout, "")


def unchecked_by_schema() -> set[str]:
    """Overloads for which torch generates no device check on CUDA, from its own schema file."""
    schemas = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    names, name = set(), ""
    for line in schemas.read_text().splitlines():
        if match := re.match(r"- func: ([\w.]+)\(", line):
            name = match.group(1)
        elif re.match(r"\s+device_check: NoCheck", line):
            names.add(name)
    return names


def value_for(argument: torch._C.Argument, tensor: torch.Tensor) -> object:
    """Something to call an operator with; it is refused before anything looks at it."""
    kind = str(argument.type)
    if kind.startswith("Optional["):
        kind = kind[len("Optional[") : -1]
    values = {
        "Tensor": tensor,
        "List[Tensor]": [tensor],
        "List[Optional[Tensor]]": [tensor],
        "int": 0,
        "number": 1,
        "Scalar": 1,
        "float": 0.5,
        "bool": False,
        "str": "mean",
        "List[int]": [1],
        "List[float]": [1.0],
        "List[bool]": [True] * (argument.N or 1),
        "Device": torch.device("hologram"),
    }
    return values.get(kind)


def calls_with(last: torch.Tensor, here: torch.Tensor) -> Iterator[tuple[str, functools.partial]]:
    """Each overload of the device with two tensor arguments or more: a call whose last is `last`.

    The other arguments only have the right types.
    """
    for name, _ in _C.operator_table():
        overload = name.removeprefix("aten::")
        base, _, suffix = overload.partition(".")
        arguments = torch._C._get_schema(name.partition(".")[0], suffix).arguments
        tensors = [index for index, a in enumerate(arguments) if "Tensor" in str(a.type)]
        if len(tensors) < 2 or any("CellParams" in str(a.type) for a in arguments):
            continue
        values = [value_for(a, last if i == tensors[-1] else here) for i, a in enumerate(arguments)]
        pairs = list(zip(arguments, values, strict=True))
        yield (
            overload,
            functools.partial(
                getattr(getattr(torch.ops.aten, base), suffix or "default"),
                *[value for a, value in pairs if not a.kwarg_only],
                **{a.name: value for a, value in pairs if a.kwarg_only},
            ),
        )


class TestEveryOverload(HologramTestCase):
    # Overloads that may read more than a number from the CPU, or that are about two devices.
    CROSSING = re.compile(
        r"_?copy_|_copy_from|set_\.|is_set_to|_has_compatible|to_sparse|"  # two devices
        r"index\.Tensor|_index_put_impl|_unsafe_index|"  # indices
        r"bernoulli_\.Tensor|"  # probabilities
        r"_nested_|"  # shapes
        r"_fused_sdp_choice"  # runs nothing
    )

    def test_scalars_are_refused_where_cuda_checks(self):
        unchecked = unchecked_by_schema()
        asked = 0
        for overload, call in calls_with(torch.tensor(1.0), torch.ones(2, 2, device="hologram")):
            if overload in unchecked or self.CROSSING.match(overload):
                continue
            with self.assertRaisesRegex(RuntimeError, SAME_DEVICE, msg=overload):
                call()
            asked += 1
        self.assertGreater(asked, 400)

    def test_matrices_are_refused(self):
        asked = 0
        for overload, call in calls_with(torch.ones(2, 2), torch.ones(2, 2, device="hologram")):
            if self.CROSSING.match(overload):
                continue
            with self.assertRaisesRegex(RuntimeError, SAME_DEVICE, msg=overload):
                call()
            asked += 1
        self.assertGreater(asked, 500)


# Called with matrices x and y of the device and a 0-dim CPU tensor s, as CUDA allows it.
SCALARS_ACCEPTED = {
    "add": lambda x, y, s: x + s,
    "add, left": lambda x, y, s: s + x,
    "sub_": lambda x, y, s: x.clone().sub_(s),
    "mul, out": lambda x, y, s: torch.mul(x, s, out=torch.empty_like(x)),
    "div": lambda x, y, s: x / s,
    "div, rounded": lambda x, y, s: torch.div(x, s, rounding_mode="floor"),
    "div, left": lambda x, y, s: s / x,
    "floor_divide": lambda x, y, s: x // s,
    "remainder": lambda x, y, s: x % s,
    "fmod": lambda x, y, s: torch.fmod(x, s),
    "pow": lambda x, y, s: x**s,
    "pow, left": lambda x, y, s: s**x,
    "atan2": lambda x, y, s: torch.atan2(x, s),
    "maximum": lambda x, y, s: torch.maximum(x, s),
    "fmin": lambda x, y, s: torch.fmin(s, x),
    "copysign": lambda x, y, s: torch.copysign(x, s),
    "hypot": lambda x, y, s: torch.hypot(x, s),
    "heaviside": lambda x, y, s: torch.heaviside(x - x, s),
    "xlogy": lambda x, y, s: torch.xlogy(x, s),
    "logical_and": lambda x, y, s: torch.logical_and(x, s),
    "bitwise_and": lambda x, y, s: x.long() & s.long(),
    "shift": lambda x, y, s: x.long() << s.long(),
    "eq": lambda x, y, s: x == s,
    "lt, left": lambda x, y, s: s < x,
    "zeta": lambda x, y, s: torch.special.zeta(x + 2, s),
    "rsub": lambda x, y, s: torch.rsub(x, s),
    "where": lambda x, y, s: torch.where(x > 0.5, x, s),
    "where, both": lambda x, y, s: torch.where(x > 0.5, s, s),
    "where, condition": lambda x, y, s: torch.where(s > 0, x, y),
    "lerp": lambda x, y, s: torch.lerp(x, y, s),
    "addcmul": lambda x, y, s: torch.addcmul(x, y, s),
    "addcdiv": lambda x, y, s: torch.addcdiv(x, y, s),
    "masked_fill": lambda x, y, s: x.masked_fill(x > 0.5, s),
    "index_fill": lambda x, y, s: x.index_fill(0, (x[0] > 2).long()[:1], s),
    "index_put": lambda x, y, s: x.index_put((torch.tensor([0]),), s),
    "fill_": lambda x, y, s: x.clone().fill_(s),
    "copy_": lambda x, y, s: x.clone().copy_(s),
    "setitem": lambda x, y, s: setitem(x.clone(), 0, s),
    "foreach": lambda x, y, s: torch._foreach_mul([x, y], s)[1],
    "foreach, list": lambda x, y, s: torch._foreach_add([x], [s])[0],
    "0-dim": lambda x, y, s: x[0, 0] + s,
}

# As above, and CUDA refuses it.
SCALARS_REFUSED = {
    "two scalars": lambda x, y, s: torch.add(s, s, out=x),
    "vector of one": lambda x, y, s: x + s[None],
    "written": lambda x, y, s: s.add_(x[0, 0]),
    "out": lambda x, y, s: torch.add(x[0, 0], x[0, 0], out=s),
    "clamp": lambda x, y, s: torch.clamp(x, s),
    "lerp, end": lambda x, y, s: torch.lerp(x, s, 0.5),
    "lerp, start": lambda x, y, s: torch.lerp(s, x, y),
    "addcmul, self": lambda x, y, s: torch.addcmul(s, x, y),
    "addcmul, tensor1": lambda x, y, s: torch.addcmul(x, s, y),
    "addcdiv, tensor1": lambda x, y, s: torch.addcdiv(x, s, y),
    "masked_fill, mask": lambda x, y, s: x.masked_fill(s > 0, 1.0),
    "index_fill, index": lambda x, y, s: x.index_fill(0, s.long(), 1.0),
    "index_select": lambda x, y, s: x.index_select(0, s.long()),
    "index_add": lambda x, y, s: x[0].index_add(0, s.long(), y[0, 0]),
    "gather": lambda x, y, s: x[0].gather(0, s.long()),
    "scatter": lambda x, y, s: x[0, 0].scatter(0, s.long(), y[0, 0]),
    "take": lambda x, y, s: x.take(s.long()),
    "searchsorted": lambda x, y, s: torch.searchsorted(x[0], s),
    "binary_cross_entropy": lambda x, y, s: torch.nn.functional.binary_cross_entropy(x[0, 0], s),
    "binomial": lambda x, y, s: torch.binomial(x, s / 4),
    "mm": lambda x, y, s: torch.mm(x, s),
    "dot": lambda x, y, s: torch.dot(x[0], s),
    "addmm": lambda x, y, s: torch.addmm(s, x, y),
    "prelu": lambda x, y, s: torch.prelu(x, s),
    "cat": lambda x, y, s: torch.cat([x[0], s]),
    "stack": lambda x, y, s: torch.stack([s, x[0, 0]]),
    "gru cell": lambda x, y, s: torch.ops.aten._thnn_fused_gru_cell(
        torch.cat([x] * 3, 1), torch.cat([x] * 3, 1), x, s, s
    ),
    "normal": lambda x, y, s: torch.normal(x, s),
    "isin": lambda x, y, s: torch.isin(x, s),
    "polar": lambda x, y, s: torch.polar(x, s),
    "quantile": lambda x, y, s: torch.kthvalue(x, 1, out=(x, s.long())),
}


def setitem(x: torch.Tensor, index: object, value: torch.Tensor) -> torch.Tensor:
    x[index] = value
    return x


class TestScalars(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.x, self.y = torch.rand(3, 3), torch.rand(3, 3) + 0.1

    def error_on(self, device, call, scalar):
        try:
            call(self.x.to(device, copy=True), self.y.to(device, copy=True), scalar)
        except Exception as error:
            return error
        return None

    @parametrize("name", list(SCALARS_ACCEPTED))
    def test_accepted(self, name):
        call = SCALARS_ACCEPTED[name]
        for dtype in (torch.float32, torch.float64):
            if dtype == torch.float64 and name in ("heaviside", "index_put"):
                continue  # want one dtype
            scalar = torch.tensor(2.0, dtype=dtype)
            if CUDA_KERNELS and (refused := self.error_on("cuda", call, scalar)):
                mine = self.error_on("hologram", call, scalar)
                if mine is not None:  # what is recorded takes it all the same
                    self.assertEqual(type(mine), type(refused))
                    continue
            result = call(self.x.hologram(), self.y.hologram(), scalar)
            self.assertEqual(result.device, torch.device("hologram", 0))
            tolerance = {} if CUDA_KERNELS else {"rtol": 0, "atol": 0}
            self.assertEqual(result.cpu(), call(self.x, self.y, scalar), **tolerance)

    @parametrize("name", list(SCALARS_REFUSED))
    def test_refused(self, name):
        here = self.x.hologram()
        with self.assertRaisesRegex(RuntimeError, SAME_DEVICE) as caught:
            SCALARS_REFUSED[name](here, self.y.hologram(), torch.tensor(2.0))
        self.assertIn("hologram:0", str(caught.exception))
        self.assertIn("cpu", str(caught.exception))
        self.assertEqual(here.cpu(), self.x)


class TestIndices(HologramTestCase):
    """CPU tensors as indices, and shapes that live on the CPU."""

    def test_indexing(self):
        x = torch.arange(24.0).reshape(4, 3, 2)
        rows, flags = torch.tensor([3, 1]), torch.tensor([True, False, True])
        for index in (
            rows,
            (rows, rows - 1),
            (slice(None), flags),
            (Ellipsis, torch.tensor([1])),
            (rows[:, None], flags),
            (rows, slice(1, 3), torch.tensor(0)),
            x > 5,
        ):
            self.assertEqual(x.hologram()[index].cpu(), x[index])
            self.assertEqual(
                setitem(x.hologram(), index, torch.tensor(-1.0, device="hologram")).cpu(),
                setitem(x.clone(), index, torch.tensor(-1.0)),
            )

    def test_mixed_indices(self):
        x = torch.arange(12.0).reshape(4, 3)
        rows, columns = torch.tensor([3, 1]), torch.tensor([0, 2])
        self.assertEqual(x.hologram()[rows, columns.hologram()].cpu(), x[rows, columns])
        self.assertEqual(x.hologram()[rows.hologram(), columns].cpu(), x[rows, columns])

    def test_gradient(self):
        x = torch.rand(4, 3, device="hologram", requires_grad=True)
        x[torch.tensor([0, 0, 2])].sum().backward()
        self.assertEqual(x.grad.cpu(), torch.tensor([2.0, 0, 1, 0])[:, None].expand(4, 3))

    def test_values_have_to_be_here(self):
        x = torch.rand(4, 3, device="hologram")
        for use in (
            lambda: x.index_put((torch.tensor([0]),), torch.rand(3)),
            lambda: torch.ops.aten._unsafe_index_put(x, [torch.tensor([0])], torch.rand(3)),
            lambda: torch.ones(4, 3).index_put((torch.tensor([0]),), x[0]),
        ):
            with self.assertRaisesRegex(RuntimeError, SAME_DEVICE):
                use()
        # Assignment to a view copies, and copies cross devices.
        x[0] = torch.zeros(3)
        self.assertEqual(x[0].cpu(), torch.zeros(3))

    def test_device_index_of_a_cpu_tensor(self):
        index = torch.tensor([1], device="hologram")
        for use in (lambda: torch.ones(3)[index], lambda: setitem(torch.ones(3), index, 1.0)):
            with self.assertRaisesRegex(
                RuntimeError, r"indices should be either on cpu or on the same device as.*\(cpu\)"
            ):
                use()

    def test_probabilities(self):
        p = torch.linspace(0, 1, 20)
        torch.manual_seed(0)
        drawn = torch.empty(20, device="hologram").bernoulli_(p)
        torch.manual_seed(0)
        self.assertEqual(torch.rand(20, device="hologram") < p.hologram(), drawn.bool())

    def test_shapes_of_nested_tensors(self):
        sizes, strides = torch.tensor([[2], [4]]), torch.tensor([[1], [1]])
        nested = torch.ops.aten._nested_view_from_buffer(
            torch.arange(6.0, device="hologram"), sizes, strides, torch.tensor([0, 2])
        )
        self.assertEqual(nested.is_nested, True)
        self.assertEqual(
            [part.cpu() for part in torch.ops.aten.unbind(nested)],
            [torch.arange(2.0), torch.arange(2.0, 6.0)],
        )

    def test_lengths_stay_on_the_cpu(self):
        x, lengths = torch.rand(5, 3, 2), torch.tensor([5, 3, 1])
        packed = torch.nn.utils.rnn.pack_padded_sequence(x.hologram(), lengths)
        self.assertEqual(packed.batch_sizes.device.type, "cpu")
        wanted = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
        self.assertEqual(packed.data.cpu(), wanted.data)


class TestTwoDevices(HologramTestCase):
    """What the error names, and what lists may mix, with two devices of our own."""

    def test_operators(self):
        run_python(
            """
            import torch

            x = [torch.arange(3.0, device=f"hologram:{index}") for index in range(2)]
            zero, one = x
            for call in (
                lambda: zero + one,
                lambda: torch.dot(zero, one),
                lambda: one.add_(zero),
                lambda: torch.add(zero, zero, out=one),
                lambda: torch.cat([zero, one]),
                lambda: zero + one.sum(),  # a 0-dim tensor is a scalar on the CPU only
                lambda: torch.where(zero > 0, zero, one),
                lambda: zero[one.long()],
                lambda: torch.nn.functional.linear(zero, one),
                lambda: torch.nn.functional.conv1d(zero[None, None], one[None, None]),
                lambda: torch.nn.GRUCell(3, 3, device="hologram:1")(zero[None]),
            ):
                try:
                    call()
                except RuntimeError as error:
                    assert "same device" in str(error), error
                    assert "hologram:0" in str(error) and "hologram:1" in str(error), error
                else:
                    raise AssertionError("accepted")
            # As on CUDA, copies cross and each position of a list has its own device.
            assert zero.to("hologram:1").device.index == 1
            assert torch.equal(zero.clone().copy_(one).cpu(), one.cpu())
            sums = torch._foreach_add(x, x)
            assert [t.device.index for t in sums] == [0, 1], sums
            assert all(torch.equal(t.cpu(), torch.tensor([0.0, 2, 4])) for t in sums)
            torch._foreach_mul_(x, 3)
            assert one.tolist() == [0, 3, 6]
            try:
                torch._foreach_add([zero], [one])
            except RuntimeError as error:
                assert "same device" in str(error), error
            else:
                raise AssertionError("accepted")
            # Results are where the arguments are, whatever the current device is.
            with torch.hologram.device(1):
                assert (zero * 2).device.index == 0
                assert zero.sort().values.device.index == 0
                assert torch.empty(1, device="hologram").device.index == 1
                assert torch.arange(3, device="hologram").device.index == 1
                assert torch.rand(1, device="hologram:0").device.index == 0
                assert torch.tensor([1], device="hologram").device.index == 1
            """,
            env=several_devices(2),
        )


# A call that mixes two devices: (tensors and modules there, the operand that is here).
MIXED: dict[str, Callable] = {
    "add": lambda x, d: x + x.to(d),
    "add_": lambda x, d: x.add_(x.to(d)),
    "mul_scalar_tensor": lambda x, d: x * x.sum().to(d),
    "add_out": lambda x, d: torch.add(x, x, out=torch.empty(3, 3, device=d)),
    "exp_out": lambda x, d: torch.exp(x, out=torch.empty(3, 3, device=d)),
    "where": lambda x, d: torch.where(x > 0, x, x.to(d)),
    "cat": lambda x, d: torch.cat([x, x.to(d)]),
    "stack": lambda x, d: torch.stack([x, x.to(d)]),
    "matmul": lambda x, d: x @ x.to(d),
    "addmm": lambda x, d: torch.addmm(x, x.to(d), x),
    "bmm": lambda x, d: torch.bmm(x[None], x[None].to(d)),
    "linear": lambda x, d: nn.Linear(3, 3, device=d)(x),
    "conv2d": lambda x, d: nn.Conv2d(1, 1, 2, device=d)(x[None, None]),
    "lstm": lambda x, d: nn.LSTM(3, 3, device=d)(x),
    "gru_cell": lambda x, d: nn.GRUCell(3, 3, device=d)(x),
    "attention": lambda x, d: nn.functional.scaled_dot_product_attention(
        x[None], x[None].to(d), x[None]
    ),
    "multihead": lambda x, d: nn.MultiheadAttention(3, 1, device=d)(x, x, x),
    "embedding": lambda x, d: nn.functional.embedding(x.long(), x.to(d)),
    "cross_entropy": lambda x, d: nn.functional.cross_entropy(x, x[0].long().to(d)),
    "layer_norm": lambda x, d: nn.functional.layer_norm(x, (3,), x[0].to(d)),
    "batch_norm": lambda x, d: nn.functional.batch_norm(x, x[0].to(d), x[0].to(d)),
    "index": lambda x, d: x[torch.tensor([0], device=d)],
    "index_add": lambda x, d: x.index_add(0, torch.arange(3, device=d), x),
    "gather": lambda x, d: x.gather(0, x.long().to(d)),
    "scatter": lambda x, d: x.scatter(0, x.long().to(d), x),
    "masked_fill": lambda x, d: x.masked_fill((x > 0).to(d), 1.0),
    "lerp": lambda x, d: x.lerp(x.to(d), 0.5),
    "solve": lambda x, d: torch.linalg.solve(x, x.to(d)),
    "equal": lambda x, d: torch.equal(x, x.to(d)),
    "isin": lambda x, d: torch.isin(x, x.to(d)),
    "grid_sample": lambda x, d: nn.functional.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2, device=d), align_corners=False
    ),
    "foreach": lambda x, d: torch._foreach_add([x], [x.to(d)]),
    "set_": lambda x, d: torch.empty(0, device=d).set_(x),
    "sparse": lambda x, d: x.to_sparse() + x.to_sparse().to(d),
    "sparse_mm": lambda x, d: torch.sparse.mm(x.to_sparse(), x.to(d)),
    "generator": lambda x, d: torch.bernoulli(x, generator=torch.Generator(d)),
    "generator_native": lambda x, d: torch.rand(3, device=x.device, generator=torch.Generator(d)),
}


class TestMixedDevices(SeveralDevicesTestCase):
    """What the errors name, both ways round, and that nothing has changed."""

    @parametrize("name", list(MIXED))
    def test_both_devices_are_named(self, name):
        for (here, there), current in itertools.product(BOTH_WAYS, range(2)):
            x = torch.zeros(3, 3, device=here)
            with hologram.device(current), self.assertRaises((RuntimeError, ValueError)) as raised:
                MIXED[name](x, there)
            text = str(raised.exception)
            self.assertIn("hologram:0", text)
            self.assertIn("hologram:1", text)
            self.assertNotIn("INTERNAL ASSERT", text)
            self.assertEqual(x.tolist(), [[0.0] * 3] * 3, "changed by a call that was refused")

    def test_cudas_words(self):
        x = torch.ones(2, device=ONE)
        for call in (lambda: x + x.to(ZERO), lambda: torch.dot(x, x.to(ZERO))):
            with self.assertRaisesRegex(RuntimeError, SAME_DEVICE):
                call()

    def test_gradient_of_another_device(self):
        x = torch.ones(2, device=ONE, requires_grad=True)
        # torch's own words; the first prints the index as a character.
        with self.assertRaisesRegex(RuntimeError, "assign a gradient located on device with index"):
            x.grad = torch.ones(2, device=ZERO)
        with self.assertRaisesRegex(RuntimeError, "expected device hologram:1 but got hologram:0"):
            (x * 2).backward(torch.ones(2, device=ZERO))
        self.assertIsNone(x.grad)


instantiate_parametrized_tests(TestScalars)
TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
