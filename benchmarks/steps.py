"""Training steps with Adam: passes against operators, the first step, and peak memory.

    python benchmarks/steps.py               measure, print, write results/steps.*
    python benchmarks/steps.py -k GPT        models with this in their name; prints only
    python benchmarks/steps.py --quick       one process per time instead of five; prints only

With one thread. What is measured, and what it must not exceed (exit status 1 where it does):

- Passes, of forward and backward and of `optimizer.step()`, each followed by synchronize(): a
  quarter of the operators that torch on the CPU runs for the same. Operators are counted by a
  TorchDispatchMode, in a step after others. Left out on both sides: matrix products, convolutions,
  attention, views, `empty`, reads of numbers, and what counts the steps of the optimizer, a number
  of the host on either device. An operator that calls others below the dispatcher is one. Passes
  are those of stream_stats(); every operator that the device hands to torch's kernels and that is
  not left out, and every one that touches memory of the host, is added as a pass. Left to itself,
  torch.optim takes its for-loop on the CPU and its foreach form on the device; with foreach=False
  it is the for-loop on both, which has rows of its own where a number differs. `whole step` is all
  of it with one synchronize() at the end, where passes of the optimizer wait for gradients and may
  be cut differently; it has no bound.
- Programs, which are the flushes of a whole step with one synchronize() at its end: 2.
- The first step of a process, from a model, data and an optimizer on the device to the end of
  zero_grad, forward, backward, step and synchronize(): 1.25 times that of torch on the CPU. The
  median of five processes each, in turns. Both kinds of process import torch_hologram.
- The most memory in a later step: 1.1 times that of torch on the CPU, or 64 MiB more. On the CPU it
  is exact: the profiler reports every allocation and its end with the bytes asked for, it runs from
  before the model is made, and the largest sum within the step is taken. (The resident set, in
  contrast, depends on what malloc gives back.) On the device it is max_memory_reserved() after
  steps that each end with synchronize(): what is held from the system, used or cached, so that
  blocks that are free, or wait for a program, count against the device. Host memory that torch's
  kernels take for a while, the CPU's allocations within the step, is added. Listed besides:
  max_memory_allocated(), and what is reserved after four steps with one synchronize() at their end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import common
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)

RESULTS = Path(__file__).parent / "results"
EXAMPLES = Path(__file__).parents[1] / "examples"
VOCABULARY = 1000
WARM_UP = 3  # steps; the results of a kernel that has never been called are not known
PROCESSES, QUICK_PROCESSES = 5, 1
PASSES_BOUND, PROGRAMS_BOUND, FIRST_BOUND, MEMORY_BOUND = 0.25, 2, 1.25, 1.1
MEMORY_SLACK = 64.0  # MiB
MIB = 2**20
_device: Any = torch.get_device_module("hologram")

# ---- the models ----------------------------------------------------------------------------------


@dataclass
class Training:
    """A model and its optimizer; `loss` is the forward pass over a batch of the same device."""

    module: nn.Module
    loss: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer

    def forward_backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()

    def step(self) -> None:
        self.forward_backward()
        self.optimizer.step()


class Block(nn.Module):
    """A layer of GPT-2: attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)))
        hidden = F.gelu(self.up(self.norms[1](x)), approximate="tanh")
        x = x + self.dropout(self.down(hidden))
        return x


class GPT(nn.Module):
    """Tokens to logits; the head is the table of words."""

    def __init__(self, width: int = 256, layers: int = 4, heads: int = 4, length: int = 128):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = self.norm(self.blocks(self.dropout(self.words(tokens) + places)))
        logits: Tensor = F.linear(hidden, self.words.weight)
        return logits


Made = tuple[nn.Module, Callable[[], Tensor]]


def _perceptron(device: torch.device) -> Made:
    module = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    ).to(device)
    x, target = torch.randn(128, 784).to(device), torch.randint(10, (128,)).to(device)
    return module, lambda: F.cross_entropy(module(x), target)


def _gpt(device: torch.device) -> Made:
    module = GPT().to(device)
    text = torch.randint(VOCABULARY, (4, 129))
    tokens, following = text[:, :-1].contiguous().to(device), text[:, 1:].flatten().to(device)
    return module, lambda: F.cross_entropy(module(tokens).flatten(0, 1), following)


def _digits(device: torch.device) -> Made:
    sys.path.append(str(EXAMPLES))
    import train_digits

    module = train_digits.make_model(0).to(device)
    data = train_digits.load_data(0)
    images = data.train_images[: train_digits.BATCH_SIZE].to(device)
    labels = data.train_labels[: train_digits.BATCH_SIZE].to(device)
    return module, lambda: F.cross_entropy(module(images), labels)


