"""The program that a seed stands for."""

from __future__ import annotations

from collections.abc import Callable

from programs import calls, collectives, interrupts, operations, rows, views
from programs.builder import Builder
from programs.line import Line

# How often each is chosen.
WEIGHTS: dict[Callable[[Builder], None], float] = {
    operations.unary: 16,
    operations.binary: 34,
    operations.scaled: 4,
    operations.power: 3,
    operations.activation: 4,
    operations.backward: 1,
    operations.comparison: 4,
    operations.logical: 2,
    operations.where: 5,
    operations.clamp: 4,
    operations.three: 6,
    operations.convert: 5,
    operations.fill: 3,
    operations.several: 1,
    operations.draw: 5,
    calls.call: 8,
    views.slice: 7,
    views.turn: 4,
    views.expand: 2,
    views.restride: 2,
    Builder.make: 2,
    interrupts.free: 8,
    interrupts.interrupt: 4,
}
# What a program that folds has besides.
ROW_WEIGHTS: dict[Callable[[Builder], None], float] = {
    rows.fold: 26,
    rows.whole: 5,
    rows.scan: 8,
    rows.row_program: 14,
    rows.channel_program: 3,
    rows.loss: 2,
    rows.backward: 6,
}


# What a program of two ranks has besides.
RANK_WEIGHTS: dict[Callable[[Builder], None], float] = {collectives.collective: 14}


def program(seed: int, of_ranks: bool = False) -> list[Line]:
    """The program of a seed: 2 to 60 operations on 2 to 5 tensors; every other one folds.

    With `of_ranks` it is one of two ranks of a process group, which has collectives.
    """
    builder = Builder(seed)
    weights = {**WEIGHTS, **ROW_WEIGHTS} if builder.folds else WEIGHTS
    if of_ranks:
        weights = {**weights, **RANK_WEIGHTS}
    steps, step_weights = list(weights), list(weights.values())
    choose = builder.choose
    for _ in range(choose.randint(2, 5)):
        builder.make()
    count = choose.choices([choose.randint(2, 12), choose.randint(2, 60)])[0]
    for _ in range(count):
        choose.choices(steps, step_weights)[0](builder)
        while len(builder.variables) > 12:
            interrupts.drop(builder, choose.choice(builder.variables))
    return builder.lines
