"""Measuring the cells: the contenders take turns."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

import common
import numpy as np
import torch
from tqdm import tqdm

from chains.cell import GRAD, NO_GRAD, Cell
from chains.chain import Chain
from chains.contenders import contenders
from chains.reference import Reference

THREADS = (1, 2)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
GRAD_SIZES = (16, 100_000, 1_000_000)
PAIRS, LEAST_PAIRS = 31, 15
LONG_ROUND = 0.15  # seconds of a round from which fewer pairs are made


def repetitions(seconds: Callable[[int], float]) -> int:
    """How often a contender has to run to last common.SAMPLE_SECONDS."""
    number = 1
    seconds(1)
    while True:
        elapsed = min(seconds(number), seconds(number))  # not that of an interruption
        if elapsed >= common.SAMPLE_SECONDS / 2:
            return max(1, round(number * common.SAMPLE_SECONDS / elapsed))
        number *= 4


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def race(found: dict[str, Callable[[int], float]], pairs: int) -> dict[str, list[float]]:
    """Seconds per run of each contender, `pairs` samples each, taken in turns."""
    numbers = {name: repetitions(seconds) for name, seconds in found.items()}
    names = list(found)
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    start = time.perf_counter()
    for turn in range(pairs):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            if numbers[name] > 4:
                found[name](1)  # its data back into the cache
            samples[name].append(found[name](numbers[name]) / numbers[name])
        if turn == 1 and (time.perf_counter() - start) / 2 > LONG_ROUND:
            pairs = min(pairs, LEAST_PAIRS)
        if turn + 1 >= pairs:
            break
    return samples


def measure(
    chain: Chain,
    dtype: str,
    count: int,
    threads: int,
    mode: str,
    pairs: int,
    copy: float,
    reference: Reference,
) -> Cell:
    torch._dynamo.reset()
    grad = mode == GRAD
    with torch.set_grad_enabled(grad):
        found = contenders(chain, DTYPES[dtype], count, threads, grad, reference)
        samples = race(found, pairs)
    ratios = {}
    for other in found.keys() - {"device"}:
        values = [a / b for a, b in zip(samples["device"], samples[other], strict=True)]
        low, high = common.bootstrap_interval(values)
        ratios[other] = [rounded(float(np.median(values))), rounded(low), rounded(high)]
    size = DTYPES[dtype].itemsize
    return Cell(
        chain.name,
        dtype,
        count,
        threads,
        mode,
        chain.traffic * size * count * chain.tensors,
        copy,
        {name: rounded(1e6 * float(np.median(taken))) for name, taken in samples.items()},
        ratios,
    )


def copy_bandwidth(reference: Reference, count: int, dtype: torch.dtype, threads: int) -> float:
    """GB/s of the copy of `count` elements, read and written, on memory of the device."""
    source, target = (torch.ones(count, dtype=dtype, device="hologram") for _ in range(2))
    copy = reference.contender("copy", (), [[source], [target]], threads)
    samples = race({"copy": copy}, LEAST_PAIRS)["copy"]
    return rounded(2e-9 * dtype.itemsize * count / float(np.median(samples)))


def measure_here(
    threads: int, chains: list[Chain], quick: bool, keys: set[str] | None
) -> list[Cell]:
    """Measures in this process, all cells of the chains or those with the given keys."""
    torch.set_num_threads(threads)
    reference = Reference()
    wanted = [
        (chain, dtype, count, mode)
        for chain in chains
        for mode in ((NO_GRAD,) if chain.results else (NO_GRAD, GRAD))
        for dtype in DTYPES
        for count in (chain.sizes if mode == NO_GRAD else GRAD_SIZES)
        if not (quick and count in (1_000, 10_000_000))
        and not (mode == GRAD and dtype != "f32")
        and (keys is None or f"{chain.name}/{dtype}/{count}/{mode}/{threads}" in keys)
    ]
    pairs = LEAST_PAIRS if quick else PAIRS if keys is None else 2 * PAIRS
    copies: dict[tuple[int, str], float] = {}
    cells = []
    for chain, dtype, count, mode in tqdm(wanted, desc=f"{threads} thread(s)", file=sys.stderr):
        size = count * chain.tensors, dtype
        if size not in copies:
            copies[size] = copy_bandwidth(reference, size[0], DTYPES[dtype], threads)
        cells.append(measure(chain, dtype, count, threads, mode, pairs, copies[size], reference))
    return cells
