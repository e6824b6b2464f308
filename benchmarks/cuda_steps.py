"""Training steps on one NVIDIA GPU, unmodified: ours against all that torch offers on it.

    python benchmarks/cuda_steps.py                        the table
    python benchmarks/cuda_steps.py --models mlp --rounds 1
    python benchmarks/cuda_steps.py --first --rounds 5     first steps alone

Needs an NVIDIA GPU and a torch with CUDA and Triton. The competitors are torch eager, compiled
(torch.compile), compiled with mode="reduce-overhead", eager and compiled inside a CUDA graph
captured by hand; ours run the same code as eager, with AdamW's default, with fused=True (torch's
are all fused), and so with no program replayed as a CUDA graph (HOLOGRAM_REPLAY=0). Autograd works
on one accelerator of a process: torch's share one, each of ours has its own, and these take turns.
A time is the median over all rounds of means of ten steps. A new batch is copied from pinned memory
into the step's own tensors in every step, and the loss is read in every tenth. "of the GPU" is a
step's time there where the host is ahead of it: behind a kernel that waits, after steps of that
kind that do not count. "first step" is that of a fresh process, of which --first makes more, in
turns: what no process has used for long is read from disk. "new shape" is the first step of a warm
process with three quarters of the batch, over one of torch eager's that has seen it; "peak" is of
memory, of all steps but these.

mlp: 784-1024-1024-10, 128 images, TF32. gpt: width 512, 6 layers, 8 heads, 256 tokens, 8 sequences,
32,000 words, bfloat16 autocast. tiny: width 128, 4 layers, 4 heads, 64 tokens, 4 sequences, 1,000
words, the same. Cross entropy, backward, AdamW with lr 1e-3, zero_grad(set_to_none=True).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

if "--worker" in sys.argv:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if any("hologram" in word for word in sys.argv):
        os.environ["HOLOGRAM_BACKENDS"] = "cuda"

import torch
from common import text_table
from gpt import Gpt, Sizes
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

GPTS = {
    "gpt": (Sizes(width=512, layers=6, heads=8, length=256, words=32_000), 8),
    "tiny": (Sizes(width=128, layers=4, heads=4, length=64, words=1000), 4),
}
MODELS = ("mlp", *GPTS)
COMPETITORS = {
    "eager": "torch eager",
    "graph": "CUDA graph of eager",
    "compiled": "torch.compile",
    "compiled-graph": "compiled, in a CUDA graph",
    "reduce-overhead": "reduce-overhead",
    "hologram": "hologram",
    "hologram-fused": "hologram, fused AdamW",
    "hologram-launched": "the same, no replays",
}
WAITING_CYCLES = 60_000_000  # of the GPU, some thirty milliseconds
STEPS = 10  # between two readings of the clock
# Readings that do not count, and how many seconds of them at least: kernels are compiled, ours in
# the background.
WARM_UP, WARM_UP_SECONDS = 6, 2


def make(name: str) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A model and pinned batches of what it is given, and what it is to say."""
    torch.manual_seed(0)
    if name in GPTS:
        sizes, batch = GPTS[name]
        texts = [torch.randint(sizes.words, (batch, sizes.length + 1)) for _ in range(8)]
        pairs = [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]
        return Gpt(sizes), [(x.pin_memory(), y.pin_memory()) for x, y in pairs]
    layers: list[nn.Module] = []
    for n, m in ((784, 1024), (1024, 1024), (1024, 10)):
        layers += [nn.Linear(n, m), nn.ReLU()]
    pairs = [(torch.randn(128, 784), torch.randint(10, (128,))) for _ in range(8)]
    return nn.Sequential(*layers[:-1]), [(x.pin_memory(), y.pin_memory()) for x, y in pairs]


@dataclass
class Result:
    """What a process found of a competitor; times are microseconds of a step."""

    times: list[float]
    on_gpu: list[float]
    first: float | None  # None where the process has run steps of another before
    new_shape: list[float]  # the first step with another batch, and more; none of what compiles
    peak: int  # bytes
    gpu: str


