"""torch.hologram.explain: the text it gives, and how many passes known code takes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import CUDA_KERNELS, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

hologram = torch.hologram
explain = hologram.explain


def ones(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.ones(sizes, dtype=dtype, device="hologram")
    hologram.synchronize()
    return x


def gelu(x: torch.Tensor) -> torch.Tensor:
    """From primitives, as GPT-2 had it."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * (gate * torch.sigmoid(gate))


def adam(parameters, gradients, first, second, step=3, rate=1e-3, beta1=0.9, beta2=0.999):
    for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        denominator = (v / (1 - beta2**step)).sqrt() + 1e-8
        p.sub_(rate / (1 - beta1**step) * m / denominator)


class TestText(HologramTestCase):
    def text(self, function, *arguments) -> str:
        return explain(function, *arguments).text(lines=False)

    def test_a_chain(self):
        self.assertExpectedInline(
            self.text(lambda x: (x * 2 + 1).relu() * x, ones(1000)),
            """\
flush 1 (end): 4 instructions in 1 pass, 8000 B moved
  recorded:
    t1:f32[1000] = mul.f32(b0:f32[1000], 2)
    t2:f32[1000] = add.f32(t1:f32[1000], 1)
    t3:f32[1000] = relu.f32(t2:f32[1000])
    b4:f32[1000] = mul.f32(t3:f32[1000], b0:f32[1000])
  executed:
    pass 1: f32[1000], 4000 B loaded, 4000 B stored
      %0 = load.f32 b0:f32[1000]
      %1 = mul.f32 %0, 2
      %2 = add.f32 %1, 1
      %3 = relu.f32 %2
      %4 = mul.f32 %0, %3
      store b4:f32[1000], %4
total: 1 flush, 4 instructions, 1 pass, 8000 B moved""",
        )

    def test_gelu(self):
        self.assertExpectedInline(
            self.text(gelu, ones(256)),
            """\
flush 1 (end): 9 instructions in 1 pass, 2048 B moved
  recorded:
    t1:f32[256] = mul.f32(b0:f32[256], 0.5)
    t2:f32[256] = mul.f32(b0:f32[256], 0.044715)
    t3:f32[256] = mul.f32(t2:f32[256], b0:f32[256])
    t4:f32[256] = mul.f32(t3:f32[256], b0:f32[256])
    t5:f32[256] = add.f32(b0:f32[256], t4:f32[256])
    t6:f32[256] = mul.f32(t5:f32[256], 0.7978846)
    t7:f32[256] = tanh.f32(t6:f32[256])
    t8:f32[256] = add.f32(t7:f32[256], 1)
    b9:f32[256] = mul.f32(t1:f32[256], t8:f32[256])
  executed:
    pass 1: f32[256], 1024 B loaded, 1024 B stored
      %0 = load.f32 b0:f32[256]
      %1 = mul.f32 %0, 0.5
      %2 = mul.f32 %0, 0.044715
      %3 = mul.f32 %0, %2
      %4 = mul.f32 %0, %3
      %5 = add.f32 %0, %4
      %6 = mul.f32 %5, 0.7978846
      %7 = tanh.f32 %6
      %8 = add.f32 %7, 1
      %9 = mul.f32 %1, %8
      store b9:f32[256], %9
total: 1 flush, 9 instructions, 1 pass, 2048 B moved""",
        )

    def test_a_kept_intermediate(self):
        def kept(x):
            y = x * 2
            return y, y + 1

        self.assertExpectedInline(
            self.text(kept, ones(8)),
            """\
flush 1 (end): 2 instructions in 1 pass, 96 B moved
  recorded:
    b1:f32[8] = mul.f32(b0:f32[8], 2)
    b2:f32[8] = add.f32(b1:f32[8], 1)
  executed:
    pass 1: f32[8], 32 B loaded, 64 B stored
      %0 = load.f32 b0:f32[8]
      %1 = mul.f32 %0, 2
      %2 = add.f32 %1, 1
      store b1:f32[8], %1
      store b2:f32[8], %2
total: 1 flush, 2 instructions, 1 pass, 96 B moved""",
        )

    def test_an_operation_outside_the_stream(self):
        def normalised(x):
            y = x * 3
            return y / y.median()

        text = self.text(normalised, ones(8))
        if CUDA_KERNELS:  # which is launched, and reads nothing at once
            text = text.replace("flush 1 (kernel)", "flush 1 (read)")
        self.assertExpectedInline(
            text,
            """\
flush 1 (read): 1 instruction in 1 pass, 64 B moved
  recorded:
    b1:f32[8] = mul.f32(b0:f32[8], 3)
  executed:
    pass 1: f32[8], 32 B loaded, 32 B stored
      %0 = load.f32 b0:f32[8]
      %1 = mul.f32 %0, 3
      store b1:f32[8], %1
flush 2 (end): 1 instruction in 1 pass, 68 B moved
  recorded:
    b2:f32[8] = div.f32(t0:f32[8], t1:f32[])
  executed:
    pass 1: f32[8], 36 B loaded, 32 B stored
      %0 = load.f32 t0:f32[8]
      %1 = load.f32 t1:f32[]
      %2 = div.f32 %0, %1
      store b2:f32[8], %2
total: 2 flushes, 2 instructions, 2 passes, 132 B moved""",
        )

    def test_layouts_and_dtypes(self):
        def layouts(x, y, n):
            n.add_(1)
            return (x[:, 1:] * y[1]).bfloat16()

        self.assertExpectedInline(
            self.text(layouts, ones(2, 3), ones(4), ones(5, dtype=torch.int64)),
            """\
flush 1 (end): 3 instructions in 2 passes, 108 B moved
  recorded:
    b0:i64[5] = add.i64(b0:i64[5], 1)
    t3:f32[4] = mul.f32(b1+4:f32[2, 2]{3, 1}, b2+4:f32[])
    b4:bf16[4] = copy.f32(t3:f32[4])
  executed:
    pass 1: i64[5], 40 B loaded, 40 B stored
      %0 = load.i64 b0:i64[5]
      %1 = add.i64 %0, 1
      store b0:i64[5], %1
    pass 2: f32[4], 20 B loaded, 8 B stored
      %0 = load.f32 b1+4:f32[2, 2]{3, 1}
      %1 = load.f32 b2+4:f32[]
      %2 = mul.f32 %0, %1
      %3 = cast.bf16 %2
      store b4:bf16[4], %3
total: 1 flush, 3 instructions, 2 passes, 108 B moved""",
        )

    def test_equal_groups_over_several_tensors(self):
        def decay(tensors):
            for tensor in tensors:
                tensor.mul_(0.5)

        self.assertExpectedInline(
            self.text(decay, [ones(2), ones(3), ones(7)]),
            """\
flush 1 (end): 3 instructions in 1 pass, 96 B moved
  recorded:
    b0:f32[2] = mul.f32(b0:f32[2], 0.5)
    b1:f32[3] = mul.f32(b1:f32[3], 0.5)
    b2:f32[7] = mul.f32(b2:f32[7], 0.5)
  executed:
    pass 1: 3 tensors of f32[2] to f32[7], 48 B loaded, 48 B stored
      %0 = load.f32 b0:f32[2]
      %1 = mul.f32 %0, 0.5
      store b0:f32[2], %1
total: 1 flush, 3 instructions, 1 pass, 96 B moved""",
        )

    def test_memory_that_passes_between_groups(self):
        def differences(x):
            y = x * 2
            return y[1:] - y[:-1]

        self.assertExpectedInline(
            self.text(differences, ones(5)),
            """\
flush 1 (end): 2 instructions in 2 passes, 88 B moved
  recorded:
    t1:f32[5] = mul.f32(b0:f32[5], 2)
    b2:f32[4] = sub.f32(t1+4:f32[4], t1:f32[4])
  executed:
    pass 1: f32[5], 20 B loaded, 20 B stored
      %0 = load.f32 b0:f32[5]
      %1 = mul.f32 %0, 2
      store t1:f32[5], %1
    pass 2: f32[4], 32 B loaded, 16 B stored
      %0 = load.f32 t1+4:f32[4]
      %1 = load.f32 t1:f32[4]
      %2 = sub.f32 %0, %1
      store b2:f32[4], %2
total: 1 flush, 2 instructions, 2 passes, 88 B moved""",
        )

    def test_nothing(self):
        self.assertExpectedInline(
            self.text(lambda: None),
            """\
total: 0 flushes, 0 instructions, 0 passes, 0 B moved
nothing was recorded: no pointwise operation ran on a hologram tensor; \
torch.hologram.fallback_report() says what did""",
        )
        cpu = explain(lambda x: x * 2, torch.ones(3))
        self.assertEqual(
            cpu.hint,
            "nothing was recorded: there is a tensor on cpu, and only operations on hologram "
            'tensors are, see .to("hologram")',
        )
        self.assertTrue(str(cpu).endswith(cpu.hint))
        self.assertEqual(explain(lambda: torch.ones(3, device="hologram") * 2).hint, "")

    def test_shown(self):
        explanation = explain(lambda x: x * 2 + 1, torch.ones(3, device="hologram"))
        self.assertEqual(repr(explanation), str(explanation))
        html = explanation._repr_html_()
        self.assertIn("<td>total</td><td></td><td>2</td><td>1</td>", html)
        self.assertIn("<pre>flush 1 (end)", html)

    def test_an_operand_that_is_broadcast(self):
        x, row = ones(32, 64), ones(64)
        found = explain(lambda: x + row)
        self.assertEqual(found.bytes_moved, 8192 + 256 + 8192)
        hologram.reset_stream_stats()
        y = x * row
        hologram.flush()
        self.assertEqual(hologram.stream_stats()["bytes_moved"], 8192 + 256 + 8192)
        self.assertEqual(y.cpu(), x.cpu())

    def test_equal_numbers_are_one_value(self):
        def functions(first, second):
            found = explain(lambda x: (x * first).exp() + (x * second).exp(), ones(100))
            (only,) = found.flushes
            return sum("exp" in line for line in only.passes[0].code)

        self.assertEqual(functions(2.5, 2.5), 1)
        self.assertEqual(functions(2.5, 3.5), 2)
        self.assertEqual(functions(0.0, -0.0), 2)


