"""Operators over lists of tensors: foreach, optimizers, GradScaler's, lists of results."""

from __future__ import annotations

import torch
from common import DELEGATED, DEVICES, DelegateTestCase, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)


class TestLists(DelegateTestCase):
    """Operators over lists of tensors."""

    def test_foreach(self):
        torch.manual_seed(0)
        tensors = [
            torch.rand(5),
            torch.rand(2, 3),
            torch.rand(()),
            torch.rand(0),
            torch.rand(3).double(),
        ]
        others = [t * 2 + 0.1 for t in tensors]
        for function in (
            lambda x, y: torch._foreach_add(x, y, alpha=2),
            lambda x, y: torch._foreach_add(x, 3),
            lambda x, y: torch._foreach_add(x, [1, 2.5, 3, 4, 5]),
            lambda x, y: torch._foreach_mul(x, torch.tensor(2.0, device=x[0].device)),
            lambda x, y: torch._foreach_div(x, y),
            lambda x, y: torch._foreach_sqrt(x),
            lambda x, y: torch._foreach_norm(x[:3]),
            lambda x, y: torch._foreach_max(x[:3]),
            lambda x, y: torch._foreach_lerp(x, y, 0.3),
            lambda x, y: torch._foreach_addcmul(x, y, y, 0.5),
            lambda x, y: torch._foreach_addcdiv(x, y, y, [1, 2, 3, 4, 5]),
            lambda x, y: torch._foreach_pow(2, x),
            lambda x, y: torch._foreach_clamp_max(x, 0.5),
            lambda x, y: (torch._foreach_copy_(x, y), x)[1],
            lambda x, y: (torch._foreach_mul_(x, y), x)[1],
            lambda x, y: (torch._foreach_zero_(x), x)[1],
            lambda x, y: (torch._foreach_neg_(x), x)[1],
        ):
            # Most of them are the device's own operations, with functions and roundings of its own.
            self.check(function, tensors, others, exact=False)

    def test_in_place_keeps_storage_and_versions(self):
        tensors = [torch.ones(3, device="hologram") for _ in range(3)]
        addresses = [t.data_ptr() for t in tensors]
        torch._foreach_add_(tensors, 1)
        self.assertEqual([t.data_ptr() for t in tensors], addresses)
        self.assertEqual([t._version for t in tensors], [1, 1, 1])

    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
    @parametrize("number", [1, 2.5, 1e300, True])
    def test_a_number_is_added_to_each(self, dtype, number):
        if dtype == torch.int64 and isinstance(number, float):
            number = 3
        results = []
        for device in ("cpu", "hologram"):
            base = [torch.arange(4.0).to(dtype).to(device) for _ in range(3000)]
            sizes = [(), (1,), (3, 5), (7,)]
            ones = [torch.ones(size, dtype=dtype, device=device) for size in sizes]
            alike = [*base, *ones, base[0], base[1][:2], ones[2].t()]
            others = [base[2][::2], ones[2][1], ones[0][None][:0]]  # one by one
            for tensors in (alike, others):
                torch._foreach_add_(tensors, number)
            results.append([t.cpu() for t in alike + others])
            results.append([t._version for t in alike + others])
        values, versions, ours, our_versions = results
        self.assertEqual(ours, values, rtol=0, atol=0)
        self.assertEqual(our_versions, versions)

    def test_a_number_is_added_in_one_pass(self):
        tensors = [torch.zeros(1, device="hologram") for _ in range(200)]
        torch.hologram.synchronize()
        explained = torch.hologram.explain(torch._foreach_add_, tensors, 1)
        self.assertEqual(explained.passes, 1)

    def test_what_has_been_added_to_is_no_saved_value(self):
        x = torch.ones(2, device="hologram", requires_grad=True)
        y = x * 1
        z = y * y
        torch._foreach_add_([y], 1.0)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            z.sum().backward()

    def test_lists_of_results(self):
        x = torch.rand(6, 4)
        for function in (
            lambda x: torch.unsafe_split(x, 4),
            lambda x: torch.unsafe_chunk(x, 4, 1),
            lambda x: torch.split_copy(x, 4),
            lambda x: torch.unbind_copy(x, 1),
            lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
            lambda x: torch.broadcast_tensors(x, x[:1]),
            lambda x: torch.atleast_2d(x[0], x),
            lambda x: torch.block_diag(x, x[:1]),
            lambda x: torch.cartesian_prod(x[0], x[1]),
            lambda x: torch.gradient(x),
        ):
            self.check(function, x)
        self.check(lambda x: torch._foreach_exp([x, x[1:]]), x, exact=False)  # the device's own exp

    @parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
    def test_fused_optimizers(self, kind):
        """One call for all parameters, recorded."""
        options = {"SGD": {"lr": 0.1, "momentum": 0.9}}.get(kind, {"lr": 0.1})
        weights = {}
        for device in DEVICES:
            torch.manual_seed(0)
            network = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
            )
            x, network = torch.randn(16, 4).to(device), network.to(device)
            optimizer = getattr(torch.optim, kind)(network.parameters(), fused=True, **options)
            addresses = [p.data_ptr() for p in network.parameters()]
            torch.hologram.reset_fallback_report()
            for _ in range(3):
                optimizer.zero_grad()
                (network(x) ** 2).mean().backward()
                optimizer.step()
            if device == "hologram":
                calls = torch.hologram.fallback_report().operators("native")
                fused = {name: n for name, n in calls.items() if "_fused_" in name}
                self.assertEqual(list(fused.values()), [3], msg=str(fused))
            self.assertEqual([p.data_ptr() for p in network.parameters()], addresses)
            weights[device] = [p.detach().cpu() for p in network.parameters()]
        self.assertEqual(weights["hologram"], weights["cpu"])

    @parametrize("kind", ["Adam", "SGD", "RMSprop", "Adadelta", "NAdam", "LBFGS"])
    def test_optimizers(self, kind):
        weights = {}
        for device in DEVICES:
            weight = torch.linspace(-1, 1, 12).reshape(3, 4).to(device).requires_grad_()
            optimizer = getattr(torch.optim, kind)([weight], lr=0.1)

            def closure(weight=weight, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (weight.sin() ** 2).sum()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            weights[device] = weight.detach().cpu()
        self.assertEqual(weights["hologram"], weights["cpu"])

    def test_gradient_scaler(self):
        """The list operators of torch.amp."""
        for found in (False, True):

            def unscale(x, inverse, flag, found=found):
                x[0][0] = torch.inf if found else 1.0
                torch._amp_foreach_non_finite_check_and_unscale_(x, flag, inverse)
                scale, growth = torch.full_like(inverse, 8.0), torch.zeros_like(inverse).int()
                torch._amp_update_scale_(scale, growth, flag, 2.0, 0.5, 1)
                return [*x, flag, scale, growth]

            self.check(
                unscale, [torch.ones(3), torch.ones(2)], torch.tensor(0.5), torch.tensor(0.0)
            )


class TestClipping(HologramTestCase):
    """torch.nn.utils' clipping of gradients: recorded, and nobody waits for a norm."""

    SHAPES = ((40, 3), (7,), (), (5, 2, 3), (4096,), (1,))

    def parameters(self, device: str, dtype: torch.dtype) -> list[torch.nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        result = []
        for shape in self.SHAPES:
            value = torch.randn(shape, generator=generator).to(dtype)
            result.append(torch.nn.Parameter(value.to(device)))
            result[-1].grad = (3 * value).to(device) * 1  # pending
        return result

    def check_clipping(self, function, dtype, passes, **options):
        results = {}
        for device in DEVICES:
            parameters = self.parameters(device, dtype)
            if device == "hologram":
                torch.hologram.synchronize()
                torch.hologram.reset_fallback_report()
                explained = torch.hologram.explain(function, parameters, **options)
                self.assertEqual([flush.reason for flush in explained.flushes], ["end"])
                self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED), {})
                self.assertLessEqual(explained.passes, passes)
                total = explained.result
            else:
                total = function(parameters, **options)
            grads = [parameter.grad.cpu() for parameter in parameters]
            results[device] = grads, None if total is None else total.cpu()
        self.assertEqual(results["hologram"], results["cpu"])

    @parametrize("foreach", [True, False, None])
    @parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_norm(self, foreach, norm, dtype):
        """One pass over the gradients for their norms, one for the total, one that clips.

        Tensors of one element have norms without a fold, and so another code.
        """
        options = {"norm_type": norm, "foreach": foreach}
        for most in (1.0, 1e6):
            clip = torch.nn.utils.clip_grad_norm_
            self.check_clipping(clip, dtype, 5, max_norm=most, **options)

        def total_norm(parameters, **options):
            return torch.nn.utils.get_total_norm([p.grad for p in parameters], **options)

        self.check_clipping(total_norm, dtype, 3, **options)

    @parametrize("foreach", [True, False, None])
    def test_value(self, foreach):
        clip = torch.nn.utils.clip_grad_value_
        self.check_clipping(clip, torch.float32, 1, clip_value=0.5, foreach=foreach)

    @parametrize("foreach", [True, False])
    def test_three_passes(self, foreach):
        parameters = [torch.nn.Parameter(torch.ones(n, device="hologram")) for n in range(20, 60)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch.hologram.synchronize()
        clip = torch.nn.utils.clip_grad_norm_
        explained = torch.hologram.explain(clip, parameters, 1.0, foreach=foreach)
        self.assertEqual(explained.passes, 3)

    def test_what_is_not_finite_is_found(self):
        parameter = torch.nn.Parameter(torch.ones(9, device="hologram"))
        parameter.grad = torch.full((9,), torch.nan, device="hologram")
        with self.assertRaisesRegex(RuntimeError, "non-finite"):
            torch.nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


instantiate_parametrized_tests(TestLists)
instantiate_parametrized_tests(TestClipping)

if __name__ == "__main__":
    run_tests()
