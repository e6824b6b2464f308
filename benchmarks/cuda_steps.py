"""Training steps on one NVIDIA GPU, unmodified: ours against all that torch offers on it.

    python benchmarks/cuda_steps.py                        the table
    python benchmarks/cuda_steps.py --models mlp --rounds 1

Needs an NVIDIA GPU and a torch with CUDA and Triton. The competitors are torch eager, compiled
(torch.compile), compiled with mode="reduce-overhead", eager and compiled inside a CUDA graph
captured by hand; ours run the same code as eager, with AdamW's default, with fused=True (torch's
are all fused), and so with no program replayed as a CUDA graph (HOLOGRAM_REPLAY=0). Autograd works
on one accelerator of a process, so each has processes of its own, which take turns; a time is the
median over all rounds of means of ten steps. A new batch is copied from pinned memory into the
step's own tensors in every step, and the loss is read in every tenth. "of the GPU" is a step's time
there where the host is ahead of it: behind a kernel that waits.

mlp: 784-1024-1024-10, 128 images, TF32. gpt: width 512, 6 layers, 8 heads, 256 tokens, 8 sequences,
32,000 words, bfloat16 autocast. tiny: width 128, 4 layers, 4 heads, 64 tokens, 4 sequences, 1,000
words, the same. Cross entropy, backward, AdamW with lr 1e-3, zero_grad(set_to_none=True).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
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
    "compiled": "torch.compile",
    "reduce-overhead": "reduce-overhead",
    "graph": "CUDA graph of eager",
    "compiled-graph": "compiled, in a CUDA graph",
    "hologram": "hologram",
    "hologram-fused": "hologram, fused AdamW",
    "hologram-launched": "the same, no replays",
}
WAITING_CYCLES = 60_000_000  # of the GPU, some thirty milliseconds
STEPS = 10  # between two readings of the clock
# Readings that do not count, and how many seconds of them at least: kernels are compiled, ours in
# the background.
WARM_UP, WARM_UP_SECONDS = 30, 4


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


def work(name: str, competitor: str, readings: int) -> dict[str, Any]:
    """Microseconds of a step, of each reading, and of the first one, in this process."""
    kind = "hologram" if competitor.startswith("hologram") else "cuda"
    if kind == "hologram":
        import torch_hologram  # noqa: F401
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device(kind, 0)
    module = torch.get_device_module(kind)
    model, batches = make(name)
    model.to(device)
    in_graph = competitor.endswith("graph")
    options: dict[str, Any] = {"fused": True} if competitor != "hologram" else {}
    if in_graph:
        options["capturable"] = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    x, y = (tensor.to(device) for tensor in batches[0])
    call: Callable[[Tensor], Tensor] = model
    if competitor.startswith("compiled"):
        call = torch.compile(model)
    elif competitor == "reduce-overhead":
        call = torch.compile(model, mode="reduce-overhead")

    def compute() -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=name in GPTS):
            logits = call(x)
            loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    run = compute
    if in_graph:
        run = captured(compute)
    done = 0

    def step() -> None:
        nonlocal done
        for to, new in zip((x, y), batches[done % len(batches)], strict=True):
            to.copy_(new, non_blocking=True)
        loss = run()
        done += 1
        if done % STEPS == 0:
            loss.item()

    def timed(steps: int) -> float:
        module.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        module.synchronize()
        return 1e6 * (time.perf_counter() - start) / steps

    first = timed(1)
    begin, readings_before = time.monotonic(), 0
    while readings_before < WARM_UP or time.monotonic() - begin < WARM_UP_SECONDS:
        timed(STEPS)
        readings_before += 1
    module.reset_peak_memory_stats()
    times = [timed(STEPS) for _ in range(readings)]
    peak = module.max_memory_allocated()

    def on_gpu() -> float:
        before, after = (torch.Event(kind, enable_timing=True) for _ in range(2))
        module.synchronize()
        torch.cuda._sleep(WAITING_CYCLES)
        before.record()
        step()
        after.record()
        module.synchronize()
        return 1e3 * before.elapsed_time(after)

    return {
        "times": times,
        "first": first,
        "peak": peak,
        "on_gpu": [on_gpu() for _ in range(5)],
        "gpu": torch.cuda.get_device_name(),
    }


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


def run_apart(name: str, competitor: str, readings: int) -> dict[str, Any]:
    """work() in a process of its own. Raises RuntimeError with what it says where it fails."""
    command = [sys.executable, __file__, "--worker", name, competitor, str(readings)]
    env = os.environ | ({"HOLOGRAM_REPLAY": "0"} if competitor == "hologram-launched" else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"{name}, {competitor}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--competitors", nargs="+", choices=COMPETITORS, default=COMPETITORS)
    parser.add_argument("--rounds", type=int, default=3, help="in which each runs (default: 3)")
    parser.add_argument("--readings", type=int, default=10, help="in each round (default: 10)")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, competitor, readings = options.worker
        print(json.dumps(work(name, competitor, int(readings))))
        return 0
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU and a torch with CUDA")
    for name in options.models:
        found: dict[str, list[dict[str, Any]]] = {}
        turns = [its for _ in range(options.rounds) for its in options.competitors]
        for competitor in tqdm(turns, desc=name, disable=None):
            try:
                its = run_apart(name, competitor, options.readings)
                found.setdefault(competitor, []).append(its)
            except RuntimeError as error:
                print(error, file=sys.stderr)
        medians = {
            its: statistics.median(t for part in parts for t in part["times"])
            for its, parts in found.items()
        }
        others = [time for its, time in medians.items() if not its.startswith("hologram")]
        lines = []
        for who, parts in found.items():
            first = statistics.median(part["first"] for part in parts)
            on_gpu = statistics.median(t for part in parts for t in part["on_gpu"])
            ratio = f"{medians[who] / min(others):.2f}" if others else ""
            memory = max(part["peak"] for part in parts) / 2**20
            lines.append(
                (
                    COMPETITORS[who],
                    f"{medians[who]:.0f}",
                    ratio,
                    f"{on_gpu:.0f}",
                    f"{first / 1e3:.0f}",
                    f"{memory:.0f}",
                )
            )
        gpu = next(iter(found.values()))[0]["gpu"] if found else ""
        print(f"\n{name}, {gpu}, torch {torch.__version__}")
        print(
            text_table(
                ("", "us", "of torch's best", "of the GPU", "first step, ms", "peak, MiB"), lines
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
