"""``torch.compile`` on hologram: AOTAutograd, then the graphs run on the device.

Loaded by ``torch._dynamo`` through the entry point group ``torch_dynamo_backends``, when
``backend="hologram"`` is asked for. torch's default backend, Inductor, cannot generate code for the
device; graphs on it are taken over with one warning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from torch_hologram._device import DEVICE_TYPE
from torch_hologram._import_hook import when_imported

CompiledGraph = Callable[..., Any]


def hologram(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> CompiledGraph:
    """Compiles a graph for ``torch.compile(..., backend="hologram")``.

    The forward and the backward graph of AOTAutograd run operator by operator on the device, so the
    results are those of eager execution, bit for bit.

    Args:
        graph: what dynamo captured.
        example_inputs: its inputs, as fake tensors.
        mode: one of torch's, which has no effect: there is nothing to tune. One other than the
            default is warned of, once.
        options: the backend has none.

    Raises:
        RuntimeError: torch has no such mode.
        ValueError: an option was given.
    """
    if options:
        raise ValueError(f"backend 'hologram' has no options, but got {sorted(options)}")
    if mode not in (None, "default"):
        modes = torch._inductor.list_mode_options()
        if mode not in modes:
            raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(modes)}")
        _warn_of_mode()
    return _aot_backend()(graph, example_inputs)


@functools.cache
def _aot_backend() -> Callable[..., CompiledGraph]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import default_partition

    def run(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        return make_boxed_func(graph.forward)

    # default_partition saves what the backward needs, as eager does. The rematerialising one may
    # run a random operator twice, for which it can restore the generators of CPU and CUDA only.
    return aot_autograd(
        fw_compiler=run, partition_fn=default_partition, keep_inference_input_mutations=True
    )


def _uses_hologram(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Returns whether a graph touches the device: in an input, a parameter or a value it makes."""

    def is_on_device(value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE

    if any(map(is_on_device, example_inputs)):
        return True
    if any(map(is_on_device, (*graph.parameters(), *graph.buffers()))):
        return True
    values = [node.meta.get("example_value", node.meta.get("val")) for node in graph.graph.nodes]
    return any(map(is_on_device, torch.utils._pytree.tree_leaves(values)))


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "torch.compile's default backend cannot generate code for the device 'hologram'; its "
        "graphs run with backend='hologram', which you may name to silence this warning. Modes and "
        "options of the default backend have no effect on them",
        UserWarning,
        stacklevel=2,
    )


@functools.cache
def _warn_of_mode() -> None:
    warnings.warn(
        "backend='hologram' runs graphs as they were captured: mode= has no effect",
        UserWarning,
        stacklevel=2,
    )


def take_over_inductor() -> None:
    """Makes torch.compile's default backend hand graphs on the device to :func:`hologram`."""
    wrapper: Any = torch._TorchCompileInductorWrapper
    inductor: Callable[..., CompiledGraph] = wrapper.__call__

    @functools.wraps(inductor)
    def call(self: Any, model_: Any, inputs_: Sequence[Any], **kwargs: Any) -> CompiledGraph:
        if isinstance(model_, torch.fx.GraphModule) and _uses_hologram(model_, inputs_):
            _warn_once()
            return hologram(model_, inputs_)
        return inductor(self, model_, inputs_, **kwargs)

    wrapper.__call__ = call
    when_imported("torch._inductor.compile_fx", _refuse)


def _refuse(compile_fx: ModuleType) -> None:
    """Has Inductor, called by another way than ``torch.compile``, say what it cannot do.

    AOTInductor and ``torch._inductor.compile`` come here.
    """
    inductor = compile_fx.compile_fx

    @functools.wraps(inductor)
    def call(model_: Any, example_inputs_: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(model_, torch.fx.GraphModule) and _uses_hologram(model_, example_inputs_):
            raise NotImplementedError(
                "Inductor cannot generate code for the device 'hologram'. To run a graph on it, "
                "use torch.compile(model, backend='hologram'); to keep one in a file, "
                "torch.export.save"
            )
        return inductor(model_, example_inputs_, *args, **kwargs)

    compile_fx.compile_fx = call  # type: ignore[attr-defined]
