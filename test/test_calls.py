"""Kernels of torch's that are recorded: matrix products."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from common import ASYNCHRONOUS, CUDA_KERNELS, ROOT, HologramTestCase
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.append(str(ROOT / "benchmarks"))  # after test/, which has a common.py as well
from steps import GPT

# Of a program of an asynchronous device, which is to begin while the next one is recorded.
MOST_CALLS = 16


def stats() -> dict[str, int]:
    return torch.hologram.stream_stats()


def flushes() -> int:
    return sum(count for name, count in stats().items() if name.startswith("flushes."))


def mlp(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)
    ).to(device)


def small_gpt() -> nn.Module:
    return GPT(width=32, layers=2, heads=4, length=16)


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class TestPrograms(HologramTestCase):
    """What is marked is about kernels of torch's that are a part of programs: the CPU's."""

    def setUp(self):
        super().setUp()
        torch.hologram.synchronize()
        torch.hologram.reset_stream_stats()

    @pytest.mark.cpu_kernels
    def test_products_end_no_program(self):
        x = torch.rand(4, 6, device="hologram")
        y = (x @ x.t()).exp() @ x
        self.assertEqual(flushes(), 0)
        wanted = (x.cpu() @ x.cpu().t()).exp() @ x.cpu()
        self.assertEqual(y, wanted, atol=1e-5, rtol=1e-5)
        self.assertEqual(stats()["calls"], 2)

    @pytest.mark.cpu_kernels
    def test_training_step_is_at_most_two_programs(self):
        model = mlp("hologram")
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.rand(16, 20, device="hologram")
        target = torch.arange(16, device="hologram") % 5
        for _ in range(3):
            torch.hologram.synchronize()
            torch.hologram.reset_stream_stats()
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
            torch.hologram.synchronize()
            self.assertLessEqual(flushes(), 2)
            self.assertEqual(stats()["calls"], 8)

    def check_steps(self, model: nn.Module, loss_of, copies: int = 0) -> None:
        """`copies`: of strided gradients, which an asynchronous queue makes between programs."""
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(4):
            torch.hologram.synchronize()
            torch.hologram.reset_stream_stats()
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()
            torch.hologram.synchronize()
            # The results of a kernel that has never been called are not known.
            if step != 0:
                full, kernel = (stats()[f"flushes.{why}"] for why in ("full", "kernel"))
                self.assertLessEqual(full, stats()["calls"] // MOST_CALLS if ASYNCHRONOUS else 0)
                self.assertLessEqual(kernel, copies if ASYNCHRONOUS else 0)
                self.assertLessEqual(flushes() - full - kernel, 2)

    @pytest.mark.cpu_kernels
    def test_a_program_ends_with_its_step(self):
        """A loop that reads nothing makes the same program at every step, and holds one step."""
        model = mlp("hologram")
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.rand(16, 20, device="hologram")
        held = []
        for _ in range(6):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            held.append(torch.hologram.memory_allocated())
        self.assertEqual((flushes(), stats()["flushes.step"]), (6, 6))
        self.assertLessEqual(stats()["plan_misses"], 3)
        self.assertEqual(held[2:], held[2:3] * 4)

    def test_steps_without_calls_end_no_program(self):
        weight = torch.rand(8, device="hologram").requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        self.assertEqual(flushes(), 0)

    def test_numbers_in_steps(self):
        dtypes = (torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16)
        for arguments in ((5,), (2, 9), (1, 12, 3), (-4, 4, 5)):
            for dtype in (None, *dtypes):
                made = torch.arange(*arguments, dtype=dtype, device="hologram")
                self.assertEqual(flushes(), 0)
                self.assertEqual(made, torch.arange(*arguments, dtype=dtype))
                torch.hologram.reset_stream_stats()

    def test_numbers_in_steps_that_torch_counts(self):
        for arguments in ((5.0,), (0,), (3, 0, -1), (0, 1, 0.25), (1, 2**40, 2**38)):
            made = torch.arange(*arguments, device="hologram")
            self.assertEqual(made, torch.arange(*arguments))
        for arguments in ((3, 0), (0, 3, 0), (0, 3, -1), (0, float("inf"))):
            with self.assertRaises(RuntimeError) as wanted:
                torch.arange(*arguments)
            with self.assertRaises(RuntimeError) as got:
                torch.arange(*arguments, device="hologram")
            self.assertEqual(str(got.exception), str(wanted.exception))

    @pytest.mark.cpu_kernels
    def test_one_hot(self):
        classes = torch.arange(12) % 5
        ours = classes.to("hologram")
        F.one_hot(ours, 5)  # the first call of its kernel
        torch.hologram.synchronize()
        torch.hologram.reset_stream_stats()
        made = F.one_hot(ours, 5) * 2
        self.assertEqual(flushes(), 0)
        self.assertEqual(made, F.one_hot(classes, 5) * 2)

    @pytest.mark.cpu_kernels
    def test_step_of_a_gpt_is_few_programs(self):
        torch.manual_seed(0)
        model = small_gpt().to("hologram")
        tokens = torch.randint(50, (2, 16)).to("hologram")
        self.check_steps(
            model,
            lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()),
            copies=2,  # one in each layer
        )

    @pytest.mark.cpu_kernels
    def test_step_of_a_convolutional_net_is_few_programs(self):
        torch.manual_seed(0)
        model = Digits().to("hologram")
        x, target = torch.rand(4, 1, 8, 8).to("hologram"), torch.arange(4).to("hologram")
        self.check_steps(model, lambda: F.cross_entropy(model(x), target))

    @parametrize("make", [small_gpt, Digits])
    def test_models_train_as_on_the_cpu(self, make):
        """Without dropout, whose numbers are the device's own."""
        torch.manual_seed(0)
        start = make()
        inputs = torch.randint(50, (2, 16)) if make is small_gpt else torch.rand(4, 1, 8, 8)
        target = inputs.flatten() if make is small_gpt else torch.arange(4)
        runs = {}
        for device in ("cpu", "hologram"):
            model = copy.deepcopy(start).to(device)
            for module in model.modules():
                if not isinstance(module, nn.BatchNorm2d):
                    module.training = False
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            losses = []
            for _ in range(5):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs.to(device)).flatten(0, -2), target.to(device))
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().cpu())
            runs[device] = torch.stack(losses)
        self.assertEqual(runs["hologram"], runs["cpu"])

    def test_training_follows_the_cpu(self):
        runs = {}
        for device in ("cpu", "hologram"):
            model = mlp("cpu").to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.linspace(-1, 1, 16 * 20).view(16, 20).to(device)
            target = (torch.arange(16) % 5).to(device)
            losses = []
            for _ in range(5):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().cpu())
            runs[device] = torch.stack(losses)
        self.assertEqual(runs["hologram"], runs["cpu"])

    @pytest.mark.cpu_kernels
    def test_bias_and_activation_are_one_pass(self):
        layer = nn.Linear(8, 16).to("hologram")
        x = torch.rand(4, 8).to("hologram")
        with torch.no_grad():
            y = F.gelu(layer(x))
        torch.hologram.synchronize()
        self.assertEqual((stats()["calls"], stats()["passes"]), (1, 1))
        self.assertEqual(y, F.gelu(layer.cpu()(x.cpu())))

    def counted(self, function) -> tuple[int, int]:
        """Calls and passes of what a function records."""
        torch.hologram.synchronize()
        torch.hologram.reset_stream_stats()
        kept = function()  # noqa: F841 what nobody keeps is not made
        torch.hologram.synchronize()
        return stats()["calls"], stats()["passes"]

    @pytest.mark.cpu_kernels
    def test_bias_activation_dropout_and_residual_are_one_pass(self):
        layer = nn.Linear(16, 16).to("hologram")
        x = torch.rand(4, 16).to("hologram")
        with torch.no_grad():
            run = lambda: x + F.dropout(F.gelu(layer(x)), 0.5)  # noqa: E731
            self.assertEqual(self.counted(run), (1, 1))

    @pytest.mark.cpu_kernels
    def test_batch_norm_in_inference_is_in_its_neighbours_pass(self):
        x = torch.rand(2, 8, 6, 6).to("hologram")
        model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)).to("hologram")
        model.eval()
        with torch.no_grad():
            run = lambda: F.relu(model(x) + x) * 2  # noqa: E731
            run()
            # The channels' factors, and the elements.
            self.assertEqual(self.counted(run), (1, 2))

    @pytest.mark.cpu_kernels
    def test_backward_of_products_copies_nothing(self):
        """The transposes of a backward are views."""
        x, w, v = (torch.rand(6, 6).to("hologram").requires_grad_() for _ in range(3))

        def run() -> None:
            ((x @ w.t()) @ v).backward(torch.ones(6, 6, device="hologram"))
            x.grad = w.grad = v.grad = None

        self.assertEqual(self.counted(run), (6, 1))  # the ones

    def test_a_write_after_a_product_comes_after_it(self):
        x = torch.rand(4, 4, device="hologram")
        before = x.cpu()
        y = x @ x
        x.zero_()
        self.assertEqual(y, before @ before)
        self.assertEqual(x, torch.zeros(4, 4))

    def test_memory_that_others_see(self):
        """What somebody else may look at is computed at once."""
        x = torch.rand(4, 4, device="hologram")
        before = x.cpu()
        seen = torch.from_dlpack(x)
        y = x @ x
        seen.zero_()
        self.assertEqual(y, before @ before)


