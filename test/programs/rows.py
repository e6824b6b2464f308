"""The reductions and row programs of a program: what folds elements, and what joins it."""

from __future__ import annotations

import torch

from programs.builder import Builder
from programs.operations import DIFFERENTIABLE
from programs.variable import Variable, numel

# Of torch.name(x, dims, keepdim=keep): what its terms amount to, which the CPU's tolerance is of.
FOLDS = {
    "sum": "total({x}, {dims}, {keep})",
    "nansum": "total({x}, {dims}, {keep})",
    "mean": "total({x}, {dims}, {keep}) / {count}",
    "amax": "",
    "amin": "",
    "any": "",
    "all": "",
    "logsumexp": "most({x}, {dims}, {keep}) + 10",
    "var": "squares({x}, {dims}, {keep})",
    "std": "spread({x}, {dims}, {keep}) / small({x}.double().std({dims}, {more}))",
    "prod": "product({x}, {dims}, {keep}) * {count}",
    "argmax": "",
    "argmin": "",
    "max": "",
    "min": "",
}
FOLD_WEIGHTS = (8, 1, 4, 4, 3, 1, 1, 2, 4, 2, 2, 2, 1, 2, 1)
OF_ONE_DIM = ("prod", "argmax", "argmin", "max", "min")
OF_FLOATS = ("nansum", "mean", "logsumexp", "var", "std")

# Of rows or channels of x. Where terms cancel, rounding has a say in every digit: the scale is
# infinite, which leaves the modes to be compared. The conformance tests compare those with float64.
ANYTHING = "float('inf')"
FUNCTIONAL = "torch.nn.functional"
ROW_PROGRAMS = {
    FUNCTIONAL + ".softmax({x}, {dim})": "1",
    FUNCTIONAL + ".log_softmax({x}, {dim})": "2 * big({x}).max() + 10",
    FUNCTIONAL + ".layer_norm({x}, {last})": ANYTHING,
    FUNCTIONAL + ".layer_norm({x}, {last}, {x}.detach()[(0,) * {before}])": ANYTHING,
    FUNCTIONAL + ".rms_norm({x}, {last})": ANYTHING,
    FUNCTIONAL + ".normalize({x}, dim={dim})": ANYTHING,
    "({x} - {x}.mean({dim}, keepdim=True))": "2 * big({x}).max()",
    "({x} - {x}.amax({dim}, keepdim=True)).exp()": "1",
    "({x} / {x}.abs().sum({dim}, keepdim=True))": ANYTHING,
    "{x}.sub({x}.amin({dim}, True)).div_({x}.var({dim}, correction=0, keepdim=True) + 1)": ANYTHING,
}
CHANNEL_PROGRAMS = (
    FUNCTIONAL + ".batch_norm({x}, None, None, None, None, True)",
    FUNCTIONAL + ".group_norm({x}, {groups})",
)


def dims_of(builder: Builder, x: Variable, one: bool) -> list[int]:
    """Some dimensions of x, now and then counted from the end: rather the first or the last."""
    rank = len(x.shape)
    if one or builder.chance(0.5):
        dims = [builder.choose.choice([0, rank - 1, builder.choose.randrange(rank)])]
    else:
        dims = sorted(builder.choose.sample(range(rank), builder.choose.randint(1, rank)))
    return [dim - rank if builder.chance(0.5) else dim for dim in dims]


def reduced(shape: tuple[int, ...], dims: list[int], keep: bool) -> tuple[int, ...]:
    gone = {dim % len(shape) for dim in dims}
    sizes = ((1 if d in gone else size) for d, size in enumerate(shape) if keep or d not in gone)
    return tuple(sizes)


def fold(builder: Builder) -> None:
    x = builder.some()
    name = builder.choose.choices(list(FOLDS), FOLD_WEIGHTS)[0]
    if not x.shape or (name in OF_FLOATS and not x.dtype.is_floating_point):
        return
    if x.dtype == torch.bool and name in ("argmax", "argmin"):
        return
    dims = dims_of(builder, x, name in OF_ONE_DIM)
    count = numel(tuple(x.shape[dim] for dim in dims))
    if numel(x.shape) == 0 and name not in ("sum", "any", "all", "prod"):
        return
    keep = builder.chance(0.5)
    dtype = torch.bool if name in ("any", "all") else x.dtype
    if name in ("argmax", "argmin") or (name in ("sum", "prod") and not x.dtype.is_floating_point):
        dtype = torch.int64
    dim = str(dims[0]) if name in OF_ONE_DIM else str(tuple(dims))
    more = ""
    if name in ("sum", "nansum", "mean", "prod") and builder.chance(0.15):
        types = [torch.float32, torch.float64]
        dtype = builder.choose.choice([*types, torch.int64] if name == "sum" else types)
        more = f", dtype={dtype}"
    if name in ("var", "std"):
        # Fewer than there are: else torch warns.
        more = f", correction={builder.choose.randrange(min(count, 3))}"
    more = f"keepdim={keep}{more}"
    call = f"torch.{name}({x.name}, {dim}, {more})"
    form = FOLDS[name].format(x=x.name, dims=tuple(dims), keep=keep, count=count, more=more)
    if name in ("max", "min"):
        call += builder.choose.choice([".values", ".values", ".indices"])
        if call.endswith("indices"):
            dtype = torch.int64
    scale = form if dtype.is_floating_point else ""
    shape = reduced(x.shape, dims, keep)
    builder.new(shape, dtype, call, "close" if scale else "values", scale)


