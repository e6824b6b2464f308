"""The views of a program."""

from __future__ import annotations

from programs.builder import Builder
from programs.variable import broadcast, numel


def slice(builder: Builder) -> None:
    x = builder.some()
    if not x.shape:
        return
    axis = builder.choose.randrange(len(x.shape))
    size = x.shape[axis]
    kind = builder.choose.randrange(4)
    before = ":, " * axis
    shape = list(x.shape)
    if kind == 0 and size > 0:
        index = builder.choose.randrange(size)
        del shape[axis]
        expression = f"{x.name}.select({axis}, {index})"
    elif kind == 1:
        step = builder.choose.randint(2, 3)
        shape[axis] = (size + step - 1) // step
        expression = f"{x.name}[{before}::{step}]"
    else:
        low = builder.choose.randint(0, size)
        high = builder.choose.randint(low, size)
        shape[axis] = high - low
        expression = f"{x.name}[{before}{low}:{high}]"
    builder.view(x, tuple(shape), expression, True)


def turn(builder: Builder) -> None:
    x = builder.some()
    shape = x.shape
    rank = len(shape)
    if rank >= 2 and builder.chance(0.6):
        order = builder.choose.sample(range(rank), rank)
        builder.view(x, tuple(shape[i] for i in order), f"{x.name}.permute({order})", True)
    elif rank < 4 and builder.chance(0.4):
        axis = builder.choose.randint(0, rank)
        wider = (*shape[:axis], 1, *shape[axis:])
        builder.view(x, wider, f"{x.name}.unsqueeze({axis})", True)
    elif rank and 1 in shape:
        builder.view(x, tuple(s for s in shape if s != 1), f"{x.name}.squeeze()", True)
    elif rank == 2 and shape[0] == shape[1]:
        builder.view(x, (shape[0],), f"{x.name}.diagonal()", True)
    elif rank >= 1:
        # May be a view or a copy.
        builder.view(x, (numel(shape),), f"{x.name}.reshape(-1)", True)
        builder.variables[-1].numel = None


def expand(builder: Builder) -> None:
    x = builder.some()
    fitting = [s for s in builder.shapes if broadcast(s, x.shape) == s and s != x.shape]
    if fitting:
        shape = builder.choose.choice(fitting)
        builder.view(x, shape, f"{x.name}.expand({shape})", False)


def restride(builder: Builder) -> None:
    """Any sizes and strides within the storage: elements may overlap."""
    x = builder.some()
    if x.numel is None or x.numel == 0:
        return
    offset = builder.choose.randrange(x.numel)
    shape, strides, last = [], [], offset
    for _ in range(builder.choose.randint(1, 2)):
        stride = builder.choose.choice([0, 1, 1, 2, 3, 5])
        most = (x.numel - 1 - last) // stride + 1 if stride else 4
        size = builder.choose.randint(1, max(1, min(most, 12)))
        last += (size - 1) * stride
        shape.append(size)
        strides.append(stride)
    writable = len(shape) == 1 and (strides[0] != 0 or shape[0] == 1)
    text = f"{x.name}.as_strided({shape}, {strides}, {offset})"
    builder.view(x, tuple(shape), text, writable)