class Training:
    """A model's training step as a competitor runs it, in this process.

    `compiled`: the one whose model it trains on, which takes long to compile; else a new one.
    """

    def __init__(self, name: str, competitor: str, compiled: Training | None) -> None:
        self.kind = "hologram" if competitor.startswith("hologram") else "cuda"
        if self.kind == "hologram":
            import torch_hologram  # noqa: F401
        torch.backends.cuda.matmul.allow_tf32 = True
        self.autocast = name in GPTS
        device = torch.device(self.kind, 0)
        self.module = torch.get_device_module(self.kind)
        self.model, self.batches = make(name)
        if compiled is not None:
            self.model = compiled.model
        self.model.to(device)
        in_graph = competitor.endswith("graph")
        options: dict[str, Any] = {"fused": True} if competitor != "hologram" else {}
        if in_graph:
            options["capturable"] = True
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **options)
        self.inputs = [tensor.to(device) for tensor in self.batches[0]]
        self.call: Callable[[Tensor], Tensor] = self.model
        if compiled is not None:
            self.call = compiled.call
        elif competitor.startswith("compiled"):
            self.call = torch.compile(self.model)
        elif competitor == "reduce-overhead":
            self.call = torch.compile(self.model, mode="reduce-overhead")
        self.run = captured(self.compute) if in_graph else self.compute
        self.done = 0

    def compute(self) -> Tensor:
        x, y = self.inputs
        with torch.autocast(self.kind, torch.bfloat16, enabled=self.autocast):
            logits = self.call(x)
            loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def step(self) -> None:
        batch = self.batches[self.done % len(self.batches)]
        for to, new in zip(self.inputs, batch, strict=True):
            to.copy_(new, non_blocking=True)
        loss = self.run()
        self.done += 1
        if self.done % STEPS == 0:
            loss.item()

    def timed(self, steps: int) -> float:
        self.module.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.module.synchronize()
        return 1e6 * (time.perf_counter() - start) / steps

    def warm(self, reading: Callable[[], float]) -> None:
        """Takes readings that do not count, while kernels are compiled: ours, in the background."""
        seconds = WARM_UP_SECONDS if self.kind == "hologram" else 0
        begin, readings = time.monotonic(), 0
        while readings < WARM_UP or time.monotonic() - begin < seconds:
            reading()
            readings += 1

    def on_gpu(self) -> float:
        before, after = (torch.Event(self.kind, enable_timing=True) for _ in range(2))
        self.module.synchronize()
        torch.cuda._sleep(WAITING_CYCLES)
        before.record()
        self.step()
        after.record()
        self.module.synchronize()
        return 1e3 * before.elapsed_time(after)

    def shrink(self) -> None:
        """Continues with three quarters of each batch."""

        def part(tensor: Tensor) -> Tensor:
            return tensor[: tensor.size(0) * 3 // 4].contiguous().pin_memory()

        self.batches = [(part(x), part(y)) for x, y in self.batches]
        self.inputs = [tensor.to(self.inputs[0].device) for tensor in self.batches[0]]
        self.module.synchronize()


def work(training: Training, competitor: str, readings: int, is_first: bool) -> Result:
    """Measures a competitor in this process; without readings its first step alone."""
    first = training.timed(1)
    if readings == 0:
        return Result([], [], first, [], 0, torch.cuda.get_device_name())
    training.warm(lambda: training.timed(STEPS))
    training.module.reset_peak_memory_stats()
    times = [training.timed(STEPS) for _ in range(readings)]
    peak = training.module.max_memory_allocated()
    training.warm(training.on_gpu)  # programs end where the event is: others than before
    on_gpu = [training.on_gpu() for _ in range(5)]
    new_shape: list[float] = []
    if competitor == "eager" or training.kind == "hologram":  # what compiles would compile again
        training.shrink()
        new_shape = [training.timed(1) for _ in range(10)]
    return Result(
        times, on_gpu, first if is_first else None, new_shape, peak, torch.cuda.get_device_name()
    )


def work_all(name: str, competitors: list[str], readings: int) -> None:
    """Prints the Result of each as a line of JSON, or an error's text in its place."""
    training: Training | None = None
    for i, competitor in enumerate(competitors):
        before = competitors[i - 1] if i > 0 else ""
        if (before, competitor) != ("compiled", "compiled-graph"):
            training = None
            torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        try:
            training = Training(name, competitor, training)
            told: Any = asdict(work(training, competitor, readings, i == 0))
        except Exception as error:  # the others are measured
            told = f"{type(error).__name__}: {error}"
        print(json.dumps(told), flush=True)


def captured(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step as a CUDA graph, as torch's documentation has it: after some on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = compute()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def run_apart(name: str, competitors: list[str], readings: int) -> dict[str, Result]:
    """work() of each in one process of their own; what fails is told and left out."""
    command = [sys.executable, __file__, "--worker", name, ",".join(competitors), str(readings)]
    launched = competitors[0] == "hologram-launched"
    env = os.environ | ({"HOLOGRAM_REPLAY": "0"} if launched else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in ("{", '"')]
    found = {}
    for i, competitor in enumerate(competitors):
        told = lines[i] if i < len(lines) else done.stderr[-2000:]
        if isinstance(told, str):
            print(f"{name}, {competitor}: {told}", file=sys.stderr)
        else:
            found[competitor] = Result(**told)
    return found


@dataclass(frozen=True)
class Line:
    """A competitor's medians, in microseconds, and bytes."""

    who: str
    step: float
    ratio: float | None  # to the best of torch's
    on_gpu: float
    first: float | None
    new_shape: float | None  # to a step of torch eager's
    peak: int


def lines_of(found: dict[str, list[Result]]) -> list[Line]:
    step = {
        its: statistics.median(t for p in parts for t in p.times) for its, parts in found.items()
    }
    others = [time for its, time in step.items() if not its.startswith("hologram")]
    eager = [t for part in found.get("eager", []) for t in part.new_shape[1:]]
    lines = []
    for who, parts in found.items():
        firsts = [part.first for part in parts if part.first is not None]
        news = [part.new_shape[0] for part in parts if part.new_shape]
        lines.append(
            Line(
                who,
                step[who],
                step[who] / min(others) if others else None,
                statistics.median(t for part in parts for t in part.on_gpu),
                statistics.median(firsts) if firsts else None,
                statistics.median(news) / statistics.median(eager) if news and eager else None,
                max(part.peak for part in parts),
            )
        )
    return lines


def measured(name: str, competitors: Sequence[str], rounds: int, readings: int) -> list[Line]:
    """A model's lines; torch's competitors share a process, which comes first."""
    theirs = [its for its in competitors if not its.startswith("hologram")]
    groups = [theirs] if theirs else []
    groups += [[its] for its in competitors if its.startswith("hologram")]
    found: dict[str, list[Result]] = {}
    turns = [group for _ in range(rounds) for group in groups]
    for group in tqdm(turns, desc=name, disable=None):
        for competitor, its in run_apart(name, group, readings).items():
            found.setdefault(competitor, []).append(its)
    return lines_of(found)


def first_steps(name: str, competitors: Sequence[str], rounds: int) -> str:
    """The first steps of processes, which take turns."""
    found: dict[str, list[float]] = {}
    for who in tqdm([*competitors] * rounds, desc=f"{name}, first steps", disable=None):
        for its in run_apart(name, [who], 0).values():
            assert its.first is not None
            found.setdefault(who, []).append(its.first / 1e3)
    median = {who: statistics.median(times) for who, times in found.items()}
    header = ("", "first step, ms", "times torch eager's", "all")
    eager = median.get("eager")
    cells = [
        (
            COMPETITORS[who],
            f"{milliseconds:.0f}",
            f"{milliseconds / eager:.2f}" if eager else "",
            " ".join(f"{its:.0f}" for its in found[who]),
        )
        for who, milliseconds in median.items()
    ]
    return text_table(header, cells)


def text(lines: list[Line]) -> str:
    def show(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    header = ("", "us", "of torch's best", "of the GPU", "first step, ms", "new shape", "peak, MiB")
    cells = [
        (
            COMPETITORS[its.who],
            f"{its.step:.0f}",
            show(its.ratio, ".2f"),
            f"{its.on_gpu:.0f}",
            show(its.first and its.first / 1e3, ".0f"),
            show(its.new_shape, ".2f"),
            f"{its.peak / 2**20:.0f}",
        )
        for its in lines
    ]
    return text_table(header, cells)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--competitors", nargs="+", choices=COMPETITORS, default=COMPETITORS)
    parser.add_argument("--rounds", type=int, default=3, help="in which each runs (default: 3)")
    parser.add_argument("--readings", type=int, default=10, help="in each round (default: 10)")
    parser.add_argument("--first", action="store_true", help="measure first steps alone")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, competitors, readings = options.worker
        work_all(name, competitors.split(","), int(readings))
        return 0
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU and a torch with CUDA")
    for name in options.models:
        if options.first:
            unmodified = [c for c in options.competitors if c == "eager" or "hologram" in c]
            print(f"\n{first_steps(name, unmodified, options.rounds)}")
            continue
        lines = measured(name, options.competitors, options.rounds, options.readings)
        print(f"\n{name}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
        print(text(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
