"""The cells of benchmarks/rows.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch

from row_programs.case import (
    BACKWARD,
    BROADCAST,
    DTYPES,
    FORWARD,
    LOSS,
    REDUCTION,
    STEP,
    Case,
    Hand,
    Names,
)

SIZES = (100_000, 1_000_000, 10_000_000)

BROADCASTS = {
    "[R,C] + [C]": lambda n: ((n // 1000, 1000), (1000,)),
    "[R,C] + [R,1]": lambda n: ((n // 1000, 1000), (n // 1000, 1)),
    "[R,64] + [64]": lambda n: ((n // 64, 64), (64,)),
    "[R,64] + [R,1]": lambda n: ((n // 64, 64), (n // 64, 1)),
    "[N,C,H,W] + [1,C,1,1]": lambda n: ((4, n // 1600, 20, 20), (1, n // 1600, 1, 1)),
    "[B,T,D] + [B,1,D]": lambda n: ((8, n // 512, 64), (8, 1, 64)),
    "[B,H,T,T] + [B,1,T,T]": lambda n: ((4, n // 10_000, 50, 50), (4, 1, 50, 50)),
}
REDUCTIONS = ("sum", "mean", "amax", "var", "argmax", "max.dim")
PLACES = {"all": "", "rows": "1", "columns": "0"}


def softmax(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    distance = x - x.mean(-1, keepdim=True)
    variance = (distance * distance).mean(-1, keepdim=True)
    return distance * torch.rsqrt(variance + 1e-5) * weight + bias


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def channel_norm(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    distance = x - x.mean(dims, keepdim=True)
    variance = (distance * distance).mean(dims, keepdim=True)
    return distance * torch.rsqrt(variance + 1e-5)


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return channel_norm(x, (0, 2, 3)) * weight[:, None, None] + bias[:, None, None]


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    normal = channel_norm(x.unflatten(1, (8, -1)), (2, 3, 4)).flatten(1, 2)
    return normal * weight[:, None, None] + bias[:, None, None]


def block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.gelu(x + bias) + x
    return torch.nn.functional.layer_norm(hidden, x.shape[-1:], weight, bias)


FUNCTIONS = {
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "block": block,
}

X, WEIGHT, BIAS = "x", "weight", "bias"
AFFINE = (X, WEIGHT, BIAS)
# Of rows: what a norm keeps for its backward.
MEAN = "x.float().mean(-1)"
DEVIATION = "1 / (x.float().var(-1, correction=0) + 1e-5).sqrt()"
ROOT = "1 / (x.float().square().mean(-1) + torch.finfo(x.dtype).eps).sqrt()"

# name: (expression, operands, the loop by hand, that of the backward with what it reads)
Program = tuple[str, tuple[str, ...], str, tuple[str, tuple[str, ...]] | None]
PROGRAMS: dict[str, Program] = {
    "softmax": (
        "F.softmax(x, -1)",
        (X,),
        "softmax",
        ("softmax_backward", ("seed", "value.detach()")),
    ),
    "log softmax": (
        "F.log_softmax(x, -1)",
        (X,),
        "log_softmax",
        ("log_softmax_backward", ("seed", "value.detach()")),
    ),
    "layer norm": (
        "F.layer_norm(x, x.shape[-1:], weight, bias)",
        AFFINE,
        "layer_norm",
        ("layer_norm_backward", ("seed", X, WEIGHT, MEAN, DEVIATION)),
    ),
    "rms norm": (
        "F.rms_norm(x, x.shape[-1:], weight)",
        (X, WEIGHT),
        "rms_norm",
        ("rms_norm_backward", ("seed", X, WEIGHT, ROOT)),
    ),
    "softmax from parts": ("softmax(x)", (X,), "softmax", None),
    "layer norm from parts": ("layer_norm(x, weight, bias)", AFFINE, "layer_norm", None),
    "rms norm from parts": ("rms_norm(x, weight)", (X, WEIGHT), "rms_norm", None),
    "bias, gelu, residual, layer norm": ("block(x, weight, bias)", AFFINE, "block", None),
}

# Of x, target and weight; the step is a forward with the gradient of x.
LOSSES = {
    "cross entropy": ("F.cross_entropy(x, target)", True),
    "cross entropy weighted": ("F.cross_entropy(x, target, weight)", False),
    "cross entropy smoothed": ("F.cross_entropy(x, target, label_smoothing=0.1)", False),
}

# Of images, NCHW or with the channels last, where group norm is not recorded.
CHANNEL_NORMS = {
    "batch norm": (
        "F.batch_norm(x, mean, variance, weight, bias, True)",
        ("", "last"),
        "batch_norm",
    ),
    "batch norm in eval": (
        "F.batch_norm(x, mean, variance, weight, bias, False)",
        ("", "last"),
        "batch_norm_in_eval",
    ),
    "group norm": ("F.group_norm(x, 8, weight, bias)", ("",), "group_norm"),
    "batch norm from parts": ("batch_norm(x, weight, bias)", ("", "last"), None),
    "group norm from parts": ("group_norm(x, weight, bias)", ("",), None),
}


def empty_like(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"torch.empty_like({name})" for name in names)


def broadcasts() -> Iterator[Case]:
    for name, size in product(BROADCASTS, (100_000, 1_000_000)):

        def operands(name: str = name, size: int = size) -> Names:
            x, y = (torch.randn(shape) for shape in BROADCASTS[name](size))
            return {"x": x, "y": y, "out": torch.empty_like(x)}

        expression = "torch.add(x, y, out=out)"
        yield Case(BROADCAST, name, "f32", "", size, expression, operands, compiles=False)


def reductions() -> Iterator[Case]:
    sizes = (1_000, 10_000, *SIZES)
    for name, (place, dims), size in product(REDUCTIONS, PLACES.items(), sizes):
        if name == "max.dim" and not dims:
            continue

        def operands(size: int = size) -> Names:
            columns = min(1000, size // 10)
            return {"x": torch.randn(size // columns, columns)}

        call = "max" if name == "max.dim" or (name == "amax" and not dims) else name
        expression = f"x.{call}({dims})"
        yield Case(REDUCTION, name, "f32", place, size, expression, operands, compiles=False)


def programs() -> Iterator[Case]:
    for name, (expression, used, loop, backward) in PROGRAMS.items():
        for dtype, columns, size in product(DTYPES, (64, 768, 4096, 32_768), SIZES):
            rows = size // columns
            if rows < 2:
                continue

            def operands(
                shape: tuple[int, int] = (rows, columns),
                dtype: str = dtype,
                used: tuple[str, ...] = used,
            ) -> Names:
                return {
                    k: torch.randn(shape if k == X else shape[1:]).to(DTYPES[dtype]) for k in used
                }

            sizes = (rows, columns, 1)
            case = (name, dtype, str(columns), size, expression, operands)
            hand = Hand(loop, sizes, used, empty_like((X,)))
            yield Case(FORWARD, *case, hand=hand, extra=FUNCTIONS)
            back = backward and Hand(backward[0], sizes, backward[1], empty_like(used))
            yield Case(BACKWARD, *case, leaves=used, hand=back, extra=FUNCTIONS)


def channel_norms() -> Iterator[Case]:
    for name, (expression, places, loop) in CHANNEL_NORMS.items():
        for dtype, place, size in product(DTYPES, places, SIZES):
            images = size // 50_000

            def operands(
                images: int = images,
                dtype: str = dtype,
                last: bool = place == "last",
                running: bool = "mean" in expression,
            ) -> Names:
                form = torch.channels_last if last else torch.contiguous_format
                x = torch.randn(images, 64, 28, 28).to(DTYPES[dtype]).to(memory_format=form)
                names = ("weight", "bias", *(("mean", "variance") if running else ()))
                return {"x": x, **{k: torch.ones(64) for k in names}}

            used = tuple(operands())
            hand = None
            if loop is not None:
                program = f"{loop}_last" if place else loop
                hand = Hand(program, (images, 64, 784), used, empty_like((X,)))
            case = (name, dtype, place, size, expression, operands)
            yield Case(FORWARD, *case, hand=hand, extra=FUNCTIONS)
            yield Case(BACKWARD, *case, leaves=AFFINE, extra=FUNCTIONS)


def losses() -> Iterator[Case]:
    sizes = (1_000, 100_000, 10_000_000)
    for name, (expression, by_hand) in LOSSES.items():
        for dtype, columns, size in product(DTYPES, (10, 1000, 32_768), sizes):
            if size < 2 * columns and columns != 1000:
                continue
            rows = max(size // columns, 1)

            def operands(
                shape: tuple[int, int] = (rows, columns),
                dtype: str = dtype,
                weighted: bool = "weight" in expression,
            ) -> Names:
                names = {"x": torch.randn(shape).to(DTYPES[dtype])}
                names["target"] = torch.randint(0, shape[1], shape[:1])
                if weighted:
                    names["weight"] = torch.rand(shape[1]).to(DTYPES[dtype])
                return names

            def hand(
                loop: str,
                result: str,
                sizes: tuple[int, int, int] = (rows, columns, 1),
                by_hand: bool = by_hand,
            ) -> Hand | None:
                return Hand(loop, sizes, (X, "target"), (result,)) if by_hand else None

            case = (name, dtype, str(columns), size, expression, operands)
            yield Case(LOSS, *case, hand=hand("cross_entropy", "x.new_empty(())"))
            of_x = hand("cross_entropy_step", "torch.empty_like(x)")
            yield Case(STEP, *case, leaves=(X,), hand=of_x)


SOURCES: tuple[Callable[[], Iterator[Case]], ...] = (
    broadcasts,
    reductions,
    programs,
    channel_norms,
    losses,
)

# --quick: one size of each program.
QUICK_SHAPES = ("", "last", "768", "1000", "rows", "columns", "all")
QUICK_SIZES = {LOSS: 100_000, STEP: 100_000}


def is_quick(case: Case) -> bool:
    return case.shape in QUICK_SHAPES and case.count == QUICK_SIZES.get(case.group, 1_000_000)


def cases(quick: bool, text: str) -> list[Case]:
    """The cells with `text` in their group and name."""
    every = (case for source in SOURCES for case in source() if is_quick(case) or not quick)
    return [case for case in every if text in f"{case.group} {case.name}"]
