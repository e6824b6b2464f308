"""What a program does between operations: frees, and what makes the window run."""

from __future__ import annotations

import torch

from programs.builder import Builder
from programs.variable import Variable


def drop(builder: Builder, x: Variable) -> None:
    """Frees a variable, unless it is one of the last two; now and then on another thread."""
    if len(builder.variables) <= 2:
        return
    builder.variables.remove(x)
    kind = builder.choose.randrange(10)
    if kind < 8:
        builder.emit(f"del {x.name}")
        return
    wait = kind == 8
    builder.emit(f"held = [{x.name}]; del {x.name}; elsewhere(held.clear, wait={wait})")


def free(builder: Builder) -> None:
    drop(builder, builder.choose.choice(builder.variables))


def interrupt(builder: Builder) -> None:
    """Something that makes the window run, rarely what takes long."""
    if builder.chance(0.5):
        return
    x = builder.some().name
    text = builder.choose.choices(
        [
            "flush()", "synchronize()", "event()", "wait_event()", f"read({x})", f"item({x})",
            f"delegated({x})", f"address({x})", f"storage_address({x})",
            "use_stream(0)", "use_stream(1)", "wait_stream(1)", "run_out_of_memory()", "fork()",
            "fill_window", f"look({x})", "look_away()", f"give_address({x})",
            f"step({x})",
        ],
        [5, 3, 3, 2, 4, 3, 4, 2, 1, 3, 3, 2, 1, 0.15, 0.4, 3, 2, 0.5, 2],
    )[0]  # fmt: skip
    if text == "fill_window":
        whole = [v for v in builder.variables if v.writable and v.dtype == torch.float32]
        if not whole:
            return
        text = f"fill_window({whole[0].name})"
    builder.emit(text)
