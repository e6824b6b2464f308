"""The stream of recorded operations: what is seen of it, and that results are those of eager mode.

One test for each rule of the window (docs/architecture.md), named after it, and random programs.
"""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import torch
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

hologram = torch.hologram
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def stats(function, *arguments):
    """What a call records and runs, and its result."""
    hologram.flush()
    hologram.reset_stream_stats()
    result = function(*arguments)
    hologram.flush()
    return result, hologram.stream_stats()


class TestStream(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(0)

    def test_a_chain_is_one_pass(self):
        x = torch.randn(1000, device="hologram")
        y, counts = stats(lambda: (x * 2 + 1).relu() * x)
        self.assertEqual((counts["recorded"], counts["passes"]), (4, 1))
        self.assertEqual(counts["stores_elided"], 3)
        self.assertEqual(y.cpu(), (x.cpu() * 2 + 1).relu() * x.cpu())

    def test_views_and_frees_are_not_recorded(self):
        x = torch.randn(4, 6, device="hologram")
        _, counts = stats(lambda: x.view(24)[3:].unsqueeze(0))
        self.assertEqual(counts["recorded"], 0)

    def test_a_read_flushes(self):
        x = torch.ones(3, device="hologram")
        hologram.reset_stream_stats()
        y = x + 1
        self.assertEqual(hologram.stream_stats()["executed"], 0)
        self.assertEqual(y.sum().item(), 6)
        self.assertEqual(hologram.stream_stats()["flushes.read"], 1)

    def test_an_operation_on_other_tensors_flushes_nothing(self):
        x, other = torch.ones(3, device="hologram"), torch.ones(3, device="hologram")
        hologram.flush()
        hologram.reset_stream_stats()
        y = x + 1
        other.sum()
        self.assertEqual(hologram.stream_stats()["executed"], 0)
        self.assertEqual(y.cpu(), torch.full((3,), 2.0))

    def test_synchronize_event_and_flush_are_counted(self):
        x = torch.ones(3, device="hologram")
        for reason, call in {
            "synchronize": hologram.synchronize,
            "user": hologram.flush,
            "event": lambda: hologram.Event().record(),
        }.items():
            hologram.flush()
            hologram.reset_stream_stats()
            x.add_(1)
            call()
            counts = hologram.stream_stats()
            self.assertEqual((counts["executed"], counts[f"flushes.{reason}"]), (1, 1), reason)

    def test_eager_runs_at_once(self):
        x = torch.ones(3, device="hologram")
        with hologram.eager():
            self.assertTrue(hologram.is_eager())
            hologram.reset_stream_stats()
            x + 1
            self.assertEqual(hologram.stream_stats()["flushes.eager"], 1)
        self.assertFalse(hologram.is_eager())

    def test_eager_by_the_environment(self):
        run_python(
            """
            import torch
            assert torch.hologram.is_eager()
            torch.ones(3, device="hologram") + 1
            assert torch.hologram.stream_stats()["flushes.eager"] >= 1
            """,
            env={"HOLOGRAM_EAGER": "1"},
        )

    def test_a_loop_over_parameters_is_a_few_passes(self):
        parameters = [torch.randn(n % 7 + 1, device="hologram") for n in range(200)]
        gradients = [torch.randn_like(p) for p in parameters]
        want = [p.cpu() - 0.1 * g.cpu() for p, g in zip(parameters, gradients, strict=True)]

        def step():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g * 0.1)

        _, counts = stats(step)
        self.assertEqual(counts["recorded"], 400)
        self.assertLessEqual(counts["passes"], 7)
        self.assertEqual([p.cpu() for p in parameters], want)


