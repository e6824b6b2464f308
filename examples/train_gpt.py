"""Train a small GPT on two devices at once, with DDP and with FSDP2, and compare with one device.

    python examples/train_gpt.py                              starts its own two processes
    torchrun --nproc-per-node 2 examples/train_gpt.py         is one that torchrun has started

The text is the language reference that comes with Python (pydoc_data.topics, what `help("for")`
prints), half a million characters, each of which is a word of the model. There are four runs, from
the same weights and over the same batches:

    one     the whole batch on one device, in the first process
    twin    the same in the last process, meanwhile; each weight is moved by its last bit, or not
    ddp     DistributedDataParallel: each process has all weights and its part of the batch
    fsdp2   fully_shard: each process has its part of the weights, too

and with --more two in the first process, over all devices of its machine:

    split   the blocks of the model are divided among the devices, which wait for each other
    dp      torch.nn.DataParallel: a thread and a replica for each device

Sums in another order have other last bits, and training can make small differences grow; the twin
says how much. So the losses of DDP and FSDP2, and the first gradients, have to be those of the one
process up to rounding at first, and later within thirty times the distance of the twin, whose bits
were moved once, while theirs are at each step. The program prints what each run cost, draws a
picture of the losses, and lets the model write a few lines.

Exit status: 0 when the losses agree and have fallen, else 1.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import ProcessExitedException, spawn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)

WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 4, 64
BATCH = 16  # sequences of a step, of all processes together

ALIKE_STEPS = 5  # whose losses differ by nothing but rounding
TWIN_FACTOR = 30.0
REQUIRED_FALL = 0.8  # of the first loss; what the last steps have in the mean is below


@dataclass
class Text:
    """The characters as numbers, int64 (n,), on the CPU; `letters[i]` is the one of number i."""

    numbers: torch.Tensor
    letters: list[str]


@dataclass
class Run:
    """What one training run left behind."""

    name: str
    devices: int
    losses: list[float]  # one per step, of the whole batch
    gradient: float  # the norm of the first one: AdamW does not notice one that is twice too large
    seconds: float
    held_bytes: int | None  # on the device that has most, between two steps
    peak_bytes: int | None

    @property
    def last(self) -> float:
        tail = self.losses[-10:]
        return sum(tail) / len(tail)


def load_text() -> Text:
    text = "\n\n".join(topics[name] for name in sorted(topics))
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    return Text(torch.tensor([number[letter] for letter in text]), letters)


class Block(nn.Module):
    """A layer of a transformer, with the normalisation first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.qkv.weight.device)  # where it is, unless the blocks are `split`
        q, k, v = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Gpt(nn.Module):
    """(batch, length) numbers of letters -> (batch * length, letters) logits of the next ones."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.letters(numbers) + self.places.weight[: numbers.shape[1]]
        out: torch.Tensor = self.head(self.norm(self.blocks(x)).flatten(0, 1))
        return out


def make_model(letters: int, seed: int) -> Gpt:
    """On the CPU; the weights depend on the seed only."""
    torch.manual_seed(seed)
    return Gpt(letters)


@torch.no_grad()
def move_last_bits(model: nn.Module, seed: int) -> None:
    """What rounding may do: each weight becomes the next number below or above, or stays."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        signs = torch.randint(-1, 2, weight.shape, generator=generator)
        weight.copy_(torch.nextafter(weight, weight + signs))


def data_parallel(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fully_sharded(model: nn.Module) -> nn.Module:
    """Each block by itself, so that the weights of one are together at a time."""
    assert isinstance(model, Gpt)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def alone(model: nn.Module) -> nn.Module:
    return model


def split(model: nn.Module) -> nn.Module:
    """The blocks one after the other over the devices of this process, in equal parts."""
    assert isinstance(model, Gpt)
    count = int(os.environ["LOCAL_WORLD_SIZE"])
    for i, block in enumerate(model.blocks):
        block.to(f"hologram:{i * count // LAYERS}")
    last = (LAYERS - 1) * count // LAYERS
    model.norm.to(f"hologram:{last}")
    model.head.to(f"hologram:{last}")
    return model


def replicated(model: nn.Module) -> nn.Module:
    """Each device of this process gets the weights and its part of the batch anew at each step."""
    return nn.DataParallel(model, range(int(os.environ["LOCAL_WORLD_SIZE"])))


IN_ONE_PROCESS = (alone, split, replicated)


class Device:
    """This process's device, and what can be asked of it."""

    def __init__(self, kind: str) -> None:
        # With an index where there are several: process r of a machine has made device r current.
        self.on_hologram = kind == "hologram"
        self.name = f"hologram:{torch.hologram.current_device()}" if self.on_hologram else kind

    def synchronize(self) -> None:
        """Waits for what this process has on any device."""
        if self.on_hologram:
            for index in range(torch.hologram.device_count()):
                torch.hologram.synchronize(index)

    def reset_peak(self) -> None:
        if self.on_hologram:
            for index in range(torch.hologram.device_count()):
                torch.hologram.reset_peak_memory_stats(index)

    def bytes(self) -> tuple[int, int] | tuple[None, None]:
        """Held by this process, and at most since reset_peak(), where it has most."""
        if not self.on_hologram:
            return None, None
        indices = range(torch.hologram.device_count())
        return (
            max(map(torch.hologram.memory_allocated, indices)),
            max(map(torch.hologram.max_memory_allocated, indices)),
        )


def norm_of_gradients(model: nn.Module) -> float:
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):  # of FSDP2's, where each process has the norm of its part
        norm = norm.full_tensor()
    return norm.item()