def _bert(device: torch.device) -> Made:
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    module: Any = transformers.BertForSequenceClassification(config)
    module.to(device)
    lengths = torch.randint(16, 65, (8, 1))
    batch = {
        "input_ids": torch.randint(1, VOCABULARY, (8, 64)),
        "attention_mask": (torch.arange(64) < lengths).long(),
        "labels": torch.randint(2, (8,)),
    }
    batch = {name: value.to(device) for name, value in batch.items()}
    return module, lambda: module(**batch).loss


MODELS: dict[str, tuple[str, Callable[[torch.device], Made]]] = {
    "MLP": ("784-1024-1024-10 b128", _perceptron),
    "GPT": ("d256 L4 heads 4 s128 b4", _gpt),
    "digits": ("CNN of examples/train_digits.py b64", _digits),
    "BERT": ("tiny, d128 L2 s64 b8, padded, two classes", _bert),
}


def make(model: str, device: torch.device, **options: Any) -> Training:
    """A model in training, equal on every device; options: of Adam."""
    torch.manual_seed(0)
    module, loss = MODELS[model][1](device)
    module.train()
    return Training(module, loss, torch.optim.Adam(module.parameters(), **options))


# ---- operators -----------------------------------------------------------------------------------

_PRODUCTS = frozenset(
    """
    mm addmm bmm baddbmm addbmm addmv mv dot vdot linear linear_backward _addmm_activation
    mkldnn_linear mkldnn_linear_backward _mkldnn_transpose
    """.split()
)
_NOTHING = frozenset("_local_scalar_dense _unsafe_view resize_ set_ sync".split())


def is_work(operator: str) -> bool:
    """Whether an operator, "aten::add.Tensor" or "aten.add.Tensor", counts; a view does here."""
    namespace, base = operator.replace("::", ".").split(".")[:2]
    return not (
        namespace in ("profiler", "prim")
        or base in _PRODUCTS
        or base in _NOTHING
        or "convolution" in base
        or base.startswith(("empty", "new_empty", "_scaled_dot_product", "_slow_conv", "slow_conv"))
    )


def _storages(tree: Any) -> set[int]:
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return {tensor.untyped_storage()._cdata for tensor in tensors}


