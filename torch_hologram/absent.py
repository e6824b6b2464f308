"""Names of torch.cuda and torch.xpu that mean nothing here, and what to use instead."""

from __future__ import annotations

__all__ = ["ABSENT"]

# The user guide has the same table, and a test compares them.
_REASONS: dict[str, str] = {
    "CUDAGraph XPUGraph graph graphs graph_pool_handle make_graphed_callables "
    "export_dot export_graph_data graph_annotations": (
        "operations are recorded and their plans cached without being asked; "
        "torch.hologram.explain shows them"
    ),
    "CUDAPluggableAllocator XPUPluggableAllocator change_current_allocator": (
        "the device has one allocator; memory from elsewhere becomes a tensor by "
        "torch_hologram.from_numpy, DLPack or torch.hologram.alias_from_cpu"
    ),
    "caching_allocator_enable caching_allocator_disabled": (
        "the pools cannot be turned off; torch.hologram.empty_cache gives back what is not in use"
    ),
    "MemPool use_mem_pool": (
        "each device has its own pools and no further ones; "
        "torch.hologram.set_per_process_memory_fraction limits them and "
        "HOLOGRAM_CPU_DEVICES makes several devices"
    ),
    "CudaError DeferredCudaCallError check_error cudaStatus cudart": (
        "there is no CUDA runtime; errors are raised as RuntimeError, ValueError or "
        "torch.OutOfMemoryError"
    ),
    "current_blas_handle current_solver_handle": (
        "there are no library handles; torch's matrix products and torch.linalg work"
    ),
    "ExternalStream": "torch.hologram.get_stream_from_external wraps a handle",
    "GreenContext green_contexts": "torch.set_num_threads says how many processors are used",
    "clock_rate power_draw temperature": (
        "the processor's sensors are the operating system's; torch.hologram.utilization says "
        "how busy it is"
    ),
    "gds": "memory is the host's: torch.load and safetensors read files into it",
    "get_gencode_flags": (
        "kernels are built for instruction sets, see torch.hologram.get_arch_list"
    ),
    "jiterator": "torch_hologram.pointwise makes an operator of an expression",
    "list_gpu_processes": (
        "devices are shared with no other process; torch.hologram.memory_summary shows this one"
    ),
    "memory_usage": (
        "nothing measures how busy the memory is; torch.hologram.mem_get_info says how much is free"
    ),
    "nccl": "torch.hologram.comm copies and adds between the devices of a process",
    "nvtx": "torch.profiler.record_function marks a range",
    "profiler": "torch.profiler.profile shows what runs on the device",
    "sparse": "torch.sparse works with tensors of the device",
    "tunable": "nothing is tuned at run time; HOLOGRAM_CPU_ISA chooses the kernels",
}
ABSENT = {name: reason for names, reason in _REASONS.items() for name in names.split()}
