"""Autocast with CUDA's operator lists, and GradScaler."""

from __future__ import annotations

import torch
from about_torch import FUSED_ADAGRAD_TAKES_AMP
from common import DELEGATED, HologramTestCase
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)


def as_tuple(value):
    return value if isinstance(value, (tuple, list)) else (value,)


class TestAutocast(HologramTestCase):
    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_lower_precision(self, dtype):
        x = torch.rand(4, 4, device="hologram")
        linear = torch.nn.Linear(4, 4, device="hologram")
        convolution = torch.nn.Conv2d(1, 2, 3, device="hologram")
        with torch.autocast("hologram", dtype=dtype):
            self.assertEqual((x @ x).dtype, dtype)
            self.assertEqual(linear(x).dtype, dtype)
            self.assertEqual(convolution(x[None, None]).dtype, dtype)
            self.assertEqual(torch.bmm(x[None], x[None]).dtype, dtype)
            self.assertEqual((x + x).dtype, torch.float32)
        self.assertEqual((x @ x).dtype, torch.float32)

    def test_default_dtype(self):
        with torch.autocast("hologram"):
            self.assertTrue(torch.is_autocast_enabled("hologram"))
            self.assertFalse(torch.is_autocast_enabled("cpu"))
            self.assertEqual(torch.get_autocast_dtype("hologram"), torch.float16)
        self.assertFalse(torch.is_autocast_enabled("hologram"))

    def test_float32_operators(self):
        x = torch.rand(4, 4, device="hologram").half()
        with torch.autocast("hologram", dtype=torch.float16):
            for operator in (torch.exp, torch.log, torch.sum, torch.cumsum, torch.softmax):
                arguments = (0,) if operator in (torch.cumsum, torch.softmax) else ()
                self.assertEqual(operator(x, *arguments).dtype, torch.float32, operator.__name__)
            loss = torch.nn.functional.mse_loss(x, x)
            self.assertEqual(loss.dtype, torch.float32)
            self.assertEqual(torch.sum(x, dtype=torch.float64).dtype, torch.float64)

    def test_promotion(self):
        x = torch.rand(4, device="hologram")
        with torch.autocast("hologram", dtype=torch.float16):
            self.assertEqual(torch.cat([x, x.half()]).dtype, torch.float32)
            self.assertEqual(torch.addcmul(x.half(), x, x.half()).dtype, torch.float32)

    def test_banned(self):
        x = torch.rand(4, device="hologram")
        with torch.autocast("hologram", dtype=torch.float16):
            with self.assertRaisesRegex(RuntimeError, "binary_cross_entropy.*unsafe to autocast"):
                torch.nn.functional.binary_cross_entropy(x, x)

    def test_nesting(self):
        x = torch.rand(4, 4, device="hologram")
        with torch.autocast("hologram", dtype=torch.bfloat16):
            with torch.autocast("hologram", enabled=False):
                self.assertEqual((x @ x).dtype, torch.float32)
            with torch.autocast("hologram", dtype=torch.float16):
                self.assertEqual((x @ x).dtype, torch.float16)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                self.assertEqual((x @ x).dtype, torch.bfloat16)

    def test_only_this_device_is_cast(self):
        x = torch.rand(2, 2)
        with torch.autocast("hologram", dtype=torch.bfloat16):
            self.assertEqual((x @ x).dtype, torch.float32)

    def test_every_operator_runs(self):
        # The keys without a rule fall through, so no operator may be missing.
        x = torch.rand(4, 4, device="hologram")
        with torch.autocast("hologram", dtype=torch.bfloat16):
            self.assertEqual(torch.sort(x).values.dtype, torch.float32)
            self.assertEqual(torch.linalg.inv(torch.eye(3, device="hologram")).dtype, torch.float32)
            self.assertEqual(torch.arange(3, device="hologram").sum().item(), 3)
            self.assertTrue((x > 0.5).any().item() in (True, False))

    def test_backward(self):
        linear = torch.nn.Linear(4, 4, device="hologram")
        with torch.autocast("hologram", dtype=torch.bfloat16):
            loss = linear(torch.rand(2, 4, device="hologram")).float().square().mean()
        loss.backward()
        self.assertEqual(linear.weight.grad.dtype, torch.float32)
        self.assertGreater(linear.weight.grad.abs().sum().item(), 0)

    def test_weights_are_cast_once(self):
        linear = torch.nn.Linear(64, 64, device="hologram")
        x = torch.rand(1, 64, device="hologram", dtype=torch.bfloat16)
        with torch.autocast("hologram", dtype=torch.bfloat16):
            linear(x)
            torch.hologram.reset_fallback_report()
            linear(x)
            copies = torch.hologram.fallback_report().operators("native").get("aten::_copy_from", 0)
            self.assertEqual(copies, 0)
        with torch.autocast("hologram", dtype=torch.bfloat16, cache_enabled=False):
            linear(x)

    def test_decorators(self):
        class Square(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="hologram", cast_inputs=torch.float32)
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x @ x

            @staticmethod
            @torch.amp.custom_bwd(device_type="hologram")
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return gradient @ x.t() + x.t() @ gradient

        x = torch.rand(3, 3, device="hologram", dtype=torch.float16, requires_grad=True)
        with torch.autocast("hologram", dtype=torch.float16):
            y = Square.apply(x)
        self.assertEqual(y.dtype, torch.float32)
        y.sum().backward()
        self.assertEqual(x.grad.dtype, torch.float16)

    def test_unsupported_dtype(self):
        with self.assertWarnsRegex(UserWarning, "hologram Autocast only supports"):
            context = torch.autocast("hologram", dtype=torch.float64)
        with context:
            self.assertFalse(torch.is_autocast_enabled("hologram"))