class Operators(TorchDispatchMode):
    """Counts the operators that do work, apart from those on the tensors `besides`.

    `found`: calls by name; `on_host`: of them those with an operand or a result on the CPU.
    """

    def __init__(self, besides: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.on_host: Counter[str] = Counter()
        self._besides = _storages(list(besides))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_work(str(func)) and not func.is_view:
            self._count(func, (args, kwargs), result)
        return result

    def _count(self, func: Any, operands: Any, result: Any) -> None:
        before, after = _storages(operands), _storages(result)
        alias = bool(after) and after <= before and not func._schema.is_mutable
        if alias or before & self._besides:
            return
        self.found[str(func)] += 1
        tensors = (leaf for leaf in tree_leaves((operands, result)) if isinstance(leaf, Tensor))
        if any(tensor.device.type == "cpu" for tensor in tensors):
            self.on_host[str(func)] += 1


def _step_counters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    counters = (state.get("step") for state in optimizer.state.values())
    return [counter for counter in counters if isinstance(counter, Tensor)]


def operators_of(run: Callable[[], Any], besides: Iterable[Tensor] = ()) -> Operators:
    counting = Operators(besides)
    with counting:
        run()
    return counting


@dataclass
class Counted:
    """What the device made of a piece of code.

    others: operators handed to torch's kernels that are neither products, convolutions nor
    attention. calls: those that are recorded, products and the like included.
    """

    passes: int
    calls: int
    programs: int
    others: dict[str, int]


def passes_of(run: Callable[[], Any]) -> Counted:
    _device.synchronize()
    _device.reset_stream_stats()
    _device.reset_fallback_report()
    run()
    _device.synchronize()
    stats = _device.stream_stats()
    report = _device.fallback_report()
    others = {
        row.operator: row.calls for row in report if row.kind != "native" and is_work(row.operator)
    }
    programs = sum(count for name, count in stats.items() if name.startswith("flushes."))
    return Counted(stats["passes"], stats["calls"], programs, others)


# ---- figures -------------------------------------------------------------------------------------


@dataclass
class Figure:
    """One line of the table; `bound` is of device / cpu, or of `device` where there is no `cpu`.

    Without a bound it is only reported. details: what else is known, such as the operators by name.
    """

    model: str
    what: str
    unit: str
    cpu: float | None
    device: float
    bound: float | None
    slack: float = 0.0  # how much more than `cpu` is fine in any case
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.device if self.cpu is None else self.device / self.cpu

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return ""
        within = self.cpu is not None and self.slack and self.device <= self.cpu + self.slack
        return "pass" if self.ratio <= self.bound or within else "FAIL"


def _count_with(model: str, options: dict[str, Any]) -> list[Figure]:
    """Passes against operators, and programs, with Adam made with `options`."""
    theirs, mine = (make(model, torch.device(name), **options) for name in ("cpu", "hologram"))
    for _ in range(WARM_UP):
        theirs.step()
        mine.step()
    figures = []
    parts: tuple[tuple[str, Callable[[], Any], Callable[[], Any], float | None], ...] = (
        ("forward+backward", theirs.forward_backward, mine.forward_backward, PASSES_BOUND),
        ("step()", theirs.optimizer.step, mine.optimizer.step, PASSES_BOUND),
        ("whole step", theirs.step, mine.step, None),
    )
    for what, on_cpu, on_device, bound in parts:
        operators = operators_of(on_cpu, _step_counters(theirs.optimizer)).found
        counted = passes_of(on_device)
        # Once more, on the device: what of it is on the host.
        on_host = operators_of(on_device, _step_counters(mine.optimizer)).on_host
        others = Counter(counted.others) + on_host
        details = {
            "passes": counted.passes,
            "calls": counted.calls,
            "others": dict(others.most_common()),
            "operators": dict(operators.most_common()),
        }
        passes = counted.passes + others.total()
        figures.append(Figure(model, what, "", operators.total(), passes, bound, details=details))
    # `counted` is that of the whole step.
    figures.append(Figure(model, "programs", "", None, counted.programs, PROGRAMS_BOUND))
    return figures


def count(model: str) -> list[Figure]:
    """With torch's choice of the form of the optimizer, and the for-loop where it differs."""
    default, loop = _count_with(model, {}), _count_with(model, {"foreach": False})
    for figure, other in zip(default[1:], loop[1:], strict=True):
        if (figure.cpu, figure.device) != (other.cpu, other.device):
            other.what += ", foreach=False"
            default.append(other)
    return default


def first_step(model: str, device: torch.device) -> float:
    """Milliseconds of the first step of this process."""
    training = make(model, device)
    finish = common.finish_on(device)
    finish()
    start = time.perf_counter()
    training.step()
    finish()
    return 1e3 * (time.perf_counter() - start)


def _host_peak(session: profile) -> float:
    """The most bytes of the CPU's allocator within the last "measured", and before it began."""
    assert session.profiler is not None and session.profiler.kineto_results is not None
    sizes: list[tuple[int, int]] = []
    span = (0, 0)
    todo: list[Any] = list(session.profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo += event.children
        if event.name == "measured":
            span = (event.start_time_ns, event.end_time_ns)
        elif event.name == "[memory]" and event.extra_fields.device.type == "cpu":
            sizes.append((event.start_time_ns, event.extra_fields.alloc_size))
    total = most = 0
    for when, size in sorted(sizes, key=lambda pair: pair[0]):
        total += size
        if when < span[0]:
            most = total
        elif when <= span[1]:
            most = max(most, total)
    return most


def peak_memory(model: str, device: torch.device) -> dict[str, float]:
    """MiB in a step after others, by name; `total` is what is compared."""
    observe = partial(profile, activities=[ProfilerActivity.CPU], profile_memory=True)
    if device.type == "cpu":
        with observe() as session:
            training = make(model, device)
            for _ in range(WARM_UP):
                training.step()
            with record_function("measured"):
                training.step()
        return {"total": _host_peak(session) / MIB}
    training = make(model, device)
    for _ in range(WARM_UP + 1):
        _device.synchronize()
        _device.reset_peak_memory_stats()
        training.step()
    _device.synchronize()
    reserved = _device.max_memory_reserved() / MIB
    allocated = _device.max_memory_allocated() / MIB
    with observe() as session, record_function("measured"):
        training.step()
        _device.synchronize()
    host = _host_peak(session) / MIB
    for _ in range(4):
        training.step()
    _device.synchronize()
    return {
        "total": reserved + host,
        "reserved": reserved,
        "allocated": allocated,
        "host": host,
        "reserved after four steps": _device.max_memory_reserved() / MIB,
    }


# ---- processes -----------------------------------------------------------------------------------


def work(task: str, model: str, device: torch.device) -> Any:
    torch.set_num_threads(1)
    if task == "count":
        return [asdict(figure) for figure in count(model)]
    return first_step(model, device) if task == "first" else peak_memory(model, device)


def apart(task: str, model: str, device: str) -> Any:
    """work() in a fresh process."""
    command = [sys.executable, __file__, "--worker", task, model, device]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "10"}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(output.splitlines()[-1])


def measure(model: str, quick: bool, advance: Callable[[], Any]) -> list[Figure]:
    """Every figure of a model; `advance` is called after each process."""

    def run(task: str, device: str) -> Any:
        result = apart(task, model, device)
        advance()
        return result

    figures = [Figure(**content) for content in run("count", "hologram")]
    times: dict[str, list[float]] = {"cpu": [], "hologram": []}
    for _ in range(QUICK_PROCESSES if quick else PROCESSES):
        for device, found in times.items():
            found.append(run("first", device))
    theirs, mine = (statistics.median(found) for found in times.values())
    figures.append(
        Figure(model, "first step", "ms", theirs, mine, FIRST_BOUND, details={"times": times})
    )
    cpu, hologram = run("memory", "cpu"), run("memory", "hologram")
    figures.append(
        Figure(model, "peak memory", "MiB", cpu["total"], hologram["total"], MEMORY_BOUND,
               MEMORY_SLACK, details=hologram)
    )  # fmt: skip
    return figures


def processes_of(quick: bool) -> int:
    """How many a model takes."""
    return 3 + 2 * (QUICK_PROCESSES if quick else PROCESSES)


# ---- reporting -----------------------------------------------------------------------------------

HEADER = (
    "model", "what", "torch cpu", "device", "passes", "others", "calls", "ratio", "bound", "",
)  # fmt: skip


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.1f} {unit}" if unit else f"{value:.0f}"


