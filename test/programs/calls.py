"""Kernels of torch's in a program, which are recorded from the second call of their kind on."""

from __future__ import annotations

from programs.builder import Builder
from programs.variable import Variable, numel


def call(builder: Builder) -> None:
    x = builder.some()
    if not x.shape or numel(x.shape) == 0:
        return
    builder.choose.choice([moved, moved, picked, picked, joined, written, multiplied])(builder, x)


def moved(builder: Builder, x: Variable) -> None:
    """The elements at other places."""
    rank = len(x.shape)
    dim = builder.choose.randrange(rank)
    choices = [f"{x.name}.flip({dim})", f"{x.name}.roll(1, {dim})"]
    if rank >= 2:
        choices += [f"{x.name}.tril({builder.choose.choice([-1, 0, 1])})", f"{x.name}.triu()"]
        choices.append(f"{x.name}.transpose(0, -1).clone().transpose(0, -1)")
    builder.new(x.shape, x.dtype, builder.choose.choice(choices))


def picked(builder: Builder, x: Variable) -> None:
    """Elements by their indices."""
    dim = builder.choose.randrange(len(x.shape))
    size = x.shape[dim]
    count = builder.choose.randint(1, 3)
    indices = [builder.choose.randrange(size) for _ in range(count)]
    at = f"indices({indices})"
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    if dim == 0 and builder.chance(0.5):
        builder.new(shape, x.dtype, f"{x.name}[{at}]")
    else:
        builder.new(shape, x.dtype, f"{x.name}.index_select({dim}, {at})")


def joined(builder: Builder, x: Variable) -> None:
    dim = builder.choose.randrange(len(x.shape))
    others = [v for v in builder.variables if v.shape == x.shape and v.dtype == x.dtype]
    y = builder.choose.choice(others)
    shape = (*x.shape[:dim], 2 * x.shape[dim], *x.shape[dim + 1 :])
    if numel(shape) <= 5000:
        builder.new(shape, x.dtype, f"torch.cat([{x.name}, {y.name}], {dim})")


def written(builder: Builder, x: Variable) -> None:
    """A part of a tensor."""
    dim = builder.choose.randrange(len(x.shape))
    index = builder.choose.randrange(x.shape[dim])
    number = builder.choose.choice([0, 1, 3])
    builder.write(x, [], f"{x.name}.index_fill_({dim}, indices([{index}]), {number})", "bits", "")


def multiplied(builder: Builder, x: Variable) -> None:
    """A product of matrices, with what is computed around it."""
    if not x.dtype.is_floating_point or len(x.shape) != 2 or x.shape[0] > 64:
        return
    rows = x.shape[0]
    # Where infinities meet the CPU's kernels differ in the order of their sums.
    builder.new((rows, rows), x.dtype, f"torch.mm({x.name}, {x.name}.t())", "close", "float('inf')")
