"""First and second derivatives on the device against finite differences computed on the device.

The other phases compare derivatives with the CPU's; these do not look at the CPU at all. They are
run in float64 for one operator of every family: what the whole database would add is time.
"""

from __future__ import annotations

import torch
from torch.testing._internal.common_device_type import ops
from torch.testing._internal.common_utils import TestCase, gradcheck, gradgradcheck
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from .transfer import Transfer, map_tensors, tensors_of
from .units import OPS_BY_NAME, instantiate, samples

CHECKED = [
    "add",
    "addmm",
    "addr",
    "amax",
    "atan2",
    "bmm",
    "cat",
    "cdist",
    "clamp",
    "cumprod",
    "div.no_rounding_mode",
    "einsum",
    "exp",
    "gather",
    "index_put",
    "linalg.cholesky",
    "linalg.det",
    "linalg.inv",
    "linalg.solve",
    "linalg.svd",
    "log_softmax",
    "logsumexp",
    "masked_fill",
    "mul",
    "nn.functional.avg_pool2d",
    "nn.functional.bilinear",
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv_transpose2d",
    "nn.functional.cross_entropy",
    "nn.functional.embedding",
    "nn.functional.gelu",
    "nn.functional.grid_sample",
    "nn.functional.group_norm",
    "nn.functional.interpolate.bilinear",
    "nn.functional.layer_norm",
    "nn.functional.linear",
    "nn.functional.mse_loss",
    "nn.functional.pad.reflect",
    "nn.functional.silu",
    "prod",
    "roll",
    "rsqrt",
    "scatter_add",
    "sgn",
    "sort",
    "std",
    "tanh",
    "triangular_solve",
    "where",
]

SAMPLES = 3
# Up to this many input elements the whole Jacobian is compared, a call or two for each; beyond, its
# products with random vectors.
WHOLE_JACOBIAN = 60


def _chosen(op: OpInfo) -> list[SampleInput]:
    """The first SAMPLES samples that have something to differentiate by."""
    every = samples(op.full_name, torch.float64, True)
    return [sample for sample in every if _elements(sample) > 0][:SAMPLES]


def _elements(sample: SampleInput) -> int:
    parts = (sample.input, sample.args, sample.kwargs)
    return sum(tensor.numel() for tensor in tensors_of(parts) if tensor.requires_grad)


class TestGradcheck(TestCase):
    def _check(self, device: str, op: OpInfo, second: bool) -> None:
        chosen = _chosen(op)
        self.assertGreater(len(chosen), 0)
        check = gradgradcheck if second else gradcheck
        for sample in chosen:
            parts = Transfer(device)((sample.input, sample.args, sample.kwargs))
            inputs = [tensor for tensor in tensors_of(parts) if tensor.requires_grad]

            def function(
                *values: torch.Tensor, sample: SampleInput = sample, parts: tuple = parts
            ) -> torch.Tensor | tuple[torch.Tensor, ...]:
                given = iter(values)
                input, args, kwargs = map_tensors(
                    lambda tensor: next(given) if tensor.requires_grad else tensor, parts
                )
                result = op.gradcheck_wrapper(op.get_op(), input, *args, **kwargs)
                result = sample.output_process_fn_grad(result)
                differentiable = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
                return tuple(differentiable)

            self.assertTrue(
                check(
                    function,
                    inputs,
                    nondet_tol=op.gradcheck_nondet_tol,
                    fast_mode=_elements(sample) > WHOLE_JACOBIAN,
                )
            )

    @ops([OPS_BY_NAME[name] for name in CHECKED], allowed_dtypes=[torch.float64])
    def test_first(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(device, op, second=False)

    @ops(
        [OPS_BY_NAME[name] for name in CHECKED if OPS_BY_NAME[name].supports_gradgrad],
        allowed_dtypes=[torch.float64],
    )
    def test_second(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(device, op, second=True)


instantiate(TestGradcheck, globals())
