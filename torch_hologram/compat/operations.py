"""The operations of ``hologram_ffi``: those of :mod:`torch_hologram.ops` on handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_hologram import ops
from torch_hologram.compat.handles import object_of
from torch_hologram.executor import Buffer, Executor

# Parameters after the executor: buffers, in the order of the operation in `ops`, then `n`, then
# numbers. An operation that returns a number has `out` too, of which it writes the first element.
_PARAMETERS = {
    **dict.fromkeys(("vector_add", "vector_sub", "vector_mul", "vector_div"), "a b c n"),
    **dict.fromkeys(("vector_min", "vector_max"), "a b c n"),
    **dict.fromkeys(("vector_abs", "vector_neg", "vector_relu", "memcpy"), "a c n"),
    "vector_clip": "a c n low high",
    **dict.fromkeys(("scalar_add", "scalar_mul"), "a c n scalar"),
    "fill": "c n value",
    "mad": "a b c d n",
    **dict.fromkeys(("sqrt", "exp", "log", "sigmoid", "tanh", "gelu", "softmax"), "input out n"),
    **dict.fromkeys(("reduce_sum", "reduce_min", "reduce_max"), "input out n"),
    **dict.fromkeys(("mse_loss", "cross_entropy_loss"), "predictions targets out n"),
    "binary_cross_entropy_loss": "predictions targets out n",
    "gemm": "a b c m n k",
    "matvec": "a x y m n",
    **dict.fromkeys((f"vector_{name}_i32" for name in ("add", "sub", "mul", "div")), "a b c n"),
}


def _of_handles(name: str, parameters: str) -> Callable[..., float | None]:
    """An operation of ``ops`` with handles for executor and buffers.

    It is written as text, so that it has a signature of its own, and a wrong call an error of
    Python's that names the parameter.
    """
    ffi_name = name if name.endswith("_i32") else f"{name}_f32"
    names, count = parameters.split(), ops.BUFFERS[name]
    buffers, rest = names[:count], names[count:]
    returns = rest[0] == "out"
    arguments = ["owner", *(f"object_of(Buffer, {buffer})" for buffer in buffers)]
    arguments += [number for number in rest if number not in ("out", "m", "n", "k")]
    arguments += [f"{size}={size}" for size in rest if size in ("m", "n", "k")]
    if returns:
        names[-1] = "n=None"
        body = f"""
    if n is None:  # `out` is left out
        out, n = None, out
    target = None if out is None else object_of(Buffer, out)
    return written("{ffi_name}", owner, target, operation({", ".join(arguments)}))"""
    else:
        body = f"\n    operation({', '.join(arguments)})"
    text = f"""
def {ffi_name}(executor, {", ".join(names)}):
    owner = object_of(Executor, executor){body}
"""
    operation = getattr(ops, name)
    namespace: dict[str, Any] = {
        "Buffer": Buffer,
        "Executor": Executor,
        "object_of": object_of,
        "operation": operation,
        "written": _written,
    }
    exec(compile(text, f"<{__name__}.{ffi_name}>", "exec"), namespace)
    function: Callable[..., float | None] = namespace[ffi_name]
    function.__doc__ = operation.__doc__
    function.__module__ = __name__
    return function


def _written(function: str, executor: Executor, out: Buffer | None, value: float) -> float:
    if out is not None:
        (first,) = ops.checked(function, executor, torch.float32, [("out", out)], 1, "out")
        first.fill_(value)
    return value


FUNCTIONS = [_of_handles(name, parameters) for name, parameters in _PARAMETERS.items()]
