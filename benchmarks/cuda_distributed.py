"""A GPT's training step on one GPU and on several: weak scaling, against torch's own.

    python benchmarks/cuda_distributed.py            the table
    python benchmarks/cuda_distributed.py --write    and benchmarks/results/GPU-distributed.md, .png

Needs NVIDIA GPUs and a torch with CUDA and NCCL. On several GPUs the model is wrapped in
DistributedDataParallel; each has the batch that one has alone, and weak scaling is the time of one
over the time of several. Autograd works on one accelerator in a process, so ours and torch's take
turns in processes of their own: so many rounds, in each of which every one runs so many steps.
Times are medians over all readings, each of ten steps, of the slowest rank. The picture is of three
steps of the first rank, as torch.profiler sees them; "communication under computation" is the part
of the time of NCCL's kernels in which others ran, too.

The model: pre-norm blocks, width 512, 6 layers, 8 heads, 256 tokens, 8 sequences for each GPU (a
step that the host takes longest for) and 64 (one that the GPU does), 32,000 words, bfloat16
autocast, AdamW(fused=True). A batch is copied from pinned memory in every
step, the loss is read in every tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if "--worker" in sys.argv:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if "hologram" in sys.argv:
        os.environ["HOLOGRAM_BACKENDS"] = "cuda"

import torch
import torch.distributed as dist
from gpt import Gpt, Sizes
from torch import nn
from torch.nn import functional as F

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = Sizes(width=512, layers=6, heads=8, length=256, words=32_000)
STEPS = 10  # between two readings of the clock
WARM_UP = 30  # readings that do not count
Span = tuple[float, float]


# ---- what runs in each process -------------------------------------------------------------------


def work(
    kind: str, batch: int, readings: int, ddp: dict[str, Any], trace: str | None
) -> dict[str, Any]:
    """Trains on the current rank's GPU; microseconds of a step, of each reading."""
    if kind == "hologram":
        import torch_hologram  # noqa: F401

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(kind, rank)
    module = torch.get_device_module(kind)
    module.set_device(device)
    if size > 1:
        dist.init_process_group("nccl")
    torch.manual_seed(0)
    model: nn.Module = Gpt(SIZES).to(device)
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model, [rank], **ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = [torch.randint(SIZES.words, (batch, SIZES.length + 1)).pin_memory() for _ in range(8)]
    text = batches[0].to(device)
    done = 0

    def step() -> None:
        nonlocal done
        text.copy_(batches[done % len(batches)], non_blocking=True)
        with torch.autocast(kind, torch.bfloat16):
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        if done % STEPS == 0:
            loss.item()

    def ten_steps() -> float:
        if size > 1:
            dist.barrier(device_ids=[rank])
        module.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        module.synchronize()
        return 1e6 * (time.perf_counter() - start) / STEPS

    for _ in range(WARM_UP):  # kernels are compiled meanwhile
        ten_steps()
    times = [ten_steps() for _ in range(readings)]
    overlap = None
    if trace is not None:
        overlap = traced(step, module, trace if rank == 0 else None)
    if size > 1:
        dist.destroy_process_group()
    return {"times": times, "overlap": overlap, "gpu": torch.cuda.get_device_name(rank)}


def traced(step: Any, module: Any, path: str | None) -> dict[str, Any]:
    """Of three steps: the spans of kernels and of NCCL's, in microseconds, in the first rank."""
    from torch.profiler import ProfilerActivity, profile

    step()
    module.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            step()
        module.synchronize()
    if path is None:
        return {}
    seen.export_chrome_trace(path)
    kernels: list[Span] = []
    messages: list[Span] = []
    for event in json.loads(Path(path).read_text())["traceEvents"]:
        if event.get("cat") == "kernel":
            among = messages if "nccl" in event["name"].lower() else kernels
            among.append((event["ts"], event["ts"] + event["dur"]))
    return {"kernels": union(kernels), "messages": union(messages)}


def union(spans: list[Span]) -> list[Span]:
    """Disjoint spans that cover the same times, in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(spans: list[Span]) -> float:
    return sum(end - start for start, end in spans)


def common_time(one: list[Span], other: list[Span]) -> float:
    """Of two lists of disjoint spans, the time that is in both."""
    return length(one) + length(other) - length(union([*one, *other]))


# ---- the processes -------------------------------------------------------------------------------


def run(
    kind: str, gpus: int, batch: int, readings: int, ddp: str, trace: str | None
) -> list[dict[str, Any]]:
    """What the ranks return; raises RuntimeError with what one has printed if it fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--worker", kind, "--readings", str(readings)]
    command += ["--ddp", ddp, "--batches", str(batch)]
    if trace:
        command += ["--trace", trace]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(gpus),
        "OMP_NUM_THREADS": "4",
    }
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(gpus):
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            stack.callback(process.kill)
            ranks.append((process, errors))
        results = []
        for process, errors in ranks:
            out, _ = process.communicate(timeout=240)
            if process.returncode:
                errors.seek(0)
                raise RuntimeError(f"{kind} on {gpus} GPUs failed:\n{errors.read()[-4000:]}")
            results.append(json.loads(out.splitlines()[-1]))
    return results


