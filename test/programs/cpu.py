"""Comparing a program with the CPU, line by line on equal operands."""

from __future__ import annotations

import itertools
import re

import torch
from common import CUDA_KERNELS

from programs.comparison import Mismatch, same, same_bits
from programs.line import Line
from programs.sharing import overlaps_itself
from programs.world import DEVICE, Result, World, finals

hologram = torch.hologram


def big(x: torch.Tensor) -> torch.Tensor:
    return x.double().abs()


def small(x: torch.Tensor) -> torch.Tensor:
    return x.double().abs().clamp_min(1e-300)


def total(x: torch.Tensor, dims: tuple[int, ...], keep: bool) -> torch.Tensor:
    return big(x).sum(dims, keep)


def squares(x: torch.Tensor, dims: tuple[int, ...], keep: bool) -> torch.Tensor:
    return big(x).square().sum(dims, keep)


def spread(x: torch.Tensor, dims: tuple[int, ...], keep: bool) -> torch.Tensor:
    """squares(), infinite where float32 has no such number: torch's are of float64 for a while."""
    terms = squares(x, dims, keep)
    return terms.masked_fill(terms > torch.finfo(torch.float32).max / 8, torch.inf)


def most(x: torch.Tensor, dims: tuple[int, ...], keep: bool) -> torch.Tensor:
    return big(x).amax(dims, keep)


def product(x: torch.Tensor, dims: tuple[int], keep: bool) -> torch.Tensor:
    """No partial product is greater."""
    return big(x).clamp_min(1).prod(dims[0], keep)


SCALES = {f.__name__: f for f in (big, small, total, squares, spread, most, product)}

TOLERANCE = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}  # torch.testing.assert_close's, relative and absolute


def assign(to: torch.Tensor, values: torch.Tensor) -> None:
    """Copies, also where elements of `to` share memory, to which torch does not copy."""
    if torch._debug_has_internal_overlap(to) != 1:
        to.copy_(values)
        return
    for index in itertools.product(*map(range, to.shape)):
        to[index] = values[index]


def close_enough(
    mine: torch.Tensor, wanted: torch.Tensor, line: Line, scale: torch.Tensor | float
) -> bool:
    """Whether the device's result of a line is the CPU's, as closely as the line's check says."""
    if mine.dtype != wanted.dtype or mine.shape != wanted.shape:
        return False
    if line.check == "drawn":
        return True
    if line.check == "bits" or not wanted.dtype.is_floating_point:
        return same_bits(mine, wanted)
    if line.check == "values":
        return torch.equal(mine.nan_to_num(7.5), wanted.nan_to_num(7.5))
    relative, absolute = TOLERANCE[wanted.dtype]
    a, b = mine.double(), wanted.double()
    reach = torch.finfo(wanted.dtype).max / 8
    bound = absolute + relative * torch.maximum(b.abs(), torch.as_tensor(scale).double())
    fine = ((a - b).abs() <= bound) | (a == b) | (a.isnan() & b.isnan())
    # Where a value on the way leaves the range of the dtype, or nearly, anything may become of it.
    return bool((fine | ~(torch.as_tensor(scale).double() < reach)).all())


def delegated_calls() -> int:
    return hologram.fallback_report().calls("delegated")


def order_is_open(line: Line, names: dict[str, object], target: torch.Tensor) -> bool:
    """Whether the line writes memory twice, or reads it through another tensor.

    What CUDA's kernels make of that depends on the order of their threads.
    """
    if overlaps_itself(target):
        return True
    words = set(re.findall(r"\bt\d+\b", line.text))
    others = [t for word in words if isinstance(t := names.get(word), torch.Tensor)]
    memory = target.untyped_storage().data_ptr()
    return any(t is not target and t.untyped_storage().data_ptr() == memory for t in others)


def compare_with_cpu(lines: list[Line]) -> Result:
    """Runs a program in eager mode and on the CPU, line by line on equal operands.

    Returns:
        the result of eager mode.

    Raises:
        Mismatch: a line gives something else on the CPU.
    """
    worlds = World(DEVICE), World("cpu")
    mine, theirs = (world.names() for world in worlds)
    theirs_seen = worlds[1].seen
    with hologram.eager():
        try:
            for number, line in enumerate(lines):
                code = compile(line.text, f"line {number}", "exec")
                scale = eval(line.scale, {**theirs, **SCALES}) if line.scale else 0.0
                before = delegated_calls() if CUDA_KERNELS else 0
                exec(code, mine)
                by_cuda = CUDA_KERNELS and delegated_calls() > before
                exec(code, theirs)
                refused = line.text.startswith("attempt") and theirs_seen[-1] != "no error"
                if line.target is None or refused:
                    continue
                targets = [t.strip(" ()") for t in line.target.split(",")]
                for name in targets:
                    result, wanted = mine[name].cpu(), theirs[name]
                    layouts = mine[name].stride(), wanted.stride()
                    if layouts[0] != layouts[1] and not by_cuda:
                        raise Mismatch(f"{line.text}\nstrides {layouts[0]}, CPU {layouts[1]}")
                    if by_cuda and order_is_open(line, mine, mine[name]):
                        assign(wanted, result)
                        continue
                    if not close_enough(result, wanted, line, scale):
                        raise Mismatch(f"{line.text}\ngives\n{result}\non the CPU\n{wanted}")
                    if line.check != "bits":
                        assign(theirs[name], result)
        finally:
            for world in worlds:
                world.finish()
        ours = Result(finals(mine), worlds[0].seen)
    for index, (one, other) in enumerate(zip(worlds[0].seen, worlds[1].seen, strict=True)):
        if not same(one, other):
            raise Mismatch(f"value {index} read is\n{one}\non the CPU\n{other}")
    return ours
