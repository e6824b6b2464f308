"""Batch norm and group norm: values, layouts, statistics, passes, and what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from about_torch import GROUP_NORM_KEEPS_LAYOUTS
from common import HologramTestCase, as_torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

DEVICE = "hologram"
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# One plane, one channel, one element inside, and rows longer than a class; see csrc/atlas/group.h.
SHAPES = (
    (4, 3),
    (1, 6),
    (8, 6, 7),
    (2, 6, 4, 5),
    (1, 4, 6, 6),
    (5, 1, 3, 3),
    (3, 4, 1, 1),
    (16, 24, 14, 14),
    (2, 4, 3, 5, 6),
    (2, 4, 60, 80),
)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def layouts(shape: tuple[int, ...]) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Of the same values: contiguous, with gaps, and with the channels last."""
    yield lambda x: x.clone()
    yield lambda x: torch.stack((x, x), -1)[..., 0]
    if len(shape) in LAST:
        yield lambda x: x.clone(memory_format=LAST[len(shape)])


def data(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    torch.manual_seed(sum(shape))
    channels = shape[1]
    return {
        "x": torch.randn(shape, dtype=torch.float64) * 2 + 1.5,
        "grad": torch.randn(shape, dtype=torch.float64),
        "weight": torch.rand(channels, dtype=torch.float64) + 0.5,
        "bias": torch.randn(channels, dtype=torch.float64),
        "mean": torch.randn(channels, dtype=torch.float64),
        "variance": torch.rand(channels, dtype=torch.float64) + 0.5,
    }


def gradients(
    call: Callable, x: torch.Tensor, grad: torch.Tensor, parameters: list[torch.Tensor]
) -> list[torch.Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, *parameters)]
    value = call(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves, grad)]


def passes(function: Callable) -> int:
    torch.hologram.synchronize()
    before = torch.hologram.stream_stats()["passes"]
    result = function()
    torch.hologram.synchronize()
    del result
    return torch.hologram.stream_stats()["passes"] - before


def elements_of_a_channel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel() // shape[1]


