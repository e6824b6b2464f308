"""Operators of your own on hologram: an expression, Python, and C++. Each checks its result.

    python examples/custom_operator.py          # an expression, and Python
    python examples/custom_operator.py --cpp    # C++ too, compiled for it: takes half a minute

docs/custom-operators.md explains them.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

import torch_hologram

SOURCE = """
#include <torch/extension.h>
#include <torch_hologram.h>

at::Tensor running_maximum(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 1 && x.scalar_type() == at::kFloat, "expected a float vector");
  const at::Tensor from = x.contiguous();
  hologram::sync(from);  // contiguous() may have recorded a copy
  at::Tensor to = at::empty_like(from);
  const float* in = from.const_data_ptr<float>();
  float* out = to.mutable_data_ptr<float>();
  float most = -INFINITY;
  for (int64_t i = 0; i < from.numel(); ++i) out[i] = most = std::max(most, in[i]);
  return to;
}

TORCH_LIBRARY(example_cpp, m) { m.def("running_maximum(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(example_cpp, CPU, m) { m.impl("running_maximum", &running_maximum); }
TORCH_LIBRARY_IMPL(example_cpp, PrivateUse1, m) { m.impl("running_maximum", &running_maximum); }
"""


def milliseconds(function: object, *operands: torch.Tensor, repeats: int = 20) -> float:
    """The shortest time of a call with its result computed."""
    assert callable(function)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = function(*operands)  # what nobody holds is never computed
        torch.accelerator.synchronize()
        best = min(best, time.perf_counter() - start)
        del result
    return 1e3 * best


def expression(n: int) -> None:
    """A mish with a slope: recorded as a whole, with the gradients of calculus."""
    mish = torch_hologram.pointwise("mish", "x * tanh(log1p(exp(slope * x)))")

    def in_torch(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(torch.log1p(torch.exp(slope * x)))

    x, slope = torch.randn(n), torch.tensor(0.9)
    operands = [t.to("hologram").requires_grad_() for t in (x, slope)]
    result = mish(*operands)
    assert torch.equal(result, in_torch(*operands)), "not the bits of operation by operation"
    torch.testing.assert_close(result.cpu(), in_torch(x, slope))

    ours = torch.autograd.grad(mish(*operands).mean(), operands)
    theirs = torch.autograd.grad(in_torch(*operands).mean(), operands)
    torch.testing.assert_close(ours, theirs)

    with torch.no_grad():
        explained = torch_hologram.explain.explain(lambda: (mish(*operands) + 1).relu())
        assert explained.passes == 1
        ours_ms = milliseconds(mish, *operands)
        cpu_ms = milliseconds(in_torch, x, slope)
    print(f"expression: {mish!r}")
    print(f"  fused with what follows: {explained.instructions} instructions in 1 pass")
    print(f"  {n} elements: {ours_ms:.2f} ms, torch on the CPU {cpu_ms:.2f} ms")


@torch.library.custom_op("example_python::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps), over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _rms_norm_backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple:
    (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)  # type: ignore[attr-defined]
    along = (grad * x).mean(-1, keepdim=True)
    return scale * grad - scale**3 * along * x, None


def _rms_norm_context(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: torch.Tensor
) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.eps = inputs[1]  # type: ignore[attr-defined]


def python() -> None:
    """An operator of torch.library with a gradient and a fake kernel."""
    rms_norm.register_fake(lambda x, eps: torch.empty_like(x))
    rms_norm.register_autograd(_rms_norm_backward, setup_context=_rms_norm_context)
    x = torch.randn(4, 8, dtype=torch.float64, device="hologram", requires_grad=True)
    wanted = torch.nn.functional.rms_norm(x, (8,), eps=1e-6)
    torch.testing.assert_close(rms_norm(x, 1e-6), wanted)
    assert torch.autograd.gradcheck(lambda a: rms_norm(a, 1e-6), (x,))
    compiled = torch.compile(lambda a: rms_norm(a * 2, 1e-6), backend="hologram", fullgraph=True)
    torch.testing.assert_close(compiled(x), rms_norm(x * 2, 1e-6))
    print("Python: rms_norm equals torch's, its gradient is right, and torch.compile takes it")


def cpp() -> None:
    """A kernel over pointers, compiled now, for tensors of the device and of the CPU."""
    from torch.utils.cpp_extension import load_inline

    load_inline(
        "example_cpp",
        SOURCE,
        extra_include_paths=[torch_hologram.include_path()],
        is_python_module=False,
    )
    x = torch.randn(1000)
    on_device = torch.ops.example_cpp.running_maximum(x.to("hologram") * 2)
    assert on_device.device.type == "hologram"
    assert torch.equal(on_device.cpu(), torch.cummax(x * 2, 0).values)
    print("C++: running_maximum equals torch.cummax")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpp", action="store_true", help="compile and run the one in C++ too")
    parser.add_argument(
        "--elements", type=int, default=1_000_000, help="of the expression (default: 1000000)"
    )
    arguments = parser.parse_args()
    if arguments.elements < 1:
        parser.error(f"--elements must be at least 1, not {arguments.elements}")
    expression(arguments.elements)
    python()
    if arguments.cpp:
        cpp()
    return 0


if __name__ == "__main__":
    sys.exit(main())
