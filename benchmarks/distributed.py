"""Two processes on this machine: collectives and training steps against torch's CPU.

    python benchmarks/distributed.py            the table
    python benchmarks/distributed.py --quick    fewer turns

Both devices are in one process group, with Gloo as the engine. A turn has each of them once, first
the one, then the other; the ranks meet before each. Times are medians over the turns, of the slower
rank; the ratio is the median of the turns' ratios. The model is a small GPT: 4 layers, 256 wide,
64 positions, 2 sequences for each rank.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import torch_hologram  # noqa: F401

DEVICES = ("cpu", "hologram")
WIDTH, HEADS, LAYERS, LENGTH, WORDS, BATCH = 256, 4, 4, 64, 512, 2


class Block(torch.nn.Module):
    """A layer of a transformer, with the normalisation first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))
        return x


class Gpt(torch.nn.Module):
    """Numbers of words in, numbers for each word out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        out: torch.Tensor = self.head(
            self.norm(self.blocks(self.words(words) + self.places(places)))
        )
        return out


def all_reduce(device: str, count: int) -> Callable[[], None]:
    x = torch.zeros(count, device=device)
    return lambda: dist.all_reduce(x)


def step(device: str, wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> Callable[[], None]:
    torch.manual_seed(0)
    model = wrap(Gpt().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    words = torch.randint(WORDS, (BATCH, LENGTH + 1)).to(device)

    def one_step() -> None:
        out = model(words[:, :-1])
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return one_step


def data_parallel(model: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(model)


def fully_sharded(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def timed(call: Callable[[], None]) -> float:
    """Microseconds, of the slower rank."""
    dist.barrier()
    start = time.perf_counter()
    call()
    torch.get_device_module("hologram").synchronize()
    seconds = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return 1e6 * seconds.item()


def compare(name: str, calls: list[Callable[[], None]], turns: int) -> None:
    for call in calls * 3:
        call()
    times: list[list[float]] = [[], []]
    for turn in range(turns):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            times[i].append(timed(calls[i]))
    ratio = statistics.median(ours / theirs for theirs, ours in zip(*times, strict=True))
    if dist.get_rank() == 0:
        theirs, ours = map(statistics.median, times)
        print(f"{name:28}{ratio:8.2f}{ours:14.0f}{theirs:14.0f}", flush=True)


def rank(index: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=index, world_size=2)
    if index == 0:
        print(f"torch {torch.__version__}, two processes with a thread each\n")
        print(f"{'':28}{'times':>8}{'us':>14}{'us, torch':>14}")
    turns = 5 if options.quick else 31
    for count in (1000, 100_000, 10_000_000):
        calls = [all_reduce(device, count) for device in DEVICES]
        compare(f"all_reduce, {count} floats", calls, turns)
    for name, wrap in (
        ("step, one process", copy.copy),
        ("step, DDP", data_parallel),
        ("step, FSDP2", fully_sharded),
    ):
        compare(name, [step(device, wrap) for device in DEVICES], turns)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="5 turns instead of 31")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank, (options, folder), nprocs=2)


if __name__ == "__main__":
    main()
