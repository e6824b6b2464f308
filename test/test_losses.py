"""The negative log likelihood and the cross entropy: values, gradients, passes, bad targets."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from common import ASYNCHRONOUS, HologramTestCase, run_python
from test_reductions import DEVICE, FLOATS, passes
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

# Of the logits; classes are dimension 1.
SHAPES = ((1, 1), (1, 7), (5, 1), (64, 10), (70, 100), (3, 3073), (2, 40_000))
SHAPES_OF_MORE = (
    (2, 3, 4),
    (1, 5, 7),
    (4, 70, 33),
    (3, 5, 1),
    (2, 3, 4, 5),
    (1, 6, 3, 2),
    (2, 4, 1, 1),
)
REDUCTIONS = ("none", "mean", "sum")
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2},
    torch.float16: {"rtol": 4e-3, "atol": 1e-3},
}


def operands(shape: tuple[int, ...], ignored: int) -> tuple[torch.Tensor, ...]:
    """Logits, targets of which some are ignored, weights."""
    torch.manual_seed(sum(shape))
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    if target.numel() > 3:
        target.view(-1)[::3] = ignored
    return 3 * torch.randn(shape), target, torch.rand(shape[1]) + 0.5


def loss_and_gradient(function, logits, target, weight, place, dtype, **options):
    leaf = logits.to(place, dtype, copy=True).requires_grad_()
    if weight is not None:
        weight = weight.to(place, dtype)
    loss = function(leaf, target.to(place), weight=weight, **options)
    scale = torch.linspace(0.5, 2, max(loss.numel(), 1), dtype=dtype).reshape(loss.shape)
    loss.backward(scale.to(place))
    return loss.detach().cpu(), leaf.grad.cpu()


class TestLosses(HologramTestCase):
    def check(self, function, shape, dtype, *, weighted=False, ignored=-100, **options):
        logits, target, weight = operands(shape, ignored)
        logits = logits.to(dtype)
        weight = weight.to(dtype) if weighted else None
        options["ignore_index"] = ignored
        arguments = (function, logits, target, weight)
        actual = loss_and_gradient(*arguments, DEVICE, dtype, **options)
        # As near to what float64 gives as the dtype can be: torch sums halves in halves.
        exact = loss_and_gradient(*arguments, "cpu", torch.float64, **options)
        theirs = loss_and_gradient(*arguments, "cpu", dtype, **options)
        for mine, its, reference in zip(actual, exact, theirs, strict=True):
            what = f"{shape} {dtype} {options} weighted={weighted}"
            self.assertEqual(mine.dtype, dtype, what)
            self.assertEqual(mine.stride(), reference.stride(), what)
            self.assertEqual(mine.double(), its, equal_nan=True, msg=what, **TOLERANCE[dtype])

    @parametrize("dtype", FLOATS)
    @parametrize("reduction", REDUCTIONS)
    def test_cross_entropy(self, dtype, reduction):
        for shape, weighted in itertools.product((*SHAPES, *SHAPES_OF_MORE), (False, True)):
            self.check(F.cross_entropy, shape, dtype, weighted=weighted, reduction=reduction)

    # CUDA's kernel for planes takes targets for int32.
    @parametrize("ignored", (-1, 0, 2, 99, subtest(2**40, decorators=[pytest.mark.cpu_kernels])))
    def test_what_is_ignored(self, ignored):
        for shape in ((70, 100), (4, 70, 33)):
            for reduction, weighted in itertools.product(REDUCTIONS, (False, True)):
                self.check(
                    F.cross_entropy,
                    shape,
                    torch.float32,
                    ignored=ignored,
                    weighted=weighted,
                    reduction=reduction,
                )

    @parametrize("reduction", REDUCTIONS)
    def test_label_smoothing(self, reduction):
        shapes = ((70, 100), (1, 7), (4, 70, 33), (2, 3, 4, 5), (2, 3, 2, 2, 3))
        for shape, weighted, ignored, dtype in itertools.product(
            shapes, (False, True), (-100, 2), FLOATS
        ):
            self.check(
                F.cross_entropy,
                shape,
                dtype,
                weighted=weighted,
                ignored=ignored,
                reduction=reduction,
                label_smoothing=0.2,
            )

    def test_label_smoothing_is_recorded(self):
        """Nobody waits. Forward it is the passes of the loss without smoothing, backward one over
        the elements and two over numbers: what the parts are multiplied with, and each target's.
        """
        logits, target, weight = (t.to(DEVICE) for t in operands((70, 100), -100))
        leaf = logits.clone().requires_grad_()
        torch.hologram.synchronize()
        for reduction, w in itertools.product(REDUCTIONS, (None, weight)):
            options = {"reduction": reduction, "weight": w, "label_smoothing": 0.1}
            torch.hologram.reset_fallback_report()
            count = passes(lambda: F.cross_entropy(logits, target, **options))  # noqa: B023
            self.assertLessEqual(count, 3, options)
            loss = F.cross_entropy(leaf, target, **options)
            grad = torch.ones_like(loss)
            self.assertLessEqual(
                passes(lambda: torch.autograd.grad(loss, leaf, grad)),  # noqa: B023
                3,
                options,
            )
            others = [row for row in torch.hologram.fallback_report() if row.kind != "native"]
            self.assertEqual(others, [], options)

    def test_label_smoothing_elsewhere(self):
        """Without autograd, under transforms, modes and gradients of gradients."""
        logits, target, weight = operands((6, 5), -100)

        def loss(x, t, w):
            return F.cross_entropy(x, t, w, label_smoothing=0.3)

        def hessian(x, t, w):
            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(loss(leaf, t, w), leaf, create_graph=True)
            return torch.autograd.grad((first**2).sum(), leaf)[0]

        def inferred(x, t, w):
            with torch.inference_mode():
                return loss(x, t, w).clone()

        def mapped(x, t, w):
            return torch.func.vmap(loss, (0, 0, None))(x[:, None], t[:, None], None)

        def transformed(x, t, w):
            return torch.func.grad(loss)(x, t, w)

        for call in (loss, hessian, inferred, mapped, transformed):
            expected = call(logits, target, weight)
            actual = call(*(t.to(DEVICE) for t in (logits, target, weight)))
            self.assertEqual(actual.cpu(), expected, equal_nan=True, msg=call.__name__)

    def test_one_target(self):
        """Of logits without a batch; without a reduction the loss is the same number."""
        logits, target, weight = operands((1, 7), -100)
        logits, target = logits[0], target[0]
        for dtype, reduction, w, of, smoothing in itertools.product(
            FLOATS, REDUCTIONS, (None, weight), (target, torch.tensor(-100)), (0.0, 0.1)
        ):
            arguments = (F.cross_entropy, logits, of, w)
            options = {"reduction": reduction, "label_smoothing": smoothing}
            torch.hologram.reset_fallback_report()
            actual = loss_and_gradient(*arguments, DEVICE, dtype, **options)
            delegated = torch.hologram.fallback_report().operators("delegated")
            self.assertNotIn("aten::nll_loss_forward", delegated)
            exact = loss_and_gradient(*arguments, "cpu", torch.float64, **options)
            for mine, its in zip(actual, exact, strict=True):
                self.assertEqual(mine.double(), its, equal_nan=True, **TOLERANCE[dtype])
        forward = torch.ops.aten.nll_loss_forward.default
        for reduction, w in itertools.product(range(3), (None, weight)):
            expected = forward(logits, target, w, reduction, -100)
            on = [t.to(DEVICE) if t is not None else None for t in (logits, target, w)]
            self.assertEqual([t.cpu() for t in forward(*on, reduction, -100)], list(expected))
        with self.assertRaisesRegex(IndexError, "Target 7 is out of bounds"):
            F.cross_entropy(logits.to(DEVICE), torch.tensor(7, device=DEVICE)).item()

    @parametrize("reduction", REDUCTIONS)
    def test_nll_loss_of_what_is_in_memory(self, reduction):
        for shape in ((64, 10), (70, 1000), (4, 700, 33), (2, 3, 4, 5), (3, 500, 6, 7)):
            for weighted in (False, True):
                self.check(F.nll_loss, shape, torch.float32, weighted=weighted, reduction=reduction)

    def test_all_results_of_the_operators(self):
        ops = torch.ops.aten
        for shape, name in (((6, 9), "nll_loss"), ((2, 5, 3, 4), "nll_loss2d")):
            logits, target, weight = operands(shape, -100)
            forward = getattr(ops, f"{name}_forward").default
            for reduction, w in itertools.product(range(3), (None, weight)):
                expected = forward(logits, target, w, reduction, -100)
                on = [t.to(DEVICE) if t is not None else None for t in (logits, target, w)]
                actual = forward(*on, reduction, -100)
                self.assertEqual([t.cpu() for t in actual], list(expected))

    def test_nothing_counts(self):
        target = torch.full((5,), -100)
        logits = torch.randn(5, 4)
        for reduction in REDUCTIONS:
            arguments = (F.cross_entropy, logits, target, None)
            expected = loss_and_gradient(*arguments, "cpu", torch.float32, reduction=reduction)
            actual = loss_and_gradient(*arguments, DEVICE, torch.float32, reduction=reduction)
            self.assertEqual(actual, expected, equal_nan=True)

    def test_special_values(self):
        inf, nan = float("inf"), float("nan")
        logits = torch.tensor(
            [
                [1.0, -inf, 2.0],
                [nan, 1.0, 2.0],
                [inf, 1.0, 2.0],
                [-inf, -inf, -inf],
                [1.0, 2.0, 3.0],
            ]
        )
        for target in (0, 1, 2):
            for reduction in REDUCTIONS:
                arguments = (F.cross_entropy, logits, torch.full((5,), target), None)
                expected = loss_and_gradient(*arguments, "cpu", torch.float32, reduction=reduction)
                actual = loss_and_gradient(*arguments, DEVICE, torch.float32, reduction=reduction)
                self.assertEqual(actual, expected, equal_nan=True)

    @parametrize("shape", ((0, 3), (0, 3, 4)))
    def test_nothing_at_all(self, shape):
        for reduction in REDUCTIONS:
            logits, target = torch.randn(shape), torch.empty(shape[0], *shape[2:], dtype=torch.long)
            expected = F.cross_entropy(logits, target, reduction=reduction)
            actual = F.cross_entropy(logits.to(DEVICE), target.to(DEVICE), reduction=reduction)
            self.assertEqual(actual.cpu(), expected, equal_nan=True)

    def test_other_layouts_and_targets(self):
        x = torch.randn(4, 5, 6, 7)
        target = torch.randint(0, 5, (4, 7, 6))
        for logits, its in (
            (x.contiguous(memory_format=torch.channels_last), target.transpose(1, 2)),
            (x[:, :, ::2], target.transpose(1, 2)[:, ::2]),
            (x[0, :, 0].t(), target[0, :, 0]),
            (x[0, :, 0, 0], target[0, 0, 0]),  # one sample
            (x, torch.rand(4, 5, 6, 7)),  # probabilities
        ):
            expected = F.cross_entropy(logits, its)
            self.assertEqual(F.cross_entropy(logits.to(DEVICE), its.to(DEVICE)).cpu(), expected)
        # Of logarithms and targets with gaps a copy is recorded.
        logs, classes = x[:, :, 0, 0].log_softmax(1), target[:, 0, 0]
        for logits, its in (
            (logs.t().contiguous().t(), classes),
            (logs, torch.stack((classes, classes), 1)[:, 0]),
            (torch.cat((logs, logs), 1)[:, ::2], classes),
        ):
            on = [t.to(DEVICE) for t in (logits, its)]
            if not its.is_contiguous():
                on[1] = torch.stack((on[1], on[1]), 1)[:, 0]
            leaves = [t.detach().requires_grad_() for t in (logits, on[0])]
            torch.hologram.reset_fallback_report()
            actual = torch.autograd.grad(F.nll_loss(leaves[1], on[1]), leaves[1])[0]
            self.assertNotIn(
                "nll_loss", str(torch.hologram.fallback_report().operators("delegated"))
            )
            expected = torch.autograd.grad(F.nll_loss(leaves[0], its), leaves[0])[0]
            self.assertEqual(actual.cpu(), expected)
            self.assertEqual(actual.stride(), expected.stride())
        byte = torch.randint(0, 5, (4,), dtype=torch.uint8)
        logits = x[:, :, 0, 0].contiguous()
        expected = F.nll_loss(logits, byte)
        self.assertEqual(F.nll_loss(logits.to(DEVICE), byte.to(DEVICE)).cpu(), expected)

    def test_passes(self):
        """The elements are gone through once forward and once backward, whatever is asked for."""
        logits, target, weight = (t.to(DEVICE) for t in operands((70, 100), -100))
        torch.hologram.flush()
        # Forward: the elements, the sum over the targets, and whether these are in range.
        self.assertEqual(passes(lambda: F.cross_entropy(logits, target)), 3)
        self.assertEqual(passes(lambda: F.cross_entropy(logits, target, weight)), 3)
        self.assertEqual(passes(lambda: F.cross_entropy(logits, target, reduction="none")), 2)
        leaf = logits.clone().requires_grad_()
        torch.hologram.flush()
        for options in ({}, {"weight": weight}, {"reduction": "sum"}):
            loss = F.cross_entropy(leaf, target, **options)
            grad = torch.ones_like(loss)
            self.assertEqual(passes(lambda: torch.autograd.grad(loss, leaf, grad)), 1)  # noqa: B023
        loss = F.cross_entropy(leaf, target, reduction="none")
        gradient = torch.ones_like(loss)
        self.assertEqual(passes(lambda: torch.autograd.grad(loss, leaf, gradient)), 1)

    def test_fused_and_alone_are_the_same_bits(self):
        for shape in ((70, 100), (30, 3073), (4, 70, 33), (4, 700, 33)):
            logits, target, weight = operands(shape, -100)
            arguments = (F.cross_entropy, logits, target, weight, DEVICE, torch.float32)
            fused = loss_and_gradient(*arguments)
            with torch.hologram.eager():
                alone = loss_and_gradient(*arguments)
            self.assertTrue(torch.equal(fused[1], alone[1]), shape)
            self.assertEqual(fused[0], alone[0])

    @parametrize(
        "call",
        (
            lambda x, t, w: F.nll_loss(x, t[:3]),
            lambda x, t, w: F.nll_loss(x, t.float()),
            lambda x, t, w: F.nll_loss(x, t.int()),
            lambda x, t, w: F.nll_loss(x, t, weight=w[:3]),
            lambda x, t, w: F.nll_loss(x, t, weight=w.double()),
            lambda x, t, w: F.nll_loss(x.long(), t),
            lambda x, t, w: F.nll_loss(x.reshape(2, 2, 5), t),
            lambda x, t, w: F.cross_entropy(x, t, label_smoothing=2.0),
            lambda x, t, w: F.cross_entropy(x, t, reduction="other"),
        ),
    )
    def test_bad_input(self, call):
        x, t, w = torch.randn(4, 5), torch.randint(0, 5, (4,)), torch.rand(5)
        with self.assertRaises(Exception) as expected:
            call(x, t, w)
        with self.assertRaises(type(expected.exception)):
            call(x.to(DEVICE), t.to(DEVICE), w.to(DEVICE)).cpu()
        self.assertEqual(F.nll_loss(x.to(DEVICE), t.to(DEVICE)).cpu(), F.nll_loss(x, t))


class TestTargetsOutOfRange(HologramTestCase):
    def losses(self):
        """Of logarithms that are being recorded, and of some in memory."""
        for shape in ((4, 5), (2, 5, 3), (60, 40), (9, 5, 1000)):
            logits = torch.randn(shape, device=DEVICE)
            torch.hologram.synchronize()
            for reduction in REDUCTIONS:
                yield shape, lambda t, x=logits, r=reduction: F.cross_entropy(x, t, reduction=r)
                yield shape, lambda t, x=logits, r=reduction: F.nll_loss(x, t, reduction=r)

    @parametrize("bad", (-1, -101, 40, 2**24 + 1, 2**31 + 7, 2**62, -(2**63), 2**63 - 1))
    def test_the_value_is_named_once(self, bad):
        for shape, loss in self.losses():
            target = torch.zeros(shape[0], *shape[2:], dtype=torch.long)
            target.view(-1)[-1] = bad
            target = target.to(DEVICE)
            with self.assertRaisesRegex(IndexError, rf"^Target {bad} is out of bounds"):
                value = loss(target)
                torch.hologram.synchronize()
            torch.hologram.synchronize()
            # Nothing of the pending work was lost, and nothing is left of the error.
            target.clamp_(0, 4)
            value = loss(target)
            self.assertTrue(value.isfinite().all().item(), shape)

    def test_who_reads_hears_of_it(self):
        logits, good = torch.randn(6, 5, device=DEVICE), torch.tensor([0, 1, 2, 3, 4, 0])
        bad = good.clone()
        bad[2] = 5
        good, bad = good.to(DEVICE), bad.to(DEVICE)
        torch.hologram.synchronize()
        for read in (
            lambda loss: loss.item(),
            lambda loss: loss.cpu(),
            lambda loss: loss.tolist(),
            lambda loss: str(loss),
            lambda loss: torch.hologram.synchronize(),
            lambda loss: torch.hologram.current_stream().synchronize(),
        ):
            other = logits * 2
            loss = F.cross_entropy(logits, bad)
            later = logits + 1
            with self.assertRaisesRegex(
                IndexError, r"Target 5 is out of bounds. \(nll_loss: 0 to 4\)"
            ):
                read(loss)
            self.assertEqual(other.cpu(), logits.cpu() * 2)
            self.assertEqual(later.cpu(), logits.cpu() + 1)
            self.assertTrue(F.cross_entropy(logits, good).isfinite().item())

    def test_an_event_tells_of_it(self):
        logits = torch.randn(6, 5, device=DEVICE)
        bad = torch.full((6,), -7, device=DEVICE)
        torch.hologram.synchronize()
        with self.assertRaisesRegex(IndexError, "Target -7 is out of bounds"):
            F.cross_entropy(logits, bad)
            event = torch.hologram.Event()
            event.record()
            event.synchronize()
        torch.hologram.synchronize()

    def test_what_is_ignored_is_no_error(self):
        logits = torch.randn(6, 5, device=DEVICE)
        for ignored in (-100, 7, -(2**20), 3):
            target = torch.full((6,), ignored, device=DEVICE)
            target[0] = 1
            loss = F.cross_entropy(logits, target, ignore_index=ignored)
            self.assertTrue(loss.isfinite().item())
        with self.assertRaisesRegex(IndexError, "Target -100 is out of bounds"):
            F.cross_entropy(logits, torch.full((6,), -100, device=DEVICE), ignore_index=7).item()

    def test_of_several_losses_one_is_raised(self):
        logits = torch.randn(6, 5, device=DEVICE)
        with self.assertRaisesRegex(IndexError, "Target (8|9) is out of bounds"):
            for bad in (8, 9):
                F.cross_entropy(logits, torch.full((6,), bad, device=DEVICE))
            torch.hologram.synchronize()
        torch.hologram.synchronize()

    def test_targets_that_are_computed(self):
        logits = torch.randn(6, 5, device=DEVICE)
        target = logits.argmax(1)
        expected = F.cross_entropy(logits.cpu(), target.cpu())
        self.assertEqual(F.cross_entropy(logits, logits.argmax(1)).cpu(), expected)
        with self.assertRaisesRegex(IndexError, "Target (5|6|7|8|9) is out of bounds"):
            F.cross_entropy(logits, target + 5).item()

    def test_eager_raises_at_the_call(self):
        logits = torch.randn(6, 5, device=DEVICE)
        bad = torch.full((6,), 9, device=DEVICE)
        torch.hologram.synchronize()
        with (
            torch.hologram.eager(),
            self.assertRaisesRegex(IndexError, "Target 9 is out of bounds"),
        ):
            F.cross_entropy(logits, bad)
            if ASYNCHRONOUS:
                torch.hologram.synchronize()

    def test_memory_of_checks_is_given_back(self):
        logits = torch.randn(6, 5, device=DEVICE)
        target = torch.zeros(6, dtype=torch.long, device=DEVICE)
        torch.hologram.synchronize()
        before = torch.hologram.memory_allocated()
        for _ in range(50):
            F.cross_entropy(logits, target)
        torch.hologram.synchronize()
        self.assertEqual(torch.hologram.memory_allocated(), before)

    def test_the_end_of_a_process_with_one(self):
        run_python(
            """
            import torch
            logits = torch.randn(6, 5, device="hologram")
            loss = torch.nn.functional.cross_entropy(logits, torch.full((6,), 9).to("hologram"))
            """
        )


instantiate_parametrized_tests(TestLosses)
instantiate_parametrized_tests(TestTargetsOutOfRange)

if __name__ == "__main__":
    run_tests()
