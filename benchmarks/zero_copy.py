"""Exchanging data with the runtime SDK: JSON, copies, shared memory, and what operations cost.

    python benchmarks/zero_copy.py            measure, print, write results/zero_copy.*
    python benchmarks/zero_copy.py --quick    a minute, small sizes, writes nothing

What is compared is measured in turns in one process, on one thread. Times are medians. A bound is
kept when the median is within it and missed (MISS) when its whole 95 % interval lies beyond it; in
between the machine was too busy to tell ("unsure"). Exit status 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from tqdm import tqdm

import torch_hologram as hg

RESULTS = Path(__file__).parent / "results"
SIZES = (100, 1024, 10_000, 100_000, 10_000_000)
JSON_ONCE = 1_000_000  # from here on JSON takes seconds and is run once
ROUNDS = 151
QUICK_ROUNDS = 31
LEAST_ROUNDS = 9
SECONDS = 5.0  # of measuring statements in turns; after that LEAST_ROUNDS have to do
# Much shorter than what the system lets a thread run: whoever else computes here hits few samples.
SAMPLE_SECONDS = 2e-4
MANY = 64  # results alive at once: what nobody can read any more is not computed
ITEM = 4  # bytes of a float32


@dataclass(frozen=True)
class Sample:
    """Seconds of one statement, one figure a round."""

    seconds: np.ndarray

    @property
    def us(self) -> float:
        return 1e6 * float(np.median(self.seconds))


@dataclass(frozen=True)
class Bound:
    """A promise, the figure it is about with its 95 % interval, and what came of it."""

    what: str
    values: np.ndarray  # one a round
    limit: float
    unit: str
    at_least: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        return common.bootstrap_interval(self.values.tolist())

    @property
    def verdict(self) -> str:
        low, high = self.interval
        figures = (float(np.median(self.values)), high if self.at_least else low)
        within, perhaps = (
            figure >= self.limit if self.at_least else figure <= self.limit for figure in figures
        )
        return "pass" if within else "unsure" if perhaps else "MISS"

    def cells(self) -> tuple[str, ...]:
        low, high = self.interval
        return (
            self.what,
            f"{'>=' if self.at_least else '<='} {self.limit:g} {self.unit}",
            f"{np.median(self.values):.3g} {self.unit}",
            f"{low:.3g}..{high:.3g}",
            self.verdict,
        )


BOUND_HEADER = ("what", "bound", "median", "95 %", "")


def in_turns(statements: dict[str, str], names: dict[str, Any], rounds: int) -> dict[str, Sample]:
    """Seconds of one run of each statement: every round measures all, the first one alternating."""
    timers = {key: timeit.Timer(text, globals=names) for key, text in statements.items()}
    counts = {key: common.repetitions(timer, SAMPLE_SECONDS) for key, timer in timers.items()}
    seconds: dict[str, list[float]] = {key: [] for key in statements}
    gc.collect()
    end = time.perf_counter() + SECONDS
    for turn in range(rounds):
        if turn >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for key in sorted(timers, reverse=bool(turn % 2)):
            seconds[key].append(timers[key].timeit(counts[key]) / counts[key])
    return {key: Sample(np.array(values)) for key, values in seconds.items()}


# ---- exchange ----

# Way -> how it writes array x to buffer b, and reads it back. `h` is the
# buffer's handle, `handle` its executor's.
WAYS = {
    "JSON": (
        "ffi.buffer_copy_from_slice(handle, h, json.dumps(x.tolist()))",
        "np.array(json.loads(ffi.buffer_to_vec(handle, h)), dtype=np.float32)",
    ),
    "bytes": ("b.from_bytes(x.tobytes())", "np.frombuffer(b.to_bytes(), np.float32)"),
    "array": ("b.from_numpy(x)", "b.to_numpy()"),
    "memoryview": ("memoryview(b)[:] = memoryview(x)", "np.array(memoryview(b))"),
    "DLPack": ("np.from_dlpack(b)[:] = x", "np.from_dlpack(b).copy()"),
}
# What is only shared, of buffer b and tensor t.
ALIASES = {
    "np.asarray(buffer)": "np.asarray(b)",
    "memoryview(buffer)": "memoryview(b)",
    "np.from_dlpack(buffer)": "np.from_dlpack(b)",
    "buffer_to_tensor": "hg.buffer_to_tensor(b)",
    "tensor_to_buffer": "hg.tensor_to_buffer(executor, t)",
}


def exchange_names(n: int) -> dict[str, Any]:
    """What the statements above use. Every way has a buffer of its own: sharing changes it."""
    ffi = importlib.import_module("hologram_ffi")
    handle = ffi.new_executor()
    executor = hg.Executor("cpu")
    return {
        "np": np,
        "json": json,
        "hg": hg,
        "ffi": ffi,
        "handle": handle,
        "executor": executor,
        "x": np.random.default_rng(0).standard_normal(n).astype(np.float32),
        "h": ffi.executor_allocate_buffer(handle, n),
        "t": torch.zeros(n, device="hologram"),
        **{f"b_{way}": executor.allocate(n) for way in (*WAYS, "alias")},
    }


def measure_exchange(n: int, rounds: int) -> dict[str, Sample]:
    """Samples by "way write", "way read", "way round trip" and, of aliases, by their names."""
    names = exchange_names(n)
    statements = {}
    for way, (write, read) in WAYS.items():
        write, read = (text.replace("(b)", f"(b_{way})") for text in (write, read))
        write, read = (text.replace("b.", f"b_{way}.") for text in (write, read))
        statements[f"{way} write"] = write
        statements[f"{way} read"] = read
        statements[f"{way} round trip"] = f"{write}; {read}"
    for name, text in ALIASES.items():
        statements[name] = text.replace("(b)", "(b_alias)")
    once = {}
    if n >= JSON_ONCE:
        for key in [key for key in statements if key.startswith("JSON")]:
            text = statements.pop(key)
            if not key.endswith("round trip"):
                start = time.perf_counter()
                exec(text, names)
                once[key] = Sample(np.array([time.perf_counter() - start]))
        both = sum(float(sample.seconds[0]) for sample in once.values())
        once["JSON round trip"] = Sample(np.array([both]))
    samples = {**once, **in_turns(statements, names, rounds)}
    names["executor"].close()
    names["ffi"].executor_cleanup(names["handle"])
    return samples


def measure_array(n: int, rounds: int) -> dict[str, Sample]:
    """from_numpy and to_numpy as in a loop of them: with warm caches, which JSON would empty."""
    write, read = WAYS["array"]
    executor = hg.Executor("cpu")
    names = {"b": executor.allocate(n), "x": np.zeros(n, np.float32)}
    samples = in_turns(
        {"write": write, "read": read, "round trip": f"{write}; {read}"}, names, rounds
    )
    executor.close()
    return samples


def exchange_tables(exchange: dict[int, dict[str, Sample]]) -> list[str]:
    header = ("", "", *(f"{n:,}" for n in exchange))
    kinds = ("write", "read", "round trip")
    lines = [
        (
            way,
            kind,
            *(common.format_time(samples[f"{way} {kind}"].us) for samples in exchange.values()),
        )
        for way in WAYS
        for kind in kinds
    ]
    aliases = [
        (name, "", *(common.format_time(samples[name].us) for samples in exchange.values()))
        for name in ALIASES
    ]
    ratios = [
        (
            f"JSON / {way}",
            "round trip",
            *(
                f"{samples['JSON round trip'].us / samples[f'{way} round trip'].us:,.0f}x"
                for samples in exchange.values()
            ),
        )
        for way in list(WAYS)[1:]
    ]
    return [common.markdown_table(header, table) for table in (lines, ratios, aliases)]


# ---- memory ----


def measure_memory(n: int) -> list[tuple[str, str, str, str]]:
    """Bytes that copies and shared memory take, on the host and on the device, n elements."""
    executor = hg.Executor("cpu")
    buffer, tensor = executor.allocate(n), torch.zeros(n, device="hologram")
    ways: dict[str, Callable[[], Any]] = {
        "copy: to_numpy": buffer.to_numpy,
        "copy: to_bytes": buffer.to_bytes,
        "copy: tensor.clone": tensor.clone,
        "alias: np.asarray": lambda: np.asarray(buffer),
        "alias: np.from_dlpack": lambda: np.from_dlpack(buffer),
        "alias: buffer_to_tensor": lambda: hg.buffer_to_tensor(buffer),
        "alias: tensor_to_buffer": lambda: hg.tensor_to_buffer(executor, tensor),
    }
    rows = []
    for name, make in ways.items():
        gc.collect()
        before = torch.hologram.memory_allocated()
        tracemalloc.start()
        made = make()
        if isinstance(made, torch.Tensor):
            torch.hologram.synchronize()
        host = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        device = torch.hologram.memory_allocated() - before
        rows.append((name, f"{ITEM * n:,}", f"{host:,}", f"{device:,}"))
        del made
    executor.close()
    return rows


# ---- operations ----


def measure_operations(n: int, rounds: int) -> dict[str, tuple[Sample, Sample]]:
    """Of each operation: torch on the CPU, and hg.ops. Seconds of one operation."""
    executor = hg.Executor("cpu")
    count = MANY if n <= 10_000 else 1
    x, y = (torch.rand(n) + 0.5 for _ in range(2))
    names = {
        "torch": torch,
        "ops": hg.ops,
        "executor": executor,
        "finish": executor.synchronize,
        "x": x,
        "y": y,
        "results": [torch.empty(n) for _ in range(count)],
        "a": hg.tensor_to_buffer(executor, x),
        "b": hg.tensor_to_buffer(executor, y),
        "buffers": [executor.allocate(n) for _ in range(count)],
    }
    found = {}
    for name in ("add", "sub", "mul", "div"):
        statements = {
            "torch": f"for c in results: torch.{name}(x, y, out=c)",
            "hologram": f"for c in buffers: ops.vector_{name}(executor, a, b, c)\nfinish()",
        }
        samples = in_turns(statements, names, rounds)
        found[name] = (
            Sample(samples["torch"].seconds / count),
            Sample(samples["hologram"].seconds / count),
        )
    executor.close()
    return found


def gigabytes(n: int, sample: Sample) -> float:
    """Two operands read and a result written, in GB/s."""
    return 3 * ITEM * n / sample.us / 1e3


# ---- pipelines: NumPy array in, relu(x * w + b) and its sum, NumPy array out ----

PIPELINES = {
    "PyTorch only": (
        "z = torch.relu(torch.from_numpy(x) * w + v); s = z.sum().item(); out = z.numpy().copy()"
    ),
    "hybrid": (
        "z = f.relu(executor, f.add(executor, f.mul(executor, x, wd), vd)); "
        "s = z.sum().item(); out = np.from_dlpack(z).copy()"
    ),
    "hologram": (
        "a.from_numpy(x); ops.mad(executor, a, wb, vb, c); ops.vector_relu(executor, c, c); "
        "s = ops.reduce_sum(executor, c); out = c.to_numpy()"
    ),
    "hologram, shared": (
        "ops.mad(executor, shared, wb, vb, d); ops.vector_relu(executor, d, d); "
        "s = ops.reduce_sum(executor, d); out = np.asarray(d)"
    ),
}


def measure_pipelines(n: int, rounds: int) -> dict[str, Sample]:
    executor = hg.Executor("cpu")
    x, w, v = (np.random.default_rng(i).standard_normal(n).astype(np.float32) for i in range(3))
    shared = executor.allocate(n)
    np.asarray(shared)[:] = x
    names: dict[str, Any] = {
        "np": np,
        "torch": torch,
        "f": hg.functional,
        "ops": hg.ops,
        "executor": executor,
        "x": x,
        "w": torch.from_numpy(w),
        "v": torch.from_numpy(v),
        "wd": torch.from_numpy(w).to("hologram"),
        "vd": torch.from_numpy(v).to("hologram"),
        "wb": hg.tensor_to_buffer(executor, torch.from_numpy(w)),
        "vb": hg.tensor_to_buffer(executor, torch.from_numpy(v)),
        "a": executor.allocate(n),
        "c": executor.allocate(n),
        "d": executor.allocate(n),
        "shared": shared,
    }
    expected = np.maximum(x * w + v, 0)
    for name, text in PIPELINES.items():
        exec(text, names)
        if not np.array_equal(names["out"], expected):
            raise RuntimeError(f"the pipeline {name!r} computes something else")
    samples = in_turns(PIPELINES, names, rounds)
    executor.close()
    return samples


# ---- bounds ----

# Operation -> the same of torch's operator on tensors of the device; 16 elements.
SMALL = {
    "vector_add(executor, a, b, c)": "torch.add(A, B, out=C)",
    "vector_div(executor, a, b, c)": "torch.div(A, B, out=C)",
    "vector_relu(executor, a, c)": "torch.ops.aten.relu.out(A, out=C)",
    "vector_clip(executor, a, c, 0.0, 1.0)": "torch.clamp(A, 0.0, 1.0, out=C)",
    "scalar_mul(executor, a, c, 2.0)": "torch.mul(A, 2.0, out=C)",
    "sigmoid(executor, a, c)": "torch.sigmoid(A, out=C)",
    "softmax(executor, a, c)": "torch.softmax(A, 0, out=C)",
    "reduce_sum(executor, a)": "torch.sum(A).item()",
    "vector_add_i32(executor, i, j, k)": "torch.add(I, J, out=K)",
    "gemm(executor, a, b, c, 4, 4, 4)": "torch.mm(A.view(4, 4), B.view(4, 4), out=C.view(4, 4))",
}


def measure_small(rounds: int) -> list[Bound]:
    executor = hg.Executor("cpu")
    names: dict[str, Any] = {"torch": torch, "ops": hg.ops, "executor": executor}
    for letter in "abcijk":
        dtype = np.float32 if letter in "abc" else np.int32
        names[letter] = executor.allocate(16, dtype)
        names[letter].fill(1)
        names[letter.upper()] = hg.buffer_to_tensor(executor.allocate(16, dtype)).fill_(1)
    bounds = []
    for ours, theirs in SMALL.items():
        samples = in_turns({"ours": f"ops.{ours}", "theirs": theirs}, names, rounds)
        more = 1e6 * (samples["ours"].seconds - samples["theirs"].seconds)
        bounds.append(Bound(f"16 elements: {ours.split('(')[0]} more than torch's", more, 1, "us"))
    executor.close()
    return bounds


def measure_aliases(small: int, large: int, rounds: int) -> list[Bound]:
    """Sharing costs the same for every size."""
    executor = hg.Executor("cpu")
    names: dict[str, Any] = {"np": np, "hg": hg, "executor": executor}
    for size, n in (("small", small), ("large", large)):
        names[f"b_{size}"] = executor.allocate(n)
        names[f"t_{size}"] = torch.zeros(n, device="hologram")
    bounds = []
    for name, text in ALIASES.items():
        statements = {
            size: text.replace("(b)", f"(b_{size})").replace(" t)", f" t_{size})")
            for size in ("small", "large")
        }
        samples = in_turns(statements, names, rounds)
        ratio = samples["large"].seconds / samples["small"].seconds
        bounds.append(Bound(f"{name}: {large:,} elements over {small:,}", ratio, 1.5, "x"))
    executor.close()
    return bounds


def measure_functional(rounds: int) -> Bound:
    executor = hg.Executor("cpu")
    x, y = torch.rand(1000), torch.rand(1000)
    names = {
        "torch": torch,
        "add": hg.functional.add,
        "executor": executor,
        "finish": executor.synchronize,
        "x": x,
        "y": y,
        "a": x.to("hologram"),
        "b": y.to("hologram"),
        "many": range(MANY),
    }
    statements = {
        "cpu": "results = [torch.add(x, y) for _ in many]",
        "ours": "results = [add(executor, a, b) for _ in many]; finish()",
    }
    samples = in_turns(statements, names, rounds)
    ratio = samples["ours"].seconds / samples["cpu"].seconds
    executor.close()
    return Bound("functional.add of 1,000 over torch's on the CPU", ratio, 1.2, "x")


# Of the thread that makes it, so that other programs on the machine do not count.
FIRST_EXECUTOR = """
import time, torch_hologram as hg
start = time.thread_time_ns()
hg.Executor()
print((time.thread_time_ns() - start) / 1e6)
"""
PROCESSES = 15


def first_executors() -> np.ndarray:
    """Milliseconds of processor time of `hg.Executor()` right after the import, a process each.

    It imports the SDK, with the bytecode that the first process, which does not count, leaves.
    """
    command = [sys.executable, "-c", FIRST_EXECUTOR]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        outputs = [
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for _ in range(PROCESSES + 1)
        ]
    return np.array([float(output.stdout) for output in outputs[1:]])


def judge(exchange: dict[int, dict[str, Sample]], rounds: int) -> list[Bound]:
    bounds = []
    at, alone = exchange[1024], measure_array(1024, rounds)
    for kind, most, least in (("write", 1, 50), ("read", 4, 11), ("round trip", 5, 19)):
        ours, theirs = at[f"array {kind}"].seconds, at[f"JSON {kind}"].seconds
        bounds.append(Bound(f"1,024 elements: {kind}", 1e6 * alone[kind].seconds, most, "us"))
        bounds.append(Bound(f"1,024 elements: {kind} over JSON", theirs / ours, least, "x", True))
    at = exchange[100_000]
    ratio = at["JSON round trip"].seconds / at["array round trip"].seconds
    bounds.append(Bound("100,000 elements: round trip over JSON", ratio, 1000, "x", True))
    bounds += measure_aliases(min(exchange), max(exchange), rounds)
    opened = in_turns({"open": "Executor('cpu').close()"}, {"Executor": hg.Executor}, rounds)
    bounds.append(Bound("Executor('cpu')", 1e3 * opened["open"].seconds, 1, "ms"))
    bounds.append(Bound("the first Executor of a process", first_executors(), 1, "ms"))
    return [*bounds, *measure_small(rounds), measure_functional(rounds)]


# ---- what is written ----


def plot(
    exchange: dict[int, dict[str, Sample]],
    operations: dict[int, dict[str, tuple[Sample, Sample]]],
    pipelines: dict[int, dict[str, Sample]],
    path: Path,
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    for way in WAYS:
        times = [samples[f"{way} round trip"].us for samples in exchange.values()]
        left.plot(list(exchange), times, marker="o", ms=4, label=way)
    times = [samples["np.asarray(buffer)"].us for samples in exchange.values()]
    left.plot(list(exchange), times, "k--", label="shared (np.asarray)")
    left.set(title="round trip", ylabel="us", yscale="log")
    for name, color in zip(
        ("add", "sub", "mul", "div"), plt.colormaps["tab10"].colors, strict=False
    ):
        for index, style in enumerate((":", "-")):
            rates = [gigabytes(n, samples[name][index]) for n, samples in operations.items()]
            label = f"{name}, {'hologram' if index else 'torch CPU'}"
            middle.plot(list(operations), rates, style, color=color, label=label)
    middle.set(title="operations", ylabel="GB/s", ylim=(0, None))
    for name in PIPELINES:
        times = [samples[name].us for samples in pipelines.values()]
        right.plot(list(pipelines), times, marker="o", ms=4, label=name)
    right.set(title="relu(x * w + b) and its sum, from and to NumPy", ylabel="us", yscale="log")
    for axes in (left, middle, right):
        axes.set(xlabel="elements", xscale="log")
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(
    exchange: dict[int, dict[str, Sample]],
    operations: dict[int, dict[str, tuple[Sample, Sample]]],
    pipelines: dict[int, dict[str, Sample]],
    memory: Sequence[tuple[str, str, str, str]],
    bounds: Sequence[Bound],
    rounds: int,
) -> str:
    ways, ratios, aliases = exchange_tables(exchange)
    operation_lines = [
        (
            name,
            f"{n:,}",
            common.format_time(theirs.us),
            common.format_time(ours.us),
            f"{gigabytes(n, theirs):.1f}",
            f"{gigabytes(n, ours):.1f}",
        )
        for n, samples in operations.items()
        for name, (theirs, ours) in samples.items()
    ]
    pipeline_lines = [
        (name, "", *(common.format_time(samples[name].us) for samples in pipelines.values()))
        for name in PIPELINES
    ]
    operation_header = ("", "elements", "torch CPU", "hologram", "torch, GB/s", "hologram, GB/s")
    bound_lines = [bound.cells() for bound in bounds]
    sections = (
        "# Exchanging data with the runtime SDK",
        f"Written by `python benchmarks/zero_copy.py`. Medians of up to {rounds} rounds in which "
        "what is compared is measured in turns, one thread, float32. "
        "A bound passes by its median, and is missed when the whole 95 % interval lies beyond it.",
        "\n".join(f"- {name}: {value}" for name, value in common.machine().items()),
        "## Bounds",
        common.markdown_table(BOUND_HEADER, bound_lines),
        "## A NumPy array into a buffer and back\n\nColumns are elements. JSON of "
        f"{JSON_ONCE:,} elements or more was run once.",
        ways,
        "How many times as long JSON takes:",
        ratios,
        "Sharing the memory, without copying it:",
        aliases,
        "## Memory\n\nBytes that are new, where the elements have the bytes of the second column.",
        common.markdown_table(("", "elements", "on the host", "on the device"), memory),
        "## Operations\n\nWith their execution; three arrays are moved.",
        common.markdown_table(operation_header, operation_lines),
        "## Pipelines\n\n`relu(x * w + b)` and its sum, from a NumPy array to a NumPy array. "
        "*Hybrid* calls `hg.functional` on arrays, *hologram* `hg.ops` on buffers it copies to and "
        "from; *shared* finds the array in a buffer's memory and leaves the result in another's.",
        common.markdown_table(("", "", *(f"{n:,}" for n in pipelines)), pipeline_lines),
        "![figures](zero_copy.png)",
    )
    return "\n\n".join(sections) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute, writes nothing")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    hg.compat.install()
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    sizes = [n for n in SIZES if n < JSON_ONCE or not arguments.quick]
    larger = [n for n in (1000, 10_000, 100_000, 1_000_000, 10_000_000) if n <= max(sizes)]
    progress = tqdm(total=len(sizes) + 2 * len(larger) + 2, file=sys.stderr)

    def step(value: Any) -> Any:
        progress.update()
        return value

    exchange = {n: step(measure_exchange(n, rounds)) for n in sizes}
    with torch.no_grad():
        operations = {n: step(measure_operations(n, rounds)) for n in larger}
        pipelines = {n: step(measure_pipelines(n, rounds)) for n in larger}
        memory = step(measure_memory(max(sizes)))
        bounds = step(judge(exchange, rounds))
    progress.close()
    text = report(exchange, operations, pipelines, memory, bounds, rounds)
    if arguments.quick:
        print(text)
    else:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "zero_copy.md").write_text(text)
        plot(exchange, operations, pipelines, RESULTS / "zero_copy.png")
    print(common.text_table(BOUND_HEADER, [bound.cells() for bound in bounds]))
    return any(bound.verdict == "MISS" for bound in bounds)


if __name__ == "__main__":
    sys.exit(main())
