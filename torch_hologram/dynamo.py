"""What the tracer behind ``torch.compile`` and ``torch.export`` has to know of the device.

Registered when ``torch._dynamo`` is imported, which ``import torch`` does not do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torch_hologram import _C, amp, devices, memory, random, streams
from torch_hologram._device import DEVICE_TYPE, device_index
from torch_hologram._import_hook import when_imported

if TYPE_CHECKING:
    from torch_hologram._device import Device


def register() -> None:
    """Waits for the tracer, and for what its graphs call to run random operators twice."""
    when_imported("torch._dynamo", _register_functions)
    if not _C.graphs_take_events:
        when_imported("torch._dynamo.variables.streams", _take_every_event)
    when_imported("torch._prims.rng_prims", _register_random_state)
    when_imported("torch._meta_registrations", _allow_cells_without_bias)
    when_imported("torch._meta_registrations", _register_gru_cell)


def _register_functions(_: ModuleType) -> None:
    from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
    from torch.compiler import substitute_in_graph

    class HologramInterface(DeviceInterface):
        """The device as dynamo asks for it."""

        device = devices.device
        Event = streams.Event
        Stream = streams.Stream
        current_device = staticmethod(devices.current_device)
        set_device = staticmethod(devices.set_device)
        device_count = staticmethod(devices.device_count)
        is_available = staticmethod(devices.is_available)
        stream = staticmethod(streams.stream)
        current_stream = staticmethod(streams.current_stream)
        set_stream = staticmethod(streams.set_stream)
        synchronize = staticmethod(devices.synchronize)
        get_compute_capability = staticmethod(devices.get_device_capability)
        memory_allocated = staticmethod(memory.memory_allocated)

        class Worker:
            """The same, asked in a process that compiles."""

            set_device = staticmethod(devices.set_device)
            current_device = staticmethod(devices.current_device)
            get_device_properties = staticmethod(devices.get_device_properties)

        @staticmethod
        def exchange_device(device: int) -> int:
            return _C.maybe_exchange_device(device)

        @staticmethod
        def maybe_exchange_device(device: int) -> int:
            return _C.maybe_exchange_device(device)

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return streams.current_stream(device_idx).stream_id

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return amp.is_bf16_supported()

        @staticmethod
        def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
            _C.set_stream(stream_id, device_index, device_type)

    register_interface_for_device(DEVICE_TYPE, HologramInterface)

    # The functions of the extension that those of torch.hologram call. What the environment says is
    # a constant; the current device is one with a guard; synchronising is a node of the graph.
    def substitute(function: Any, by: Any, constant: bool = False) -> None:
        substitute_in_graph(
            function, can_constant_fold_through=constant, skip_signature_check=True
        )(by)

    substitute(_C.device_count, _no_polyfill, constant=True)
    substitute(_C.device_properties, _no_polyfill, constant=True)
    substitute(_C.current_device, _current_device)
    substitute(_C.init, _init)
    substitute(_C.synchronize, _synchronize)
    substitute(_C.synchronize_current, _synchronize_current)
    substitute(_C.flush_current, _synchronize_current)
    substitute(streams.current_stream, _current_stream)
    torch.fx.node.has_side_effect(torch.ops.hologram.synchronize.default)


def _no_polyfill(*args: Any) -> Any:
    raise AssertionError("dynamo calls the function itself")


def _current_device() -> int:
    return torch.accelerator.current_device_index()


def _init() -> None:
    pass  # whoever traces uses the device


def _synchronize(index: int) -> None:
    torch.ops.hologram.synchronize(index)


def _synchronize_current() -> None:
    torch.ops.hologram.synchronize(-1)


def _current_stream(device: Device = None) -> torch.Stream:
    if device is None:
        return torch.accelerator.current_stream()
    return torch.accelerator.current_stream(torch.device(DEVICE_TYPE, device_index(device)))


def _take_every_event(theirs: ModuleType) -> None:
    """Has graphs record and wait for events that are of a subclass of torch.Event.

    torch.Stream's methods, which the graphs of torch before 2.13 call, refuse those. The event's
    own methods do the same.
    """

    def record_event(event_index: int, stream_index: int) -> None:
        event = theirs._get_event_by_index(event_index)
        event.record(theirs._get_stream_by_index(stream_index))

    def wait_event(event_index: int, stream_index: int) -> None:
        event = theirs._get_event_by_index(event_index)
        event.wait(theirs._get_stream_by_index(stream_index))

    theirs.record_event.register_kernel(None, record_event)
    theirs.wait_event.register_kernel(None, wait_event)


def _allow_cells_without_bias(meta: ModuleType) -> None:
    """Has torch's check of a fused LSTM cell's shapes take no biases, as its kernels do.

    It asks a bias that is not there for its device, so that ``nn.LSTM(bias=False)`` could not be
    traced on any device but the CPU.
    """
    check = getattr(meta, "rnn_cell_checkSizes", None)
    if check is None:
        return

    @functools.wraps(check)
    def with_biases(
        input_gates: torch.Tensor,
        hidden_gates: torch.Tensor,
        input_bias: torch.Tensor | None,
        hidden_bias: torch.Tensor | None,
        factor: int,
        prev_hidden: torch.Tensor,
    ) -> None:
        if input_bias is None and input_gates.dim() == 2:
            input_bias = hidden_bias = input_gates.new_empty(input_gates.size(1))
        check(input_gates, hidden_gates, input_bias, hidden_bias, factor, prev_hidden)

    meta.rnn_cell_checkSizes = with_biases  # type: ignore[attr-defined]


_shapes: torch.library.Library | None = None  # its registrations live as long as it does


def _register_gru_cell(_: ModuleType) -> None:
    """Gives the fused GRU cell shape functions; torch has them for the LSTM cell alone."""
    global _shapes
    _shapes = torch.library.Library("aten", "IMPL", "Meta")
    for function in (_thnn_fused_gru_cell, _thnn_fused_gru_cell_backward):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{function.__name__}", "Meta"):
            _shapes.impl(function.__name__, function)


def _thnn_fused_gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, hidden = hx.shape
    return hx.new_empty(batch, hidden), hx.new_empty(batch, 5 * hidden)


def _thnn_fused_gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    batch, hidden = grad_hy.shape
    return (
        grad_hy.new_empty(batch, 3 * hidden),
        grad_hy.new_empty(batch, 3 * hidden),
        grad_hy.new_empty(batch, hidden),
        grad_hy.new_empty(3 * hidden) if has_bias else None,
        grad_hy.new_empty(3 * hidden) if has_bias else None,
    )


def _register_random_state(rng_prims: ModuleType) -> None:
    """Lets graphs that run a random operator twice, for checkpointing, restore the generator.

    torch's two operators for it choose among the generators of a closed list of devices. There is
    no place to add to the list, so their kernels are replaced by ones that look for this device
    first.
    """
    _look_here_first(rng_prims.run_and_save_rng_state, 0, _run_and_save_state)
    _look_here_first(rng_prims.run_with_rng_state, 1, _run_with_state)


def _look_here_first(higher_order: Any, place: int, run: Callable[..., Any]) -> None:
    """Has ``run`` called in place of torch's kernel where an operator draws from this device.

    Args:
        higher_order: the operator whose kernel is replaced.
        place: which of its arguments the random operator is.
        run: gets the device, and then what ``higher_order`` was called with.
    """
    key = torch._C.DispatchKey.BackendSelect
    theirs = higher_order.py_kernels[key]

    @functools.wraps(theirs)
    def choose(*args: Any, **kwargs: Any) -> Any:
        device = _device_drawn_from(args[place + 1 :], kwargs)
        return theirs(*args, **kwargs) if device is None else run(device, *args, **kwargs)

    higher_order.py_kernels[key] = choose
    higher_order._dispatch_cache.clear()


def _device_drawn_from(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device whose generator an operator draws from, if it is one of ours."""
    named = kwargs.get("device")
    if named is not None:
        device = torch.device(named)
    else:
        tensors = (argument for argument in args if isinstance(argument, torch.Tensor))
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    return device if device.type == DEVICE_TYPE else None


def _run_and_save_state(
    device: torch.device, operator: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, Any]:
    return random.get_rng_state(device), operator(*args, **kwargs)


def _run_with_state(
    device: torch.device,
    state: torch.Tensor,
    operator: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    current = random.get_rng_state(device)
    random.set_rng_state(state, device)
    try:
        return operator(*args, **kwargs)
    finally:
        random.set_rng_state(current, device)