class TestRules(HologramTestCase):
    def test_01_equal_immediates_are_not_taken_for_granted(self):
        x = torch.tensor([1.0, 2.0], device="hologram")
        for s, t in ((2.0, 2.0), (2.0, 3.0), (0.0, -0.0), (1.0, 5.0), (5.0, 1.0)):
            y = x * s
            z = x * t
            self.assertEqual(y.cpu(), torch.tensor([1.0, 2.0]) * s)
            self.assertEqual(z.cpu(), torch.tensor([1.0, 2.0]) * t)
            self.assertEqual(z.cpu().signbit(), (torch.tensor([1.0, 2.0]) * t).signbit())

    def test_02_every_live_value_is_stored(self):
        a, b = torch.ones(3, device="hologram") * 2, torch.ones(3, device="hologram") * 3
        y = a * b
        z = a * b
        self.assertEqual(y.cpu(), torch.full((3,), 6.0))
        self.assertEqual(z.cpu(), torch.full((3,), 6.0))
        y.add_(1)
        self.assertEqual(z.cpu(), torch.full((3,), 6.0))

    def test_03_a_partial_write_keeps_the_rest(self):
        x = torch.zeros(4, device="hologram")
        x.add_(1)
        x[1:3].mul_(5)
        y = x + 0.5
        x[0:2].sub_(1)
        self.assertEqual(y.cpu(), torch.tensor([1.5, 5.5, 5.5, 1.5]))
        self.assertEqual(x.cpu(), torch.tensor([0.0, 4.0, 5.0, 1.0]))

    def test_04_views_of_one_flat_buffer_merge(self):
        flat = torch.arange(1000.0, device="hologram")
        parts = flat.split(5)

        def step():
            for part in parts:
                part.mul_(2).add_(1)

        _, counts = stats(step)
        self.assertEqual(counts["recorded"], 400)
        self.assertLessEqual(counts["passes"], 4)
        self.assertEqual(flat.cpu(), torch.arange(1000.0) * 2 + 1)

    def test_07_the_order_of_frees_does_not_matter(self):
        for order in ((0, 1), (1, 0)):
            x = torch.ones(3, device="hologram")
            temporaries = [x * 2, x * 3]
            y = temporaries[0] + temporaries[1]
            for index in order:
                temporaries[index] = None
            self.assertEqual(y.cpu(), torch.full((3,), 5.0))

    def test_07_frees_from_another_thread(self):
        for _ in range(20):
            x = torch.ones(100, device="hologram")
            held = [x * 2]
            y = held[0] + 1
            thread = threading.Thread(target=held.clear)
            thread.start()
            z = y * 2
            thread.join()
            self.assertEqual(z.cpu(), torch.full((100,), 6.0))

    def test_08_gradients_are_not_held(self):
        weight = torch.ones(3, device="hologram", requires_grad=True)
        (weight * 2).sum().backward()
        first = weight.grad.data_ptr()
        (weight * 2).sum().backward()
        self.assertEqual(weight.grad.data_ptr(), first)
        self.assertEqual(weight.grad.cpu(), torch.full((3,), 4.0))

    def test_09_a_freed_block_is_kept_until_the_window_has_run(self):
        x = torch.full((1000,), 3.0, device="hologram")
        hologram.flush()
        y = x * 2
        del x
        gc.collect()
        others = [torch.full((1000,), 9.0, device="hologram") for _ in range(50)]
        self.assertEqual(y.cpu(), torch.full((1000,), 6.0))
        del others

    def test_10_memory_that_others_see_is_not_recorded(self):
        array = np.ones(4, dtype=np.float32)
        tensor = hologram.alias_from_cpu(torch.from_numpy(array))
        tensor.add_(1)
        self.assertEqual(array.tolist(), [2.0] * 4)
        mine = torch.ones(4, device="hologram")
        mine.add_(1)
        exported = np.from_dlpack(mine)
        self.assertEqual(exported.tolist(), [2.0] * 4)
        mine.add_(1)
        self.assertEqual(exported.tolist(), [3.0] * 4)

    def test_15_cpu_numbers_are_taken_by_value(self):
        number = torch.tensor(2.0)
        x = torch.ones(3, device="hologram")
        y = x * number
        number.fill_(100)
        self.assertEqual(y.cpu(), torch.full((3,), 2.0))

    def test_15_device_numbers_are_not_read(self):
        number = torch.tensor(2.0, device="hologram")
        x = torch.ones(3, device="hologram")
        y, counts = stats(lambda: x * (number + 1))
        self.assertEqual(counts["flushes.read"], 0)
        self.assertEqual(y.cpu(), torch.full((3,), 3.0))

    def test_17_one_result_for_every_layout(self):
        x = torch.randn(37, 53, device="hologram")
        for function in (torch.exp, torch.tanh, torch.sigmoid, torch.erf):
            self.assertEqual(
                function(x).cpu(), function(x.t()).t().cpu(), rtol=0, atol=0, msg=str(function)
            )
            self.assertEqual(function(x[:, 1:]).cpu(), function(x).cpu()[:, 1:], rtol=0, atol=0)

    def test_19_rounding_is_not_folded(self):
        x = torch.tensor([1.0 + 2**-10], device="hologram")
        self.assertEqual(x.bfloat16().float().cpu(), torch.tensor([1.0]))

    def test_20_lazy_clone_is_a_clone(self):
        x = torch.ones(3, device="hologram")
        y = torch._lazy_clone(x)
        y.add_(1)
        self.assertEqual(x.cpu(), torch.ones(3))

    def test_20_data_ptr_flushes(self):
        x = torch.ones(3, device="hologram")
        x.add_(1)
        hologram.reset_stream_stats()
        x.data_ptr()
        self.assertEqual(hologram.stream_stats()["flushes.read"], 1)