class TestOperatorLists(HologramTestCase):
    """torch's own table of what CUDA's autocast does to which operator."""

    def setUp(self) -> None:
        super().setUp()
        self.lists = AutocastTestLists(torch.device("hologram"))

    def check(self, rows, expected, module=torch):
        """Runs (name, arguments[, keywords]) rows under float16; returns how many there were."""
        ran = 0
        with torch.autocast("hologram", dtype=torch.float16):
            for name, arguments, *rest in rows:
                # A third entry is keywords, or a reason to skip; cuDNN's operators are CUDA's only.
                if name.startswith("cudnn") or (rest and rest[0] and not isinstance(rest[0], dict)):
                    continue
                keywords = rest[0] if rest and isinstance(rest[0], dict) else {}
                result = getattr(module, name)(*arguments, **keywords)
                for value in as_tuple(result):
                    if isinstance(value, torch.Tensor):
                        self.assertEqual(value.dtype, expected, name)
                ran += 1
        return ran

    def test_lower_precision(self):
        ran = self.check(self.lists.torch_fp16, torch.float16)
        self.assertGreater(ran, 20)
        self.check(self.lists.nn_fp16, torch.float16, torch._C._nn)

    def test_float32(self):
        ran = self.check(self.lists.torch_fp32, torch.float32)
        self.assertGreater(ran, 30)
        self.check(self.lists.nn_fp32, torch.float32, torch._C._nn)

    def test_promotion(self):
        ran = self.check(self.lists.torch_need_autocast_promote, torch.float32)
        self.assertGreater(ran, 5)


class TestGradScaler(HologramTestCase):
    def train(self, device: str, poison: int | None = None) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        x, y = torch.rand(16, 4), torch.rand(16, 1)
        module, x, y = module.to(device), x.to(device), y.to(device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=128.0, growth_interval=2)
        losses, scales = [], []
        for step in range(6):
            optimizer.zero_grad()
            loss = (module(x) - y).square().mean()
            scaler.scale(loss).backward()
            if step == poison:
                module[0].weight.grad[0, 0] = float("inf")
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
        return losses, scales

    def test_equals_the_cpu(self):
        for poison in (None, 2):
            losses, scales = self.train("hologram", poison)
            expected_losses, expected_scales = self.train("cpu", poison)
            self.assertEqual(losses, expected_losses)
            self.assertEqual(scales, expected_scales)

    def test_infinite_gradients_skip_the_step(self):
        losses, scales = self.train("hologram", poison=2)
        self.assertEqual(losses[2], losses[3])
        self.assertLess(scales[2], scales[1])
        self.assertLess(losses[-1], losses[0])

    def test_state_dict(self):
        scaler = torch.amp.GradScaler("hologram", init_scale=64.0)
        scaler.scale(torch.ones(1, device="hologram"))
        other = torch.amp.GradScaler("hologram")
        other.load_state_dict(scaler.state_dict())
        self.assertEqual(other.get_scale(), 64.0)