class TestProducts(HologramTestCase):
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_layouts(self, dtype):
        torch.manual_seed(0)
        # Sums that cancel, which are rounded to the dtype before or after the bias is added.
        rough = {"rtol": 2e-2, "atol": 2e-2} if CUDA_KERNELS and dtype.itemsize == 2 else {}
        a, b = torch.randn(6, 8).to(dtype), torch.randn(8, 10).to(dtype)
        for left in (
            a,
            a.t().contiguous().t(),
            torch.randn(12, 16).to(dtype)[::2, ::2],
            a[:1].expand(6, 8),
        ):
            for right in (b, b.t().contiguous().t(), b[:, :1].expand(8, 10)):
                for bias in (torch.randn(10), torch.randn(1), torch.randn(6, 1), torch.randn(())):
                    bias = bias.to(dtype)
                    wanted = torch.addmm(bias, left, right)
                    device = [t.to("hologram") for t in (bias, left, right)]
                    self.assertEqual(torch.addmm(*device), wanted, **rough)
                    self.assertEqual(device[1] @ device[2], left @ right, **rough)

    def test_factors(self):
        x = torch.rand(3, 3)
        mine = x.to("hologram")
        for beta, alpha in ((2, 1), (0, 1), (1, 0.5)):
            wanted = torch.addmm(x[0], x, x, beta=beta, alpha=alpha)
            self.assertEqual(torch.addmm(mine[0], mine, mine, beta=beta, alpha=alpha), wanted)

    def test_batches(self):
        a, b = torch.rand(2, 3, 4), torch.rand(2, 4, 5)
        self.assertEqual(torch.bmm(a.to("hologram"), b.to("hologram")), torch.bmm(a, b))

    def test_nothing(self):
        for shapes in (((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0))):
            a, b = (torch.ones(shape) for shape in shapes)
            self.assertEqual(a.to("hologram") @ b.to("hologram"), a @ b)

    def test_bad_input(self):
        x, y = torch.rand(2, 3, device="hologram"), torch.rand(2, 3, device="hologram")
        with self.assertRaisesRegex(RuntimeError, r"cannot be multiplied \(2x3 and 2x3\)"):
            x @ y
        with self.assertRaisesRegex(RuntimeError, "same dtype"):
            torch.mm(x, y.t().double())
        with self.assertRaisesRegex(RuntimeError, "must be a matrix"):
            torch.mm(x, y[0])
        with self.assertRaisesRegex(RuntimeError, "device"):
            torch.mm(x, torch.rand(3, 2))
        with self.assertRaisesRegex(RuntimeError, "expanded size|expand"):
            torch.addmm(torch.rand(5, device="hologram"), x, y.t())
        self.assertEqual((x @ y.t()).shape, (2, 2))


instantiate_parametrized_tests(TestPrograms)
instantiate_parametrized_tests(TestProducts)

if __name__ == "__main__":
    run_tests()
