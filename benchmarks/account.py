"""Where the time of a program goes: kernels of each kind, and what is no kernel.

torch's profiler sees every call of an operator and every pass of the device's own kernels. What an
event lasts, without the events inside it, belongs to its operator. Dispatching, autograd and
aliasing are inside these times too; a call of `flip` over one element is timed for what they are,
and taken off each call. So the sums are estimates, good enough to say what a program waits for.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

PASS = "hologram::"  # how events of the device's own start
CALL = "hologram::pass (aten::"  # kernels of torch's that run as instructions
FLUSH = "hologram::flush"  # planning: what runs are the passes inside it


class Kind(Enum):
    """What a program spends time on, in the words of the table."""

    PRODUCTS = "products"
    OTHERS = "torch's others"
    OURS = "ours"
    NEITHER = "neither"


# Matrix products, convolutions, attention and whole recurrent layers.
_PRODUCTS = frozenset(
    """
    mm addmm bmm baddbmm addbmm addmv mv dot linear _addmm_activation convolution mkldnn_convolution
    mkldnn_convolution_backward _slow_conv2d_forward _slow_conv2d_backward thnn_conv2d
    slow_conv3d_forward slow_conv_transpose2d slow_conv_dilated2d convolution_overrideable
    convolution_backward_overrideable convolution_backward mkldnn_linear mkldnn_rnn_layer
    mkldnn_rnn_layer_backward _mkldnn_transpose _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward
    """.split()
)
_NO_KERNELS = frozenset("empty empty_strided empty_like resize_ set_ _local_scalar_dense".split())


@cache
def _kind_of(name: str, overload: str, cpu: bool) -> Kind:
    """The kind of an event's own time. Off the CPU what is recorded takes its time later."""
    if name.startswith(CALL):
        called = name.removeprefix(CALL).removesuffix(")")
        return Kind.PRODUCTS if called in _PRODUCTS else Kind.OTHERS
    if name.startswith(PASS):
        return Kind.NEITHER if name.startswith(FLUSH) else Kind.OURS
    if not name.startswith("aten::"):
        return Kind.NEITHER  # autograd's and Python's
    base = name.removeprefix("aten::")
    if base in _PRODUCTS:
        return Kind.PRODUCTS
    full = _full(name, overload)
    keys = ("CPU",) if cpu else ("CPU", "PrivateUse1")
    try:
        kernel = any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in keys)
        schema = torch._C._get_schema(name, overload)
    except RuntimeError:
        return Kind.NEITHER
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    if not kernel or is_view or base in _NO_KERNELS or (not cpu and full in _served("native")):
        return Kind.NEITHER
    return Kind.OTHERS


@cache
def _served(kind: str) -> frozenset[str]:
    """The operators that the device serves in this way, "native" or "delegated"."""
    from torch_hologram import _C

    return frozenset(name for name, served in _C.operator_table() if served == kind)


def _full(name: str, overload: str) -> str:
    return name + ("." + overload if overload else "")


@dataclass
class _Event:
    name: str
    overload: str
    own: float  # microseconds, without the events inside it
    delegated: bool  # inside an operator that the device has handed to torch's kernels


def _profiled(run: Callable[[], None]) -> list[_Event]:
    """Every event while `run` runs, all of it on this thread."""
    with profile(
        activities=[ProfilerActivity.CPU],
        experimental_config=_ExperimentalConfig(capture_overload_names=True),
    ) as session:
        run()
    assert session.profiler is not None and session.profiler.kineto_results is not None
    # The plain events: the trees that torch.profiler makes of them take long.
    events = sorted(
        (
            (event.start_ns(), -event.end_ns(), event.name(), event.overload_name())
            for event in session.profiler.kineto_results.events()
        ),
        key=lambda event: event[:2],  # outer events first
    )
    found: list[_Event] = []
    open_events: list[tuple[int, _Event]] = []  # with their ends, the innermost last
    for start, negative_end, name, overload in events:
        while open_events and open_events[-1][0] <= start:
            open_events.pop()
        event = _Event(name, overload, (-negative_end - start) / 1e3, False)
        if open_events:
            outer = open_events[-1][1]
            outer.own -= event.own
            event.delegated = (
                outer.delegated
                or outer.name.startswith(CALL)
                or _full(outer.name, outer.overload) in _served("delegated")
            )
        open_events.append((-negative_end, event))
        found.append(event)
    return found


def _call_cost(device: torch.device) -> float:
    """Microseconds of a call that does next to nothing, as the profiler sees it."""
    x = torch.zeros(1, device=device)

    def run() -> None:
        for _ in range(200):
            x.flip(0)

    run()
    return statistics.median(event.own for event in _profiled(run) if event.name == "aten::flip")


def account(
    run: Callable[[], None], device: torch.device, microseconds: float, rounds: int = 5
) -> dict[str, float]:
    """Microseconds by Kind of one call of `run`, which lasts `microseconds` without a profiler.

    The least of each kind in so many rounds: what else the machine does only adds.
    """
    cpu = device.type == "cpu"
    cost, inner_cost = _call_cost(device), _call_cost(torch.device("cpu"))
    totals = []
    for _ in range(rounds):
        total = dict.fromkeys(Kind, 0.0)
        for event in _profiled(run):
            kind = _kind_of(event.name, event.overload, cpu or event.delegated)
            overhead = inner_cost if event.delegated else cost
            in_program = event.name.startswith(PASS)
            total[kind] += event.own if in_program else max(0.0, event.own - overhead)
        totals.append(total)
    kernels = {
        kind.value: min(total[kind] for total in totals)
        for kind in Kind
        if kind is not Kind.NEITHER
    }
    return {**kernels, Kind.NEITHER.value: max(0.0, microseconds - sum(kernels.values()))}
