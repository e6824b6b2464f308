"""Collectives between operations: a program of two ranks, which run the same lines."""

from __future__ import annotations

from programs.builder import Builder
from programs.variable import numel


def collective(builder: Builder) -> None:
    x = builder.some()
    if numel(x.shape) == 0:
        return
    kind = builder.choose.choice(["reduced", "reduced", "beside", "gathered", "sent", "in place"])
    if kind == "gathered":
        shape = (2 * x.shape[0], *x.shape[1:]) if x.shape else (2,)
        if numel(shape) <= 5000:
            builder.new(shape, x.dtype, f"gathered({x.name})")
    elif kind == "in place":
        operation = builder.choose.choice(["SUM", "MIN", "MAX"])
        builder.write(x, [], f"all_reduce({x.name}, '{operation}')", "bits", "")
    elif kind == "beside":
        y = builder.some()
        builder.new(y.shape, y.dtype, f"beside({x.name}, {y.name})")
    elif kind == "reduced":
        # The ranks go apart first.
        builder.new(x.shape, x.dtype, f"reduced({x.name})")
    else:
        builder.new(x.shape, x.dtype, f"sent({x.name})")
