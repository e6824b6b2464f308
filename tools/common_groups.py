"""Run what programs often compute, and print the GPU kernels of its groups as texts.

usage: python tools/common_groups.py [--texts N]

Every row of the operation table in the dtypes, layouts and forms it is called in, casts, fills,
reductions, norms, losses, random numbers and optimizers run on the CPU as one program each, so that
the kernels are those of the groups that a GPU's programs have. A kernel's text does not depend on
sizes. Prints a JSON list of N texts of about equal length, with which tools/build_kernels.py does
the rest. test/equal_on_devices.py runs the same programs on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

if __name__ == "__main__":
    os.environ["HOLOGRAM_BACKENDS"] = "cpu"

# After the variable, which is read when the package is loaded.
import torch
from torch.nn import functional as F

from torch_hologram import _C

DEVICE = "hologram"
REAL = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ALL = (*REAL, *INTEGERS, torch.bool)
# Of the others only what is called without broadcasts and strides.
COMMON = (*REAL, torch.int64, torch.int32)
ROWS, COLUMNS = 24, 48

Program = Callable[[], object]

UNARY = (
    "neg abs sign relu reciprocal sqrt rsqrt exp exp2 expm1 log log2 log1p tanh sigmoid erf sin "
    "cos floor ceil round trunc logical_not square silu mish hardswish hardsigmoid softplus elu "
    "selu celu leaky_relu relu6 hardtanh logsigmoid gelu positive frac isnan isinf isfinite erfc "
    "tan sinh cosh log10 sgn bitwise_not nan_to_num"
).split()
BINARY = (
    "add sub mul div maximum minimum pow eq ne lt le gt ge logical_and logical_or logical_xor "
    "remainder fmod floor_divide atan2 hypot bitwise_and bitwise_or bitwise_xor"
).split()
FOLDS = "sum prod amax amin mean var std any all argmax argmin logsumexp norm".split()


def function(name: str) -> Callable[..., torch.Tensor]:
    found: Callable[..., torch.Tensor] | None = getattr(torch, name, None) or getattr(F, name, None)
    assert found is not None, name
    return found


def values(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    x = torch.arange(1, 1 + torch.Size(sizes).numel()).remainder(7).reshape(sizes)
    return x.to(dtype).to(DEVICE)


def pointwise() -> Iterator[Program]:
    for dtype in ALL:
        x, y = values(dtype, ROWS, COLUMNS), values(dtype, ROWS, COLUMNS) + values(dtype, 1)
        row, column = values(dtype, COLUMNS), values(dtype, ROWS, 1)
        number, one = (2.5 if dtype.is_floating_point else 3), values(dtype)
        condition = values(torch.bool, ROWS, COLUMNS)
        for name in UNARY:
            op = function(name)
            yield lambda op=op, x=x: op(x)
            inplace = getattr(torch.Tensor, f"{name}_", None)
            if inplace is not None:
                yield lambda inplace=inplace, x=x: inplace(x)
        for name in BINARY:
            op = function(name)
            others = (y, number, one, row, column, y.t().contiguous().t())
            for other in others if dtype in COMMON else (y, number):
                yield lambda op=op, x=x, other=other: op(x, other)
                yield lambda op=op, x=x, other=other: op(other, x)
            inplace = getattr(torch.Tensor, f"{name}_", None)
            if inplace is not None:
                for other in (y, number, one) if dtype in COMMON else (y, number):
                    yield lambda inplace=inplace, x=x, other=other: inplace(x, other)
        for a, b in itertools.product((x, number, one), (y, number, one)):
            yield lambda a=a, b=b, condition=condition: torch.where(condition, a, b)
        yield lambda x=x, number=number: torch.clamp(x, number, 2 * number)
        yield lambda x=x, number=number: torch.clamp(x, min=number)
        yield lambda x=x, number=number: torch.clamp(x, max=number)
        yield lambda x=x, y=y: torch.clamp(x, y, y)
        yield lambda x=x, condition=condition: x.masked_fill(condition, 1)
        yield lambda x=x, y=y: torch.addcmul(x, x, y, value=2)
        yield lambda x=x, y=y: torch.addcdiv(x, x, y, value=2)
        yield lambda x=x, y=y: torch.add(x, y, alpha=3)
        yield lambda x=x, y=y: torch.sub(x, y, alpha=3)
        yield lambda x=x, y=y: torch.lerp(x, y, 0.5)
        yield lambda x=x, y=y: torch.lerp(x, y, y)
        yield lambda x=x: x.clone()
        yield lambda x=x: x.t().contiguous()
        yield lambda x=x: x[:, ::2].contiguous()
        yield lambda x=x: x.fill_(1)
        yield lambda x=x: x.zero_()
        yield lambda dtype=dtype: torch.full((ROWS,), 1, dtype=dtype, device=DEVICE)
        yield lambda dtype=dtype: torch.arange(ROWS, dtype=dtype, device=DEVICE)
        yield lambda x=x: x.tril()
        yield lambda x=x: x.triu()
        for to in ALL:
            yield lambda x=x, to=to: x.to(to)
            if dtype in COMMON and to in COMMON:
                yield lambda x=x, to=to: x.t().to(to)
            if dtype in REAL and to in REAL:
                yield lambda x=x, to=to: x + values(to, ROWS, COLUMNS)
                yield lambda x=x, to=to: x * values(to, ROWS, COLUMNS)


def reductions() -> Iterator[Program]:
    for dtype in ALL:
        for sizes in ((ROWS, COLUMNS), (4, 3, COLUMNS)):
            x = values(dtype, *sizes)
            for name in FOLDS:
                op = function(name)
                for dim in range(len(sizes)):
                    yield lambda op=op, x=x, dim=dim: op(x, dim=dim)
                    yield lambda op=op, x=x, dim=dim: op(x, dim=dim, keepdim=True)
                yield lambda op=op, x=x: op(x)
            yield lambda x=x: x.sum((0, -1))
            yield lambda x=x: x.mean((0, -1))
            for name in ("cumsum", "cumprod"):
                for dim in range(len(sizes)):
                    yield lambda name=name, x=x, dim=dim: function(name)(x, dim)
            yield lambda x=x: x.max()
            yield lambda x=x: x.min()
            yield lambda x=x: torch.var_mean(x, -1)
            yield lambda x=x: torch.aminmax(x)
            yield lambda x=x: torch.count_nonzero(x)


def gradients(call: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Program:
    def run() -> object:
        leaves = [
            x.detach().requires_grad_() if x.is_floating_point() else x.detach() for x in inputs
        ]
        result = call(*leaves)
        # Cut from each other, each is a program of its own.
        torch.hologram.flush()
        wanted = [x for x in leaves if x.requires_grad]
        return torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)

    return run


def norms_and_losses() -> Iterator[Program]:
    for dtype in REAL:
        x, weight = values(dtype, ROWS, COLUMNS), values(dtype, COLUMNS)
        images = values(dtype, 4, 8, 6, 6)
        channels = values(dtype, 8)
        target = values(torch.int64, ROWS)
        for dim in (0, 1):
            yield gradients(lambda x, dim=dim: torch.softmax(x, dim), x)
            yield gradients(lambda x, dim=dim: torch.log_softmax(x, dim), x)
        yield from (
            lambda x=x: torch.softmax(x, -1),
            lambda x=x: torch.log_softmax(x, -1),
            lambda x=x: F.layer_norm(x, (COLUMNS,)),
            lambda x=x, w=weight: F.layer_norm(x, (COLUMNS,), w, w),
            lambda x=x, w=weight: F.rms_norm(x, (COLUMNS,), w),
            lambda x=images, w=channels: F.group_norm(x, 2, w, w),
            lambda x=images, w=channels: F.batch_norm(x, w, w, w, w),
            lambda x=x: F.dropout(x, 0.5),
        )
        yield gradients(lambda x: F.layer_norm(x, (COLUMNS,)), x)
        yield gradients(lambda x, w: F.layer_norm(x, (COLUMNS,), w, w), x, weight)
        yield gradients(lambda x, w: F.rms_norm(x, (COLUMNS,), w), x, weight)
        yield gradients(lambda x, w: F.group_norm(x, 2, w, w), images, channels)
        for training in (False, True):
            yield gradients(
                lambda x, w, training=training: F.batch_norm(
                    x, torch.zeros_like(w), torch.ones_like(w), w, w, training
                ),
                images,
                channels,
            )
        yield gradients(lambda x, t: F.cross_entropy(x, t), x, target)
        yield gradients(lambda x, t: F.nll_loss(x, t), x, target)
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy):
            yield gradients(lambda x, y, loss=loss: loss(x / 8, y / 8), x, x)
        yield gradients(F.binary_cross_entropy_with_logits, x, x)
        for name in UNARY:
            if hasattr(F, name) or name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sin", "cos"):
                yield gradients(function(name), x)
        for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum"):
            yield gradients(function(name), x, x)
        yield gradients(lambda x: F.gelu(x, approximate="tanh"), x)
        yield gradients(lambda x: F.dropout(x, 0.5), x)
        yield gradients(lambda x, w: x + w, x, weight)
        yield gradients(lambda x, w: F.relu(x + w), x, weight)
        yield gradients(lambda x, w: F.gelu(x + w), x, weight)


def random_numbers() -> Iterator[Program]:
    for dtype in REAL:
        x = values(dtype, ROWS, COLUMNS)
        yield lambda dtype=dtype: torch.rand(ROWS, COLUMNS, dtype=dtype, device=DEVICE)
        yield lambda dtype=dtype: torch.randn(ROWS, COLUMNS, dtype=dtype, device=DEVICE)
        for name, *arguments in (
            ("uniform_", -1, 1),
            ("normal_", 1, 2),
            ("bernoulli_", 0.5),
            ("exponential_",),
            ("geometric_", 0.5),
            ("cauchy_",),
            ("log_normal_",),
            ("random_",),
        ):
            yield lambda x=x, name=name, arguments=arguments: getattr(x, name)(*arguments)
    for dtype in INTEGERS:
        yield lambda dtype=dtype: torch.randint(0, 9, (ROWS,), dtype=dtype, device=DEVICE)


def optimizers() -> Iterator[Program]:
    for name, options in (
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        ("Adam", {}),
        ("AdamW", {}),
        ("RMSprop", {}),
    ):
        for dtype, form in itertools.product(
            (torch.float32, torch.bfloat16), ("foreach", "fused", "single")
        ):
            flags = {"foreach": form == "foreach"} if form != "fused" else {"fused": True}

            def step(
                name: str = name,
                options: dict = options,
                dtype: torch.dtype = dtype,
                flags: dict = flags,
            ) -> None:
                weights = [values(dtype, ROWS, COLUMNS).requires_grad_() for _ in range(3)]
                optimizer = getattr(torch.optim, name)(weights, **options, **flags)
                for _ in range(2):
                    for weight in weights:
                        weight.grad = values(dtype, ROWS, COLUMNS)
                    torch.hologram.flush()
                    optimizer.step()
                    torch.hologram.flush()

            yield step


def keep(program: Program, of_many: bool) -> None:
    """Runs a program by itself; what torch refuses of these arguments has no kernel."""
    torch.hologram.flush()
    _C.start_capture(0, [])
    results = []  # what nobody wants is not computed
    with suppress(RuntimeError, TypeError, NotImplementedError, IndexError):
        results.append(program())
    _C.keep_kernels(0, of_many)


FAMILIES = (pointwise, reductions, norms_and_losses, random_numbers, optimizers)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=8)
    arguments = parser.parse_args()
    for programs in FAMILIES:
        for program in programs():
            # Lists of tensors are what optimizers have.
            keep(program, programs is optimizers)
    json.dump(_C.kept_kernels(arguments.texts), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
