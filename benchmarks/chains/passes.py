"""How many passes over memory the chains take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import torch

from chains.chain import Chain

hologram: Any = torch.get_device_module("hologram")


def ten_lines() -> Callable[[], Any]:
    """The step of README's "Ten lines": a small network, its backward pass, Adam."""
    x = torch.randn(64, 20, device="hologram")
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model.to("hologram")
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()  # makes the optimizer's state
    return step


def chain_program(chain: Chain) -> Callable[[], Any]:
    """A chain over 1,000 elements on the device, or as many as it is measured with."""
    count = 1000 if 1000 in chain.sizes else chain.sizes[0]
    operands = [[x.to("hologram") for x in group] for group in chain.operands(torch.float32, count)]
    return lambda: chain.call(chain.function, operands)


PASSES_HEADER = ("program", "operations", "passes", "fewer", "delegated", "bytes", "one by one")


def passes_of(name: str, program: Callable[[], Any]) -> tuple[str, ...]:
    """What a program records and in how many passes it runs, and the bytes without fusion.

    Operations are instructions of the stream, of which each would be one pass over memory; calls of
    operators that torch's kernels compute are counted beside them and are the same either way.
    """
    hologram.synchronize()
    hologram.reset_fallback_report()
    explained = hologram.explain(program)
    delegated = hologram.fallback_report().calls("delegated")
    with hologram.eager():
        hologram.reset_stream_stats()
        program()
        alone = hologram.stream_stats()
    fewer = 1 - explained.passes / explained.instructions
    return (
        name,
        f"{explained.instructions:,}",
        f"{explained.passes:,}",
        f"{100 * fewer:.4g} %",
        f"{delegated:,}",
        f"{explained.bytes_moved:,}",
        f"{alone['bytes_moved']:,}",
    )


def count_passes(chains: list[Chain]) -> None:
    """Prints the table of operations and passes."""
    rows = [passes_of(chain.name, chain_program(chain)) for chain in chains]
    rows.append(passes_of("README, ten lines: a step", ten_lines()))
    print(common.text_table(PASSES_HEADER, rows))