def cells(figure: Figure) -> list[str]:
    counted = [str(figure.details.get(name, "")) for name in ("passes", "calls")]
    others = str(sum(figure.details["others"].values())) if "others" in figure.details else ""
    bound = "" if figure.bound is None else f"{figure.bound:g}"
    if figure.slack:
        bound += f" or +{figure.slack:g}"
    return [
        figure.model,
        figure.what,
        _number(figure.cpu, figure.unit),
        _number(figure.device, figure.unit),
        counted[0],
        others,
        counted[1],
        "" if figure.cpu is None else f"{figure.ratio:.2f}",
        bound,
        figure.verdict,
    ]


def remarks(figures: list[Figure]) -> list[str]:
    """What does not fit into the table, by line."""
    lines = []
    for figure in figures:
        details = figure.details
        if figure.what == "forward+backward" and details["others"]:
            names = [f"{number} {name}" for name, number in details["others"].items()]
            lines.append(f"{figure.model}, others: {', '.join(names)}")
        elif figure.what == "first step":
            spans = [f"{min(t):.1f} to {max(t):.1f} ms" for t in details["times"].values()]
            lines.append(f"{figure.model}, first step: {' on the CPU, '.join(spans)} on the device")
        elif figure.what == "peak memory":
            parts = [f"{name} {size:.1f}" for name, size in details.items() if name != "total"]
            lines.append(f"{figure.model}, peak memory in MiB: {', '.join(parts)}")
    return lines


def write_results(figures: list[Figure]) -> None:
    machine = common.machine() | {"transformers": version("transformers")}
    content = {"machine": machine, "figures": [asdict(figure) for figure in figures]}
    (RESULTS / "steps.json").write_text(json.dumps(content, indent=1) + "\n")
    text = [
        "# Training steps: passes, the first step, memory",
        "",
        "Written by `python benchmarks/steps.py`, which says how each is measured; Adam, float32,",
        "one thread.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        *(f"- {name}: {size}" for name, (size, _) in MODELS.items()),
        "",
        "`forward+backward`, `step()` and `whole step`: operators of torch on the CPU; on the",
        "device its passes, and the `others`, operators that it hands to torch's kernels. Matrix",
        "products, convolutions and attention are in neither; with these, `calls` are the kernels",
        "of torch's in the device's programs. `programs`: of a whole step. `first step`: the",
        f"median of {PROCESSES} processes each.",
        "",
        common.markdown_table(HEADER, [cells(figure) for figure in figures]),
        "",
        *(f"- {line}" for line in remarks(figures)),
        "",
    ]
    (RESULTS / "steps.md").write_text("\n".join(text))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="", metavar="MODEL", help="these models; prints only")
    parser.add_argument("--quick", action="store_true", help="one process per time; prints only")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.models = [name for name in MODELS if arguments.k.lower() in name.lower()]
    if not arguments.models:
        parser.error(f"no model has {arguments.k!r} in its name: there are {', '.join(MODELS)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if arguments.worker:
        task, model, device = arguments.worker
        print(json.dumps(work(task, model, torch.device(device))))
        return 0
    figures: list[Figure] = []
    total = len(arguments.models) * processes_of(arguments.quick)
    with tqdm(total=total, unit="process", file=sys.stderr) as progress:
        for model in arguments.models:
            progress.set_description(model.ljust(6))
            figures += measure(model, arguments.quick, progress.update)
    print(common.text_table(HEADER, [cells(figure) for figure in figures]))
    print("\n" + "\n".join(remarks(figures)))
    if not arguments.quick and not arguments.k:
        write_results(figures)
        print("\nwrote benchmarks/results/steps.*")
    return any(figure.verdict == "FAIL" for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