def measure(
    batch: int, options: argparse.Namespace
) -> tuple[list[str], dict[str, dict[str, Any]], str]:
    """The lines of a table, the traces of each kind on several GPUs, and the GPU's name."""
    times: dict[tuple[str, int], list[float]] = {}
    traces: dict[str, dict[str, Any]] = {}
    gpu = ""
    many = options.gpus
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            kinds = ("cuda", "hologram") if turn % 2 == 0 else ("hologram", "cuda")
            for gpus in (1, many):
                for kind in kinds:
                    last = turn + 1 == options.rounds and gpus > 1
                    trace = f"{folder}/{kind}.json" if last else None
                    ranks = run(kind, gpus, batch, options.readings, options.ddp, trace)
                    each = zip(*(its["times"] for its in ranks), strict=True)
                    slowest = [max(of_a_reading) for of_a_reading in each]
                    times.setdefault((kind, gpus), []).extend(slowest)
                    gpu = ranks[0]["gpu"]
                    if last:
                        traces[kind] = ranks[0]["overlap"]
                    seen = statistics.median(slowest)
                    print(
                        f"batch {batch}, round {turn + 1}, {kind} on {gpus}: {seen:.0f} us",
                        file=sys.stderr,
                    )
    median = {key: statistics.median(value) for key, value in times.items()}
    title = f"batch {batch}, us of a step"
    lines = [f"{title:34}{'hologram':>10}{'torch':>10}{'times torch':>14}"]
    for gpus, name in ((1, "one GPU"), (many, f"{many} GPUs, DistributedDataParallel")):
        ours, theirs = median["hologram", gpus], median["cuda", gpus]
        lines.append(f"{name:34}{ours:10.0f}{theirs:10.0f}{ours / theirs:14.2f}")
    ours, theirs = (median[kind, 1] / median[kind, many] for kind in ("hologram", "cuda"))
    lines.append(f"{'weak scaling':34}{100 * ours:9.1f}%{100 * theirs:9.1f}%")
    ours, theirs = (
        common_time(traces[kind]["kernels"], traces[kind]["messages"])
        / max(length(traces[kind]["messages"]), 1e-9)
        for kind in ("hologram", "cuda")
    )
    lines.append(f"{'communication under computation':34}{100 * ours:9.1f}%{100 * theirs:9.1f}%")
    return lines, traces, gpu


def draw(path: Path, traces: dict[str, dict[str, Any]]) -> None:
    """The spans of each trace on two lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(traces), 1, figsize=(10, 2.2 * len(traces)), squeeze=False)
    for axis, (kind, spans) in zip(axes[:, 0], traces.items(), strict=True):
        start = spans["kernels"][0][0]
        lines = (("kernels", "tab:blue"), ("messages", "tab:orange"))
        for place, (name, color) in enumerate(lines):
            bars = [((a - start) / 1000, (b - a) / 1000) for a, b in spans[name]]
            axis.broken_barh(bars, (1.1 - place, 0.8), color=color)
        axis.set_yticks([0.5, 1.5], ["NCCL", "other kernels"])
        axis.set_title(f"three steps with DistributedDataParallel, {kind}, first rank")
    axes[-1, 0].set_xlabel("milliseconds")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=2, help="how many to scale to")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 64], help="for each GPU")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--readings", type=int, default=10, help="of ten steps, in a round")
    parser.add_argument(
        "--ddp", default='{"gradient_as_bucket_view": true}', help="its options, as JSON"
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/results")
    parser.add_argument("--worker", choices=["cuda", "hologram"], help=argparse.SUPPRESS)
    parser.add_argument("--trace", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        ddp = json.loads(options.ddp)
        result = work(options.worker, options.batches[0], options.readings, ddp, options.trace)
        print(json.dumps(result))
        return 0
    if torch.cuda.device_count() < options.gpus:
        print(f"there are {torch.cuda.device_count()} GPUs that torch sees", file=sys.stderr)
        return 1

    lines = [f"DistributedDataParallel with {options.ddp}"]
    traces: dict[str, dict[str, Any]] = {}
    gpu = ""
    for batch in options.batches:
        table, seen, gpu = measure(batch, options)
        lines += ["", *table]
        traces |= {f"{kind}, batch {batch}": spans for kind, spans in seen.items()}
    versions = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    lines.insert(0, f"{gpu}, {versions}")
    print("\n".join(lines))
    if options.write:
        many = options.gpus
        name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + "-distributed"
        (RESULTS / f"{name}.md").write_text(
            f"# A training step on {many} GPUs\n\nWritten by "
            "`python benchmarks/cuda_distributed.py --write`, which says what is measured.\n\n"
            "```\n" + "\n".join(lines) + f"\n```\n\n![a trace]({name}.png)\n"
        )
        draw(RESULTS / f"{name}.png", traces)
        print(f"written to benchmarks/results/{name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