class TestPasses(HologramTestCase):
    def passes(self, function, *arguments) -> int:
        before = hologram.stream_stats()
        explanation = explain(function, *arguments)
        after = hologram.stream_stats()
        # The explanation tells what has happened.
        self.assertEqual(explanation.passes, after["passes"] - before["passes"])
        self.assertEqual(explanation.bytes_moved, after["bytes_moved"] - before["bytes_moved"])
        self.assertEqual(explanation.instructions, after["executed"] - before["executed"])
        return explanation.passes

    @parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_gelu_is_one_pass(self, dtype):
        self.assertEqual(self.passes(gelu, ones(1000, dtype=dtype)), 1)
        self.assertEqual(self.passes(F.gelu, ones(1000, dtype=dtype)), 1)

    def test_swiglu_is_one_pass(self):
        self.assertEqual(self.passes(swiglu, ones(1000), ones(1000)), 1)
        self.assertEqual(self.passes(lambda x, y: x * F.silu(y), ones(1000), ones(1000)), 1)

    def test_adam_over_200_tensors_is_few_passes(self):
        def some():
            return [ones(4096) for _ in range(200)]

        explanation = explain(adam, some(), some(), some(), some())
        self.assertEqual(sum(part.tensors for part in explanation.flushes[0].passes) % 200, 0)
        self.assertLessEqual(explanation.passes, 4)
        # Each tensor goes through memory once: 4 loads and 3 stores.
        self.assertEqual(explanation.bytes_moved, 7 * 200 * 4096 * 4)

    @parametrize("kind", ["loop", "foreach", "fused"])
    def test_torch_optimizers_over_200_tensors_are_few_passes(self, kind):
        """However the optimizer calls: operator by operator, or `_foreach_`, or `_fused_`."""
        parameters = [torch.nn.Parameter(ones(4096)) for _ in range(200)]
        for parameter in parameters:
            parameter.grad = ones(4096)
        options = {"foreach": kind == "foreach", "fused": kind == "fused"}
        optimizer = torch.optim.Adam(parameters, **options)
        optimizer.step()  # makes the states
        hologram.synchronize()
        # What a fused step makes of the counts on the device is a pass of its own, over numbers.
        self.assertLessEqual(self.passes(optimizer.step), 3 if kind == "fused" else 2)

    def test_a_reduction_joins(self):
        self.assertEqual(self.passes(lambda x: (x * 2) / (x * 2).sum(), ones(1000)), 1)

    def test_in_place_chains(self):
        def chain(x):
            x.add_(1).mul_(2).relu_().sub_(3)

        x = ones(1000)
        explanation = explain(chain, x)
        self.assertEqual(explanation.passes, 1)
        self.assertEqual(explanation.bytes_moved, 2 * 4000)  # one load, one store

    def test_a_kept_intermediate_costs_a_store(self):
        kept = []

        def chain(x, keep):
            y = x * 2
            if keep:
                kept.append(y)
            return y + 1

        without, with_it = explain(chain, ones(1000), False), explain(chain, ones(1000), True)
        self.assertEqual((without.passes, with_it.passes), (1, 1))
        self.assertEqual(with_it.bytes_moved - without.bytes_moved, 4000)

    def test_a_backward_pass(self):
        def step(x):
            (x * 2).tanh().sum().backward()

        x = ones(100).requires_grad_()
        explanation = explain(step, x)
        origins = [origin for flush in explanation.flushes for origin in flush.origins]
        self.assertTrue(any(origin.startswith("TanhBackward") for origin in origins), origins)
        self.assertEqual(x.grad.cpu(), torch.full((100,), 2 * (1 - math.tanh(2) ** 2)))