class TestScalerOperators(HologramTestCase):
    """The operators of GradScaler: recorded, with the results of torch's kernels."""

    @parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    @parametrize("bad", [None, torch.inf, -torch.inf, torch.nan])
    def test_unscale(self, dtype, bad):
        for scale in (0.25, 1.0):
            for place in (0, 3, 5):
                generator = torch.Generator().manual_seed(place)
                shapes = [(7,), (64, 65), (), (40_000,), (1,), (3, 5)]
                grads = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
                # As large as they get: what is finite is not found, whatever its sum would be.
                grads[1].view(-1)[:9] = torch.finfo(dtype).max
                if bad is not None:
                    grads[place].view(-1)[-1] = bad
                results = {}
                for device in ("cpu", "hologram"):
                    mine = [grad.to(device).clone() for grad in grads]
                    found = torch.zeros((), device=device)
                    inverse = torch.tensor(scale, device=device)
                    torch.hologram.reset_fallback_report()
                    torch._amp_foreach_non_finite_check_and_unscale_(mine, found, inverse)
                    self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED), {})
                    results[device] = [grad.cpu() for grad in mine], found.cpu()
                self.assertEqual(results["hologram"], results["cpu"], rtol=0, atol=0)
                self.assertEqual(results["hologram"][1].item(), float(bad is not None))

    def test_what_was_found_stays(self):
        found = torch.ones(1, device="hologram")
        half = torch.tensor(0.5, device="hologram")
        torch._amp_foreach_non_finite_check_and_unscale_([half.clone()], found, half)
        self.assertEqual(found.item(), 1)

    def test_more_gradients_than_a_window_holds(self):
        grads = [torch.full((3,), float(i), device="hologram") for i in range(2000)]
        grads[1999][1] = torch.inf
        found, half = torch.zeros(1, device="hologram"), torch.tensor(0.5, device="hologram")
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, half)
        self.assertEqual(found.item(), 1)
        self.assertEqual([grad[0].item() for grad in grads], [i / 2 for i in range(2000)])

    def test_update(self):
        largest = torch.finfo(torch.float32).max
        cases = [
            (scale, tracker, found, growth)
            for scale in (8.0, 3e38, largest, 1e-30, torch.inf)
            for tracker in (0, 1, 2)
            for found in (0.0, 1.0, 2.0)
            for growth in (2.0, 1.0 + 2.0**-26, 1.0 + 2.0**-25, 1.1)
        ]
        for scale, tracker, found, growth in cases:
            results = {}
            for device in ("cpu", "hologram"):
                mine = torch.tensor(scale, device=device)
                count = torch.tensor(tracker, dtype=torch.int32, device=device)
                flag = torch.tensor(found, device=device)
                torch.hologram.reset_fallback_report()
                same = torch._amp_update_scale_(mine, count, flag, growth, 0.3, 2)
                self.assertIs(same, mine)
                self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED), {})
                results[device] = mine.cpu(), count.cpu()
            what = (scale, tracker, found, growth)
            self.assertEqual(results["hologram"], results["cpu"], rtol=0, atol=0, msg=str(what))

    @parametrize("clips", [False, True])
    @parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
    def test_a_fused_step_reads_nothing(self, kind, clips):
        """From the loss to the new scale nobody waits; any other step reads what was found."""
        for fused in (True, False):
            parameters = [torch.nn.Parameter(torch.ones(n, device="hologram")) for n in (40, 50)]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            options = {"fused": True} if fused else {"foreach": True}
            optimizer = getattr(torch.optim, kind)(parameters, lr=0.1, **options)
            scaler = torch.amp.GradScaler("hologram", init_scale=4.0)
            loss = torch.ones((), device="hologram")

            def step(scaler=scaler, optimizer=optimizer, parameters=parameters, loss=loss):
                scaler.scale(loss)
                if clips:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                scaler.step(optimizer)
                scaler.update()

            step()
            torch.hologram.synchronize()
            torch.hologram.reset_fallback_report()
            explained = torch.hologram.explain(step)
            reasons = [flush.reason for flush in explained.flushes]
            reads = not fused or (kind == "Adagrad" and not FUSED_ADAGRAD_TAKES_AMP)
            self.assertEqual(reasons, ["read", "end"] if reads else ["end"])
            self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED), {})
            self.assertLessEqual(explained.passes, 12 if clips else 9)


instantiate_parametrized_tests(TestAutocast)
instantiate_parametrized_tests(TestScalerOperators)

if __name__ == "__main__":
    run_tests()
