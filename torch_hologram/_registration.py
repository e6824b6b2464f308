"""Makes the loaded extension a device of torch's, everywhere torch keeps a list of devices."""

from __future__ import annotations

import atexit
import sys

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from torch_hologram._device import DEVICE_TYPE


def register() -> None:
    """Loads the extension, names the device, registers its module and extends torch for it.

    Raises:
        ImportError: the extension does not load.
        RuntimeError: another package has taken torch's one place for an out-of-tree device.
    """
    try:
        from torch_hologram import _C
    except ImportError as error:
        raise ImportError(
            f"torch_hologram's extension does not load with torch {torch.__version__}: {error}"
        ) from error

    rename_privateuse1_backend(DEVICE_TYPE)
    from torch_hologram import (
        _accelerate_hook,
        _by_device_name,
        _cpu_programs,
        _lightning_hook,
        backward,
        comm,
        compile,
        cuda_array,
        device_module,
        distributed,
        dlpack,
        dynamo,
        multiprocessing,
        recording,
        safetensors,
        training_steps,
    )

    sys.modules.pop(f"torch.{DEVICE_TYPE}", None)
    if hasattr(torch, DEVICE_TYPE):  # what an earlier attempt left, see _unavailable.py
        delattr(torch, DEVICE_TYPE)
    torch._register_device_module(DEVICE_TYPE, device_module)
    if not hasattr(torch.Tensor, f"is_{DEVICE_TYPE}"):
        generate_methods_for_privateuse1_backend(for_storage=True)
        # So that lazy modules can be moved by Module.hologram() too, as by cuda() and to().
        UninitializedTensorMixin._allowed_methods.append(getattr(torch.Tensor, DEVICE_TYPE))
    if torch.version.cuda is not None:
        _C.answer_whether_pinned()
    _by_device_name.register()
    _cpu_programs.register()
    backward.register()
    comm.register()
    cuda_array.register()
    distributed.register()
    dlpack.register()
    dynamo.register()
    multiprocessing.register()
    recording.register()
    safetensors.register()
    training_steps.register()
    _accelerate_hook.register()
    _lightning_hook.register()
    compile.take_over_inductor()

    # Kernels are compiled by a library that the process would end while it compiles. Registered
    # first, so done last: what is done before may still want kernels.
    atexit.register(_C.run_before_exit)
    # A collective is done before Gloo's thread has let go of its tensors and futures, and where
    # these are the last to keep a Python object the thread needs the interpreter, as below.
    # Registered before that, since a backward pass may start collectives.
    atexit.register(_C.let_gloo_threads_rest)
    # torch stops autograd's device threads after Python has finalised, when a thread that still
    # needs the interpreter, to drop a Python object or its own thread state, aborts the process.
    # So they are stopped here. atexit runs the first registered last: after everything of the
    # user's that might still run a backward.
    atexit.register(_C.stop_autograd_threads)