class TestExplain(HologramTestCase):
    def test_the_result_and_the_lines(self):
        def doubled(x, by=1):
            return x + by

        line = doubled.__code__.co_firstlineno + 1
        explanation = explain(doubled, ones(3), by=2)
        self.assertEqual(explanation.result.cpu(), torch.full((3,), 3.0))
        flush = explanation.flushes[0]
        self.assertEqual(flush.origins, (f"test_explain.py:{line}",))
        self.assertIn(f"# test_explain.py:{line}", str(explanation))
        self.assertEqual((flush.reason, flush.device), ("end", 0))

    def test_modules_are_explained_by_the_line_that_calls_them(self):
        silu = torch.nn.SiLU()
        origins = explain(lambda x: silu(x), ones(3)).flushes[0].origins
        self.assertTrue(all(origin.startswith("test_explain.py:") for origin in origins), origins)

    def test_what_was_recorded_before_is_not_part_of_it(self):
        x = ones(3)
        y = x + 1
        explanation = explain(lambda: y * 2)
        self.assertEqual(explanation.instructions, 1)

    def test_the_reasons(self):
        def reasons(x):
            (x + 1).median()
            x.add_(1)
            hologram.synchronize()
            x.add_(1)

        self.assertEqual(
            [flush.reason for flush in explain(reasons, ones(3)).flushes],
            ["kernel" if CUDA_KERNELS else "read", "synchronize", "end"],
        )

    def test_eager(self):
        with hologram.eager():
            explanation = explain(lambda x: (x + 1) * 2, ones(3))
        self.assertEqual([flush.reason for flush in explanation.flushes], ["eager"] * 2)

    def test_an_error_ends_it(self):
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            explain(lambda x: (x + 1, 1 / 0), ones(3))
        self.assertEqual(explain(lambda: None).flushes, ())

    def test_it_does_not_nest(self):
        with self.assertRaisesRegex(RuntimeError, "within explain"):
            explain(lambda: explain(lambda: None))
        self.assertEqual(explain(lambda: None).flushes, ())


instantiate_parametrized_tests(TestPasses)

if __name__ == "__main__":
    run_tests()