def whole(builder: Builder) -> None:
    """Of all elements, to a tensor without dimensions."""
    x = builder.some()
    if numel(x.shape) == 0:
        return
    name = builder.choose.choice(["sum", "max", "min", "mean", "count_nonzero", "norm"])
    floats = x.dtype.is_floating_point
    if (name in ("mean", "norm") and not floats) or (x.dtype == torch.bool and name != "sum"):
        return
    scale = {"sum": f"big({x.name}).sum()", "mean": f"big({x.name}).mean()"}.get(name, "")
    call = f"torch.{name}({x.name})"
    if name == "norm":
        order = builder.choose.choice(["2", "1", "float('inf')", "0", "3"])
        call = f"torch.linalg.vector_norm({x.name}, {order})"
        # The CPU adds the terms in a few lanes one after another: its error grows with the number.
        scale = f"(big({x.name}).sum() + big({x.name}).pow(3).sum()) * (1 + {x.name}.numel() / 64)"
    dtype = x.dtype
    if name == "count_nonzero" or (name == "sum" and not floats):
        dtype, scale = torch.int64, ""
    builder.new((), dtype, call, "close" if scale else "values", scale)


def scan(builder: Builder) -> None:
    """The CPU's bits: it adds and multiplies in the same order."""
    x = builder.some()
    if not x.shape:
        return
    (dim,) = dims_of(builder, x, one=True)
    name = builder.choose.choice(["cumsum", "cumsum", "cumprod"])
    dtype = x.dtype if x.dtype.is_floating_point else torch.int64
    if builder.chance(0.15):
        dtype = builder.choose.choice([torch.float32, torch.float64, torch.bfloat16])
        call = f"torch.{name}({x.name}, {dim}, dtype={dtype}{{out}})"
        builder.result([x], dtype, call, None, "bits", exact_out=True)
        return
    method = None if x.dtype == torch.bool else f"{x.name}.{name}_({dim})"
    call = f"torch.{name}({x.name}, {dim}{{out}})"
    builder.result([x], dtype, call, method, "bits", exact_out=True)


def row_program(builder: Builder) -> None:
    x = builder.floating()
    if x is None or not x.shape or numel(x.shape) == 0:
        return
    form = builder.choose.choice(list(ROW_PROGRAMS))
    text = written(builder, x, form)
    builder.new(x.shape, x.dtype, text, "close", ROW_PROGRAMS[form].format(x=x.name))


def written(builder: Builder, x: Variable, form: str, name: str = "") -> str:
    rank = len(x.shape)
    last = builder.choose.randint(1, rank)
    dim = builder.choose.choice([-1, rank - 1, builder.choose.randrange(rank)])
    return form.format(x=name or x.name, dim=dim, last=x.shape[-last:], before=rank - last)


def channel_program(builder: Builder) -> None:
    x = builder.floating()
    # A view as reshape() makes it, contiguous or not, has rows of its own to go over.
    if x is None or len(x.shape) < 2 or numel(x.shape) == 0 or numel(x.shape) == x.shape[1]:
        return
    groups = builder.choose.choice([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
    name = x.name
    if len(x.shape) == 4 and builder.chance(0.4):
        name += ".contiguous(memory_format=torch.channels_last)"
    text = builder.choose.choice(CHANNEL_PROGRAMS).format(x=name, groups=groups)
    builder.new(x.shape, x.dtype, text, "close", ANYTHING)


def loss(builder: Builder) -> None:
    x = builder.floating()
    if x is None or len(x.shape) != 2 or numel(x.shape) == 0:
        return
    rows, classes = x.shape
    targets = f"classes({builder.choose.randrange(10**6)}, {rows}, {classes})"
    reduction = builder.choose.choice(["mean", "sum", "none"])
    more = f"reduction='{reduction}', label_smoothing={builder.choose.choice([0.0, 0.0, 0.1])}"
    call = f"torch.nn.functional.cross_entropy({x.name}, {targets}, {more})"
    scale = f"(2 * big({x.name}).max() + 10) * {rows}"
    builder.new((rows,) if reduction == "none" else (), x.dtype, call, "close", scale)


def backward(builder: Builder) -> None:
    """The derivative of a row program, perhaps after an activation, or of a loss."""
    x = builder.floating()
    if x is None or not x.shape or numel(x.shape) == 0:
        return
    if len(x.shape) == 2 and builder.chance(0.2):
        targets = f"classes({builder.choose.randrange(10**6)}, {x.shape[0]}, {x.shape[1]})"
        function = f"torch.nn.functional.cross_entropy(x, {targets})"
        builder.new(
            x.shape, x.dtype, f"gradient(lambda x: {function}, {x.name})", "close", ANYTHING
        )
        return
    same = [v for v in builder.variables if v.shape == x.shape and v.dtype == x.dtype]
    grad = builder.choose.choice(same)
    inner = builder.choose.choice(DIFFERENTIABLE).format(x="x") if builder.chance(0.3) else "x"
    function = written(builder, x, builder.choose.choice(list(ROW_PROGRAMS)), "y")
    call = f"gradient(lambda x: (lambda y: {function})({inner}), {x.name}, {grad.name})"
    builder.new(x.shape, x.dtype, call, "close", ANYTHING)
