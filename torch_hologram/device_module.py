"""``torch.hologram``: the device module, with the names of ``torch.cuda``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import AcceleratorError, OutOfMemoryError

from torch_hologram import _C, amp, backends, boundary, comm, memory, random, streams
from torch_hologram._device import lazy_init
from torch_hologram.absent import ABSENT
from torch_hologram.alias import alias_as_cpu, alias_from_cpu
from torch_hologram.amp import get_amp_supported_dtype, is_bf16_supported
from torch_hologram.devices import (
    DeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    has_half,
    has_magma,
    init,
    is_available,
    is_initialized,
    is_tf32_supported,
    set_device,
    synchronize,
    utilization,
)
from torch_hologram.explain import Explanation, FlushExplanation, PassExplanation, explain
from torch_hologram.fallback import (
    FallbackReport,
    FallbackRow,
    fallback_report,
    get_fallback_mode,
    reset_fallback_report,
    set_fallback_mode,
)
from torch_hologram.legacy import (
    BFloat16Storage,
    BFloat16Tensor,
    BoolStorage,
    BoolTensor,
    ByteStorage,
    ByteTensor,
    CharStorage,
    CharTensor,
    ComplexDoubleStorage,
    ComplexFloatStorage,
    DoubleStorage,
    DoubleTensor,
    FloatStorage,
    FloatTensor,
    HalfStorage,
    HalfTensor,
    IntStorage,
    IntTensor,
    LongStorage,
    LongTensor,
    ShortStorage,
    ShortTensor,
)
from torch_hologram.measuring import (
    benchmark,
    get_sync_debug_mode,
    keep_results,
    set_sync_debug_mode,
)
from torch_hologram.memory import (
    caching_allocator_alloc,
    caching_allocator_delete,
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_hologram.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_hologram.recording import (
    eager,
    float_contraction,
    flush,
    flush_before,
    is_eager,
    reset_stream_stats,
    set_float_contraction,
    stream_stats,
)
from torch_hologram.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_stream_from_external,
    is_current_stream_capturing,
    set_stream,
    stream,
)

if TYPE_CHECKING:
    # Computed on access: they change when the device is initialised.
    _initialized: bool
    default_generators: tuple[torch.Generator, ...]

__all__ = [
    "AcceleratorError",
    "BFloat16Storage",
    "BFloat16Tensor",
    "BoolStorage",
    "BoolTensor",
    "ByteStorage",
    "ByteTensor",
    "CharStorage",
    "CharTensor",
    "ComplexDoubleStorage",
    "ComplexFloatStorage",
    "DeviceProperties",
    "DoubleStorage",
    "DoubleTensor",
    "Event",
    "Explanation",
    "FallbackReport",
    "FallbackRow",
    "FloatStorage",
    "FloatTensor",
    "FlushExplanation",
    "HalfStorage",
    "HalfTensor",
    "IntStorage",
    "IntTensor",
    "LongStorage",
    "LongTensor",
    "OutOfMemoryError",
    "PassExplanation",
    "ShortStorage",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "alias_as_cpu",
    "alias_from_cpu",
    "amp",
    "backends",
    "benchmark",
    "boundary",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "comm",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "eager",
    "empty_cache",
    "explain",
    "fallback_report",
    "float_contraction",
    "flush",
    "flush_before",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_fallback_mode",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "has_half",
    "has_magma",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_eager",
    "is_initialized",
    "is_tf32_supported",
    "keep_results",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "random",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_fallback_report",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "reset_stream_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_fallback_mode",
    "set_float_contraction",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "stream_stats",
    "streams",
    "synchronize",
    "utilization",
]

# The private names below are what torch's device-generic code asks a device module for:
# _lazy_init (tensor construction), _is_in_bad_fork (torch.manual_seed), _initialized
# (torch.utils.checkpoint), _get_generator (AOTAutograd).
_lazy_init = lazy_init
_is_in_bad_fork = _C.has_forked


def _get_generator(device: torch.device) -> torch.Generator:
    return random.default_generator(device)


def __getattr__(name: str) -> object:
    if name == "_initialized":
        return is_initialized()
    if name == "default_generators":
        return random.default_generators()
    if name == "__version__":
        from torch_hologram._build_info import VERSION

        return VERSION
    message = f"module 'torch.hologram' has no attribute {name!r}"
    raise AttributeError(f"{message}: {ABSENT[name]}" if name in ABSENT else message)