class TestChannelNorms(HologramTestCase):
    def judge(
        self, run: Callable, dtype: torch.dtype, count: int, delegated: Sequence[str] = ()
    ) -> None:
        """As exact as torch's CPU, by float64, or within the rounding of the largest value."""
        exact = run("cpu", torch.float64)
        torch.hologram.reset_fallback_report()
        actual = run(DEVICE, dtype)
        others = [r for r in torch.hologram.fallback_report() if r.kind != "native"]
        norms = {row.operator for row in others if "norm" in row.operator}
        self.assertLessEqual(norms, set(delegated))
        reference = run("cpu", dtype)
        epsilon = torch.finfo(dtype).eps
        for wanted, its, cpu in zip(exact, actual, reference, strict=True):
            for size, stride, its_stride in zip(cpu.shape, cpu.stride(), its.stride(), strict=True):
                self.assertTrue(size == 1 or stride == its_stride)
            self.assertEqual(its.dtype, cpu.dtype)
            scale = wanted.abs().max().item() if wanted.numel() else 0
            allowed = (cpu.double() - wanted).abs().max().item() if wanted.numel() else 0
            # What is summed up may cancel: its rounding is that of the terms.
            bound = 2 * allowed + 8 * epsilon * (scale + count**0.5)
            if dtype == torch.float64:  # there is nothing exact to compare with
                bound = sum(default_tolerances(dtype)) * max(1, scale)
            error = (its.cpu().double() - wanted).abs().max().item() if wanted.numel() else 0
            self.assertLessEqual(error, bound)

    @parametrize("dtype", FLOATS)
    @parametrize("training", (True, False))
    def test_batch_norm(self, dtype, training):
        for shape in SHAPES:
            count = elements_of_a_channel(shape)
            if count == 1:
                continue
            values = data(shape)
            for layout in layouts(shape):
                for affine in (("weight", "bias"), ("weight",), ("bias",), ()):

                    def run(device, its, values=values, layout=layout, affine=affine):
                        on = {k: v.to(dtype).to(device, its) for k, v in values.items()}
                        on["mean"], on["variance"] = on["mean"].clone(), on["variance"].clone()

                        def call(x, *given):
                            running = (on["mean"], on["variance"])
                            of = dict(zip(affine, given, strict=True))
                            both = (of.get("weight"), of.get("bias"))
                            return F.batch_norm(x, *running, *both, training, 0.2, 1e-3)

                        parameters = [on[k] for k in affine]
                        grad = layout(on["grad"])
                        made = gradients(call, layout(on["x"]), grad, parameters)
                        return [*made, on["mean"], on["variance"]]

                    if layout(values["x"]).is_contiguous() or values["x"].dim() in LAST:
                        self.judge(run, dtype, count)

    @parametrize("dtype", FLOATS)
    def test_group_norm(self, dtype):
        for shape in SHAPES:
            values = data(shape)
            for groups in {1, 2 if shape[1] % 2 == 0 else 1, shape[1]}:
                count = torch.Size(shape).numel() // shape[0] // groups
                if count == 1:
                    continue
                for parameters in ((), ("weight",), ("weight", "bias")):

                    def run(device, its, values=values, groups=groups, parameters=parameters):
                        on = {k: v.to(dtype).to(device, its) for k, v in values.items()}
                        return gradients(
                            lambda x, *rest: F.group_norm(x, groups, *rest, eps=1e-3),
                            on["x"],
                            on["grad"],
                            [on[k] for k in parameters],
                        )

                    self.judge(run, dtype, count)

    @parametrize("dtype", FLOATS)
    # CUDA's kernel takes no parameters of a wider dtype than the input's.
    @parametrize("wide", (False, subtest(True, decorators=[pytest.mark.cpu_kernels])))
    def test_group_norm_with_channels_last(self, dtype, wide):
        """Torch's kernels; gradients are recorded where torch makes them contiguous."""
        delegated = ["aten::native_group_norm"]
        if GROUP_NORM_KEEPS_LAYOUTS:
            delegated.append("aten::native_group_norm_backward")
        for shape in SHAPES:
            if len(shape) not in LAST:
                continue
            values, last = data(shape), LAST[len(shape)]
            for groups, parameters in itertools.product(
                {1, 2 if shape[1] % 2 == 0 else 1, shape[1]}, ((), ("weight",), ("weight", "bias"))
            ):
                count = torch.Size(shape).numel() // shape[0] // groups
                if count == 1:
                    continue

                def run(
                    device, its, values=values, groups=groups, parameters=parameters, last=last
                ):
                    on = {k: v.to(dtype).to(device, its) for k, v in values.items()}
                    if wide:
                        of_parameters = torch.promote_types(its, torch.float32)
                        on |= {k: on[k].to(of_parameters) for k in parameters}
                    x, grad = (on[k].contiguous(memory_format=last) for k in ("x", "grad"))
                    made = gradients(
                        lambda x, *rest: F.group_norm(x, groups, *rest, eps=1e-3),
                        x,
                        grad,
                        [on[k] for k in parameters],
                    )
                    self.assertEqual(made[0].stride(), x.stride())
                    if not GROUP_NORM_KEEPS_LAYOUTS:
                        made[1] = made[1].contiguous()
                    return made

                self.judge(run, dtype, count, delegated)

    def test_operators_that_say_whether_they_update(self):
        """torch's newer entry points of batch norm, which have a fourth result."""
        ops = torch.ops.aten
        for shape in ((4, 6, 5, 3), (5, 6)):
            values = {k: v.float() for k, v in data(shape).items()}
            results = []
            for device in ("cpu", DEVICE):
                on = {k: v.to(device) for k, v in values.items()}
                running = on["mean"].clone(), on["variance"].clone()
                with_update = ops._batch_norm_with_update(
                    on["x"], on["weight"], on["bias"], *running, 0.3, 1e-3
                )
                without = ops._batch_norm_no_update(
                    on["x"], on["weight"], on["bias"], on["mean"], on["variance"], 0.3, 1e-3
                )
                made = [*with_update, *without, *running]
                for update, saved in ((True, with_update), (False, without)):
                    made += ops.batch_norm_backward(
                        on["grad"],
                        on["x"],
                        on["weight"],
                        on["mean"],
                        on["variance"],
                        saved[1],
                        saved[2],
                        update,
                        1e-3,
                        [True] * 3,
                        saved[3],
                    )
                results.append(made)
            for expected, actual in zip(*results, strict=True):
                self.assertEqual(actual.cpu(), expected)
                self.assertEqual(actual.dtype, expected.dtype)
        torch.hologram.reset_fallback_report()
        ops._batch_norm_no_update(on["x"], None, None, on["mean"], on["variance"], 0.3, 1e-3)
        self.assertEqual(list(torch.hologram.fallback_report().operators("delegated")), [])

    @parametrize("dtype", (torch.bfloat16, torch.float16))
    def test_float32_parameters_beside_half_precision(self, dtype):
        values = data((4, 6, 5, 5))

        def run(device, its):
            x, grad = (values[k].to(dtype).to(device, its) for k in ("x", "grad"))
            wide = torch.promote_types(its, torch.float32)
            rest = [values[k].to(device, wide) for k in ("weight", "bias", "mean", "variance")]
            rest = [t.clone() for t in rest]
            made = gradients(
                lambda x, w, b: F.batch_norm(x, rest[2], rest[3], w, b, True), x, grad, rest[:2]
            )
            return [*made, rest[2], rest[3]]

        self.judge(run, dtype, 100)

    def test_statistics_of_values_far_from_zero(self):
        """The variance does not cancel, whatever the mean."""
        torch.manual_seed(0)
        x = torch.randn(8, 4, 9, 9) + 10_000
        for layout in layouts((8, 4, 9, 9)):
            mean, variance = torch.zeros(4, device=DEVICE), torch.zeros(4, device=DEVICE)
            F.batch_norm(layout(x).to(DEVICE), mean, variance, None, None, True, 1.0)
            exact = x.double().var((0, 2, 3))
            self.assertEqual(variance.cpu().double(), exact, atol=0, rtol=1e-3)

    def test_running_statistics_are_optional(self):
        x = torch.randn(4, 3, 5)
        actual = F.batch_norm(x.to(DEVICE), None, None, training=True)
        self.assertEqual(actual.cpu(), F.batch_norm(x, None, None, training=True))
        actual = F.instance_norm(x.to(DEVICE), use_input_stats=True)
        self.assertEqual(actual.cpu(), F.instance_norm(x, use_input_stats=True))

    def test_a_module_with_and_without_momentum(self):
        x = torch.randn(3, 6, 5, 7)
        for momentum in (0.3, None):
            results = []
            for device in ("cpu", DEVICE):
                module = torch.nn.BatchNorm2d(6, momentum=momentum).to(device)
                for factor in (1, 2, 3):
                    module(factor * x.to(device))
                module.eval()
                results.append([module(x.to(device)), module.running_mean, module.running_var])
                self.assertEqual(module.num_batches_tracked.item(), 3)
            for expected, actual in zip(*results, strict=True):
                self.assertEqual(actual.cpu(), expected)

    def test_distances_from_the_mean_are_computed_twice_and_not_stored(self):
        x = torch.randn(3, 8, 40, 40).to(memory_format=torch.channels_last).to(DEVICE)
        running = [torch.zeros(8, device=DEVICE), torch.ones(8, device=DEVICE)]
        explanation = torch.hologram.explain(lambda: F.batch_norm(x, *running, training=True))
        stored = sum(part.bytes_stored for flush in explanation.flushes for part in flush.passes)
        self.assertLess(stored, 1.1 * x.numel() * x.element_size())
        # An operand that has become another one meanwhile is not read again.
        w = torch.randn(3, 8, 40, 40).to(memory_format=torch.channels_last).to(DEVICE)

        def steps() -> torch.Tensor:
            y = w.clone(memory_format=torch.preserve_format)
            mean = y.mean((0, 2, 3), keepdim=True)
            distance = y - mean
            variance = (distance * distance).mean((0, 2, 3), keepdim=True)
            y.mul_(2)
            return distance * variance.rsqrt() + y

        with torch.hologram.eager():
            want = steps()
        self.assertEqual(steps().cpu(), want.cpu(), rtol=0, atol=0)

    def test_no_passes_but_those_of_the_formula(self):
        values = {k: v.float().to(DEVICE) for k, v in data((4, 6, 8, 8)).items()}
        running, affine = (values["mean"], values["variance"]), (values["weight"], values["bias"])
        x, grad = values["x"].requires_grad_(), values["grad"]
        leaves = (x, *(t.requires_grad_() for t in affine))
        for training, forward in ((True, 6), (False, 2)):
            with torch.no_grad():
                count = passes(lambda: F.batch_norm(x, *running, *affine, training))  # noqa: B023
            self.assertLessEqual(count, forward)
        value = F.batch_norm(x, *running, *affine, True)
        self.assertLessEqual(passes(lambda: torch.autograd.grad(value, leaves, grad)), 4)
        self.assertEqual(passes(lambda: F.group_norm(x.detach(), 2)), 1)
        with torch.no_grad():
            self.assertLessEqual(passes(lambda: F.group_norm(x, 2, *affine)), 4)

    @parametrize("last", (True, False))
    def test_fused_and_alone_have_one_result(self, last):
        values = {k: v.float().to(DEVICE) for k, v in data((3, 4, 6, 5)).items()}
        x = values["x"].contiguous(memory_format=LAST[4]) if last else values["x"]

        def run():
            mean, variance = values["mean"].clone(), values["variance"].clone()
            leaves = [t.detach().requires_grad_() for t in (x, values["weight"], values["bias"])]
            hidden = F.relu(F.batch_norm(leaves[0] * 2, mean, variance, *leaves[1:], True)) + x
            if not last:
                hidden = F.group_norm(hidden, 2, *leaves[1:])
            return [hidden, mean, variance, *torch.autograd.grad(hidden, leaves, values["grad"])]

        fused = run()
        with torch.hologram.eager():
            alone = run()
        for one, other in zip(fused, alone, strict=True):
            self.assertTrue(torch.equal(one, other))

    def test_special_values(self):
        for special in (float("nan"), float("inf")):
            x = torch.randn(2, 3, 4)
            x[0, 1, 2] = special
            for call in (
                lambda t: F.batch_norm(t, None, None, training=True),
                lambda t: F.group_norm(t, 3),
            ):
                self.assertEqual(call(x.to(DEVICE)).cpu(), call(x))

    @parametrize(
        "call",
        (
            lambda x, v: F.batch_norm(x, v[:2], v[:2]),
            lambda x, v: F.batch_norm(x, v, v, weight=v[:2]),
            lambda x, v: F.batch_norm(x[:1, :, :1], None, None, training=True),
            lambda x, v: F.batch_norm(x, v, v, weight=v.double()),
            lambda x, v: F.group_norm(x, 4),
            lambda x, v: F.group_norm(x, 3, v[:2]),
            lambda x, v: F.group_norm(x.long(), 3),
        ),
    )
    def test_bad_input(self, call):
        x, v = torch.randn(2, 3, 4), torch.ones(3)
        with self.assertRaises(Exception) as actual:
            call(x.to(DEVICE), v.to(DEVICE))

        def compare(device):
            with self.assertRaises(type(actual.exception)) as expected:
                call(x.to(device), v.to(device))
            self.assertEqual(str(actual.exception), str(expected.exception))

        as_torch(compare)

    def test_nothing_to_normalise(self):
        x = torch.randn(0, 3, 4)
        for call in (
            lambda t: F.group_norm(t, 3),
            lambda t: F.batch_norm(t, None, None, training=True),
        ):
            self.assertEqual(call(x.to(DEVICE)).cpu(), call(x))


instantiate_parametrized_tests(TestChannelNorms)

if __name__ == "__main__":
    run_tests()
