"""What the tests have to know of torch itself, with or without the device."""

from __future__ import annotations

import torch

# What the tests have to know of differences between the supported versions of torch.
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
# Before 2.13 fork_rng() without a device type means CUDA, whatever accelerator there is.
FORK_RNG_MEANS_THE_ACCELERATOR = TORCH >= (2, 13)
# Before 2.12 Adagrad does not say that its fused step takes amp's arguments. So GradScaler divides
# the gradients, waits for what it finds and leaves out the step itself, on the CPU too.
FUSED_ADAGRAD_TAKES_AMP = TORCH >= (2, 12)
# From 2.12 on BatchNorm takes an eps of 0 in evaluation; upstream's entry still expects it refused.
BATCH_NORM_REFUSES_NO_EPS = TORCH < (2, 12)
# linear_cross_entropy and its module are new in 2.13.
HAS_LINEAR_CROSS_ENTROPY = TORCH >= (2, 13)
# Before 2.14 the derivative of group norm is given contiguous operands, but on the CPU.
GROUP_NORM_KEEPS_LAYOUTS = TORCH >= (2, 14)

# Every dtype that torch has kernels for, in the order in which the conformance suite takes them.
DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