def train(
    name: str,
    model: Gpt,
    wrap: Callable[[nn.Module], nn.Module],
    text: Text,
    device: Device,
    arguments: argparse.Namespace,
) -> tuple[Run, nn.Module]:
    """One run, in this process by itself or in all of them: `wrap` decides."""
    together = wrap not in IN_ONE_PROCESS
    part, parts = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    size = BATCH // parts
    before, _ = device.bytes()
    device.reset_peak()
    trained = wrap(model.to(device.name))
    optimizer = torch.optim.AdamW(trained.parameters(), arguments.learning_rate)
    order = torch.Generator().manual_seed(arguments.seed)  # on the CPU: the same in every process
    reach = torch.arange(LENGTH + 1)
    losses: list[float] = []
    gradient = math.nan

    def step() -> None:
        nonlocal gradient
        starts = torch.randint(len(text.numbers) - LENGTH, (BATCH, 1), generator=order)
        mine = starts[part * size : (part + 1) * size]
        batch = text.numbers[mine + reach].to(device.name)
        logits = trained(batch[:, :-1])
        loss = F.cross_entropy(logits, batch[:, 1:].flatten().to(logits.device))
        loss.backward()
        if not losses:
            gradient = norm_of_gradients(trained)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    shown = part == 0 and name != "twin"
    with tqdm(total=arguments.steps, desc=f"{name:>6}", unit="step", disable=not shown) as progress:
        start = time.perf_counter()
        for done in range(arguments.steps):
            step()
            if done == 0:  # which has what is made at the first call
                device.synchronize()
                start = time.perf_counter()
            progress.update()
            progress.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
        device.synchronize()
        seconds = time.perf_counter() - start

    held, peak = device.bytes()
    if held is not None and peak is not None and before is not None:
        held, peak = held - before, peak - before
    if together:
        # Each process has the mean of its part; the parts are equal, so their mean is the batch's.
        mean = torch.tensor(losses, dtype=torch.float64)
        dist.all_reduce(mean)
        losses = (mean / parts).tolist()
        most = torch.tensor([seconds, held or 0, peak or 0], dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        seconds = most[0].item()
        if held is not None:
            held, peak = int(most[1].item()), int(most[2].item())
    devices = parts if together or wrap is alone else int(os.environ["LOCAL_WORLD_SIZE"])
    return Run(name, devices, losses, gradient, seconds, held, peak), trained


def train_all(text: Text, device: Device, arguments: argparse.Namespace) -> tuple[list[Run], str]:
    """The runs, complete in process 0, and there a few lines by the model of DDP."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def run(name: str, wrap: Callable[[nn.Module], nn.Module]) -> tuple[Run, str]:
        gc.collect()  # of what refers to itself, as DDP does; this run's memory is its own
        model = make_model(len(text.letters), arguments.seed)
        if name == "twin":
            move_last_bits(model, arguments.seed)
        done, trained = train(name, model, wrap, text, device, arguments)
        if rank != 0 or name != "ddp":
            return done, ""
        assert isinstance(trained, DistributedDataParallel)
        return done, write(trained.module, text, device, 40 if arguments.quick else 240)

    runs = []
    if rank == 0:
        runs.append(run("one", alone)[0])
    losses = torch.empty(1 + arguments.steps, dtype=torch.float64)
    if rank == ranks - 1:
        twin = run("twin", alone)[0]
        losses = torch.tensor([twin.gradient, *twin.losses], dtype=torch.float64)
    dist.broadcast(losses, ranks - 1)
    if rank == 0:
        gradient, *rest = losses.tolist()
        runs.append(Run("twin", 1, rest, gradient, math.nan, None, None))
        if arguments.more:
            runs += [run("split", split)[0], run("dp", replicated)[0]]
    dist.all_reduce(losses)  # on the CPU: the other processes wait, and their devices do not

    ddp, sample = run("ddp", data_parallel)
    fsdp2, _ = run("fsdp2", fully_sharded)
    return [*runs, ddp, fsdp2], sample


@torch.no_grad()
def write(model: nn.Module, text: Text, device: Device, count: int) -> str:
    """Lets the model go on after the words "The " by so many characters, drawn on the CPU."""
    generator = torch.Generator().manual_seed(0)
    numbers = [text.letters.index(letter) for letter in "The "]
    for _ in range(count):
        seen = torch.tensor(numbers[-LENGTH:], device=device.name)
        likely = (model(seen[None])[-1] / 0.7).softmax(0).cpu()
        numbers.append(int(torch.multinomial(likely, 1, generator=generator)))
    return "".join(text.letters[number] for number in numbers)


def differences(run: Run, one: Run) -> list[float]:
    return [abs(x - y) for x, y in zip(run.losses, one.losses, strict=True)]


def by_rounding(value: float) -> float:
    """How far from it a result in float32 may be: what torch.testing.assert_close takes."""
    return 1e-5 + 1.3e-6 * abs(value)


def bounds(one: Run, twin: Run) -> list[float]:
    """How far from those of the one process the losses of each step may be."""
    bound, furthest = [], 0.0
    for step, moved in enumerate(differences(twin, one)):
        furthest = max(furthest, moved)
        later = TWIN_FACTOR * furthest if step >= ALIKE_STEPS else 0.0
        bound.append(max(by_rounding(one.losses[step]), later))
    return bound


def problems(runs: list[Run]) -> list[str]:
    """What is not as it should be; the runs are one, twin, and those in several processes."""
    one, twin, *others = runs
    found = []
    for run in others:
        off = abs(run.gradient - one.gradient)
        if not off <= by_rounding(one.gradient):
            found.append(f"{run.name}: the norm of the first gradients is off by {off:.1e}")
        for step, (off, bound) in enumerate(
            zip(differences(run, one), bounds(one, twin), strict=True), 1
        ):
            if not off <= bound:
                found.append(
                    f"{run.name}: the loss of step {step} is off by {off:.1e} > {bound:.1e}"
                )
                break
    for run in runs:
        if not run.last <= REQUIRED_FALL * run.losses[0]:
            found.append(
                f"{run.name}: the loss fell from {run.losses[0]:.3f} to {run.last:.3f} only"
            )
    return found


def print_table(runs: list[Run]) -> None:
    one = runs[0]
    print(
        f"\n{'':6}{'devices':>8}{'gradient':>10}{'first loss':>12}{'last 10':>9}{'differs by':>12}"
        f"{'seconds':>9}{'tokens/s':>10}{'held':>11}{'peak':>11}"
    )
    for run in runs:
        print(
            f"{run.name:<6}{run.devices:>8}{run.gradient:>10.4f}{run.losses[0]:>12.4f}{run.last:>9.4f}",
            end="",
        )
        print(f"{max(differences(run, one)):>12.1e}" if run is not one else f"{'':12}", end="")
        if run.name != "twin":
            rate = (len(run.losses) - 1) * BATCH * LENGTH / run.seconds
            print(f"{run.seconds:>9.2f}{rate:>10,.0f}", end="")
            for size in (run.held_bytes, run.peak_bytes):
                print("" if size is None else f"{size / 2**20:>7.1f} MiB", end="")
        print()


def draw(runs: list[Run], title: str, path: Path) -> None:
    """The losses, and how far they are from those of the one process, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    one, twin, *others = runs
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (losses, distances) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    figure.suptitle(title, fontsize=14)
    steps = range(1, len(one.losses) + 1)

    names = {
        "one": "one device",
        "ddp": "DDP",
        "fsdp2": "FSDP2",
        "split": "split",
        "dp": "DataParallel",
    }
    styles = {
        "one": {"color": "#0072b2", "linewidth": 4, "alpha": 0.45},
        "ddp": {"color": "#d55e00", "linewidth": 1.4},
        "fsdp2": {"color": "#000000", "linewidth": 1.4, "linestyle": (0, (2, 3))},
        "split": {"color": "#009e73", "linewidth": 0.8},
        "dp": {"color": "#cc79a7", "linewidth": 0.8, "linestyle": (0, (4, 2))},
    }
    for run in (one, *others):
        losses.plot(steps, run.losses, label=names[run.name], **styles[run.name])
    losses.set(xlabel="step", ylabel="cross entropy of a character", title="Training loss")
    losses.legend(frameon=False)

    smallest = 1e-8  # equal losses have a place on the axis, too
    for run in others:
        off = [max(x, smallest) for x in differences(run, one)]
        distances.plot(steps, off, label=names[run.name], **styles[run.name])
    off = [max(x, smallest) for x in differences(twin, one)]
    distances.plot(steps, off, label="twin: last bits of the weights", color="0.6", linewidth=1)
    distances.plot(steps, bounds(one, twin), label="bound", color="0.3", linestyle=":")
    distances.set(xlabel="step", yscale="log", title="Distance from the loss on one device")
    distances.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def run_rank(arguments: argparse.Namespace) -> int:
    """The program of one process, in whose environment is what torchrun puts there."""
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(arguments.threads or max(1, len(os.sched_getaffinity(0)) // here))
    if arguments.device == "hologram":
        kinds = [
            torch.hologram.get_device_properties(i).backend
            for i in range(torch.hologram.device_count())
        ][:here]
        if len(kinds) < here or len(set(kinds)) > 1:
            if os.environ["LOCAL_RANK"] == "0":
                print(f"{here} processes need devices alike, not {kinds}", file=sys.stderr)
            return 1

    dist.init_process_group(
        init_method=arguments.store,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = Device(arguments.device)
    text = load_text()
    runs, sample = train_all(text, device, arguments)
    dist.barrier()
    dist.destroy_process_group()
    if rank != 0:
        return 0

    what = torch.hologram.get_device_name() if device.on_hologram else device.name
    model = make_model(len(text.letters), arguments.seed)
    weights = sum(weight.numel() for weight in model.parameters())
    threads = torch.get_num_threads()
    print(
        f"\n{weights:,} weights, {BATCH} x {LENGTH} of {len(text.numbers):,} characters a step; "
        f"{ranks} x {threads} threads, on {what}; torch {torch.__version__}"
    )
    print_table(runs)
    title = f"A small GPT in one process and in {ranks}, on {what}"
    draw(runs, title, arguments.output)
    print(f"\nThe model of DDP writes:\n\n    {sample.replace(chr(10), chr(10) + '    ')}\n")
    print(f"wrote {arguments.output}")
    found = problems(runs)
    for problem in found:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if found else 0


def spawned(rank: int, arguments: argparse.Namespace) -> None:
    """A process that this program has started itself."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.exit(run_rank(arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--processes", type=int, default=2, help="to start, of this machine (default: 2)")
    add("--steps", type=int, help="of each run (default: 200)")
    add("--quick", action="store_true", help="20 steps and a short sample")
    add("--more", action="store_true", help="more runs, in one process over several devices")
    add("--device", default="hologram", choices=["hologram", "cpu"])
    add("--threads", type=int, help="of each process (default: its part of the cores)")
    add("--learning-rate", type=float, default=3e-3, help="of AdamW (default: 3e-3)")
    add("--seed", type=int, default=0, help="of weights and batches")
    add(
        "--output",
        type=Path,
        default=Path("train_gpt.png"),
        help="picture to write (default: train_gpt.png)",
    )
    arguments = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", arguments.processes))
    if ranks < 1 or BATCH % ranks:
        parser.error(f"{BATCH} sequences cannot be divided among {ranks} processes")
    if arguments.more and arguments.device != "hologram":
        parser.error(f"--more needs several devices, which {arguments.device} is not")
    if arguments.steps is None:
        arguments.steps = 20 if arguments.quick else 200
    if arguments.steps < 11:
        parser.error(f"--steps must be at least 11, not {arguments.steps}")
    arguments.store = None  # torchrun's
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if "RANK" in os.environ:
        os.environ.setdefault("HOLOGRAM_CPU_DEVICES", os.environ["LOCAL_WORLD_SIZE"])
        return run_rank(arguments)

    # Of GPUs there are as many as there are; the CPU is divided.
    count = str(arguments.processes)
    os.environ.setdefault("HOLOGRAM_CPU_DEVICES", count)
    os.environ |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    with tempfile.TemporaryDirectory() as folder:
        arguments.store = f"file://{folder}/ranks"
        try:
            spawn(spawned, (arguments,), nprocs=arguments.processes)
        except ProcessExitedException as ended:
            return ended.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
