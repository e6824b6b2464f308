"""Write csrc/aten/quick_calls.tsv: the operator overloads that models call most.

Runs small configurations of transformers and timm models, and programs in plain torch, through
training steps, evaluation and text generation, and counts the calls of every ATen overload that
reaches a kernel of the device and that torch has a CPU kernel for. The overloads of the list get
unboxed wrappers; every other one is served as well, a little slower. Takes five to ten minutes.

Needs the packages transformers and timm beside torch (the project itself does not):

    pip install transformers timm

usage: python tools/record_calls.py [--device DEVICE] [--only TEXT] [--output FILE]
"""

from __future__ import annotations

import argparse
import random
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from workloads import Workload, missing_packages, workloads

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "csrc" / "aten" / "quick_calls.tsv"
DEVICE = "hologram"
SOURCES = ("transformers", "timm", "torch")

# Compositions that choose a library by the device: what they call on the CPU, with --device cpu,
# says nothing about any other.
_CHOOSE_BY_DEVICE = frozenset({"aten::convolution", "aten::convolution_backward"})


class Calls:
    """Counts, by overload, the calls that reach a kernel of `device`.

    A context manager around torch's profiler, which sees every call of the dispatcher with its
    overload, the calls inside it and the threads of autograd, and changes nothing.

    A call of an overload that has a CPU kernel is counted, and what it calls in its turn is not:
    it never comes to the device. An overload without one is a composition, registered for every
    device at once, and what it calls is judged by the same rule. The few calls that a model makes
    on CPU tensors beside are counted too: the profiler does not tell the devices of arguments.
    """

    def __init__(self, device: torch.device) -> None:
        self.counts: Counter[str] = Counter()
        self._own_key = "CPU" if device.type == "cpu" else "PrivateUse1"
        self._profile = profile(
            activities=[ProfilerActivity.CPU],
            experimental_config=_ExperimentalConfig(capture_overload_names=True),
        )

    def __enter__(self) -> Calls:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        profiler = self._profile.profiler
        assert profiler is not None and profiler.kineto_results is not None
        # The plain events: the trees that torch.profiler makes of them take minutes.
        events = [
            (event.start_thread_id(), event.start_ns(), -event.end_ns(), event)
            for event in profiler.kineto_results.events()
            if event.name().startswith("aten::")
        ]
        events.sort(key=lambda row: row[:3])  # outer calls first
        thread, end = 0, 0  # of the kernel that is running
        for of_thread, start, negative_end, event in events:
            if of_thread == thread and start < end and -negative_end <= end:
                continue
            name = event.name() + ("." + event.overload_name() if event.overload_name() else "")
            is_kernel, has_cpu_kernel = _kernel(name, self._own_key)
            if has_cpu_kernel:
                self.counts[name.removeprefix("aten::")] += 1
            if is_kernel:
                thread, end = of_thread, -negative_end


@cache
def _kernel(name: str, own_key: str) -> tuple[bool, bool]:
    """Does a call of the overload end in a kernel of the device, and is there one for the CPU?"""
    try:
        own, cpu = (
            torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in (own_key, "CPU")
        )
    except RuntimeError:  # a region of that name, no operator
        return False, False
    return own or cpu or name in _CHOOSE_BY_DEVICE, cpu


def record(workload: Workload, device: torch.device) -> Counter[str]:
    """The calls of one workload, by overload. Building the model is not recorded."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    run = workload.prepare(device)
    with Calls(device) as calls:
        run()
    return calls.counts


def text(command: str, recorded: dict[Workload, Counter[str]]) -> str:
    """The text of the list: a header of comments, then one line per overload."""
    calls: Counter[str] = Counter()
    models: Counter[str] = Counter()
    for counts in recorded.values():
        calls.update(counts)
        models.update(counts.keys())
    lines = [
        "# The operator overloads that models call most, of those with a CPU kernel.",
        "# Generated, do not edit:",
        f"#     {command}",
        "# with " + ", ".join(f"{name} {version(name)}" for name in ("torch", *SOURCES[:2])) + ".",
        "# Recorded: training (float32, and bfloat16 under autocast), evaluation, generation.",
    ]
    for source in SOURCES:
        names = [workload.name for workload in recorded if workload.source == source]
        if names:
            kind = "programs" if source == "torch" else "models"
            body = f"{len(names)} {source} {kind}: {', '.join(names)}"
            lines += textwrap.wrap(body, 100, initial_indent="# ", subsequent_indent="#     ")
    lines += ["#", "# overload\tmodels that call it\tcalls"]
    order = sorted(models, key=lambda name: (-models[name], -calls[name], name))
    lines += [f"{name}\t{models[name]}\t{calls[name]}" for name in order]
    return "\n".join(lines) + "\n"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; --help explains it."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\nusage")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device",
        default=DEVICE,
        help=f"where the models run (default: {DEVICE}); what they call depends a little on it",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="run the workloads whose name contains TEXT and print the list",
    )
    parser.add_argument(
        "--output", type=Path, default=LIST, help=f"default: {LIST.relative_to(ROOT)}"
    )
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    if missing := missing_packages():
        print(f"record_calls.py: not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")  # those of the models, about their own code
    device = torch.device(options.device)
    begun = time.monotonic()
    chosen = [one for one in workloads() if options.only in f"{one.source}/{one.name}"]
    recorded: dict[Workload, Counter[str]] = {}
    failed = []
    with tqdm(chosen, file=sys.stderr) as progress:
        for workload in progress:
            progress.set_description(f"{workload.source}/{workload.name}"[:40].ljust(40))
            try:
                recorded[workload] = record(workload, device)
            except Exception as error:
                failed.append(f"{workload.source}/{workload.name}: {type(error).__name__}: {error}")
    for line in failed:
        print(line, file=sys.stderr)
    command = "python tools/record_calls.py" + (
        "" if device.type == DEVICE else f" --device {device.type}"
    )
    listed = text(command, recorded)
    overloads = sum(not line.startswith("#") for line in listed.splitlines())
    print(
        f"{overloads} overloads, {len(recorded)} workloads, {time.monotonic() - begun:.0f} s",
        file=sys.stderr,
    )
    if failed:
        return 1  # an incomplete list is not written
    if options.only:
        print(listed, end="")
    else:
        options.output.write_text(listed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