UNARY = ("neg", "abs", "relu", "exp", "tanh", "sigmoid", "sin", "sqrt", "floor", "erf")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")


def run_program(seed: int, device: str, flushes: bool) -> list[torch.Tensor]:
    """Runs the random program of a seed. Returns its tensors on the CPU."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    dtypes = [torch.float32] * 4 + [torch.bfloat16, torch.float64]
    shapes = [(6, 8), (6, 8), (6, 8), (8,), (6, 1), ()]
    tensors = [
        torch.randn(choose.choice(shapes)).to(choose.choice(dtypes)).to(device) for _ in range(4)
    ]
    for _ in range(choose.randint(2, 60)):
        kind = choose.randrange(12)
        x, y = choose.choice(tensors), choose.choice(tensors)
        if kind < 4:
            tensors.append(getattr(torch, choose.choice(BINARY))(x, y))
        elif kind < 6:
            tensors.append(getattr(torch, choose.choice(UNARY))(x))
        elif kind == 6:
            tensors.append(x * choose.choice([0.0, 1.0, -1.0, 0.5, 3.0]) + 1)
        elif kind == 7:
            same = [t for t in tensors if t.shape == x.shape]
            x.add_(choose.choice(same))
        elif kind == 8 and x.dim() == 2:
            low, high = choose.randrange(3), choose.randrange(4, 7)
            x[low:high].mul_(0.5)
            x[:, low:].add_(1)
        elif kind == 9 and x.dim() == 2 and y.shape == x.shape:
            tensors.append(torch.where(x > y, x, y))
            tensors.append((x.t() + y.t()).t())
        elif kind == 10 and len(tensors) > 4:
            tensors.pop(choose.randrange(len(tensors)))
        elif kind == 11 and flushes and choose.random() < 0.3:
            if device == "hologram":
                hologram.flush() if choose.random() < 0.5 else x.sum().item()
            else:
                choose.random()
        if len(tensors) > 12:
            tensors.pop(choose.randrange(len(tensors)))
    return [tensor.cpu() for tensor in tensors]


class TestRandomPrograms(HologramTestCase):
    """tests of csrc/test/test_window.cpp go further; these come through torch."""

    @parametrize("part", range(4))
    def test_fused_equals_eager(self, part):
        for seed in range(part * 250, (part + 1) * 250):
            fused = run_program(seed, "hologram", flushes=True)
            with hologram.eager():
                eager = run_program(seed, "hologram", flushes=True)
            self.assertEqual(len(fused), len(eager), f"seed {seed}")
            for one, other in zip(fused, eager, strict=True):
                self.assertEqual(
                    one,
                    other,
                    rtol=0,
                    atol=0,
                    equal_nan=True,
                    msg=lambda m, s=seed: f"seed {s}: {m}",
                )


instantiate_parametrized_tests(TestRandomPrograms)

if __name__ == "__main__":
    run_tests()
