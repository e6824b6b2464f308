"""The device used by several threads at once."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch
from common import ASYNCHRONOUS, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_hologram import _C

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 8


def in_threads(work: Callable[[int], object], threads: int = THREADS) -> list:
    """Runs work(number) in every thread, starting them at one moment.

    Returns:
        the results, by number.

    Raises:
        the first exception of a thread.
    """
    barrier = threading.Barrier(threads)
    results: list = [None] * threads
    errors = []

    def run(number: int) -> None:
        try:
            barrier.wait(60)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(60)
        if thread.is_alive():
            raise AssertionError("a thread did not end")
    if errors:
        raise errors[0]
    return results


class ThreadsTestCase(HologramTestCase):
    """Threads take turns as often as possible, and leave no memory behind."""

    def setUp(self) -> None:
        super().setUp()
        self.interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        gc.collect()
        torch.hologram.synchronize()
        self.allocated = torch.hologram.memory_allocated()

    def tearDown(self) -> None:
        sys.setswitchinterval(self.interval)
        gc.collect()
        torch.hologram.synchronize()
        # A thread of the autograd engine wakes the caller of grad() before it lets go of its own
        # list of the gradients (GraphTask::mark_as_completed_and_run_post_processing): a moment
        # passes until the last one is freed, a long one where the thread loses its processor.
        deadline = time.monotonic() + 30
        while torch.hologram.memory_allocated() != self.allocated and time.monotonic() < deadline:
            time.sleep(1e-3)
        self.assertEqual(torch.hologram.memory_allocated(), self.allocated)
        super().tearDown()


class TestAliases(ThreadsTestCase):
    @pytest.mark.host_memory
    def test_one_storage_has_one_alias(self):
        for _ in range(40):
            x = torch.arange(16.0, device="hologram")

            def alias(number, x=x):
                return _C.alias_as_cpu(x[number:])

            aliases = in_threads(alias)
            storages = [a.untyped_storage() for a in aliases]
            self.assertEqual({s._cdata for s in storages}, {storages[0]._cdata})
            self.assertEqual({s.data_ptr() for s in storages}, {x.untyped_storage().data_ptr()})
            for number, a in enumerate(aliases):
                self.assertEqual(a, torch.arange(number, 16.0))

    @pytest.mark.host_memory
    def test_one_alias_of_many_storages(self):
        """As above, many at a time, so that threads meet without Python's lock being held long."""
        for _ in range(3):
            tensors = [torch.full((2,), float(i), device="hologram") for i in range(100)]

            def alias(number, tensors=tensors):
                order = tensors if number % 2 else tensors[::-1]
                made = [_C.alias_as_cpu(x) for x in order]
                return made if number % 2 else made[::-1]

            aliases = in_threads(alias)
            for i, (x, *same) in enumerate(zip(tensors, *aliases, strict=True)):
                self.assertEqual(len({a.untyped_storage()._cdata for a in same}), 1)
                self.assertEqual({a.data_ptr() for a in same}, {x.data_ptr()})
                self.assertEqual(same[0].tolist(), [i, i])

    @pytest.mark.host_memory
    def test_made_by_operators(self):
        """Operators without a kernel of the device make the alias, outside of Python's lock."""
        for _ in range(40):
            x = torch.arange(64.0, device="hologram").flip(0)
            before = torch.hologram.memory_allocated()
            results = in_threads(lambda number, x=x: x.flip(0)[-1].item())
            self.assertEqual(results, [63.0] * THREADS)
            self.assertEqual(torch.hologram.memory_allocated(), before)
            self.assertEqual(_C.alias_as_cpu(x).data_ptr(), x.data_ptr())

    @pytest.mark.host_memory
    def test_from_the_cpu(self):
        for _ in range(15):
            plain = torch.arange(16.0)
            made = in_threads(lambda number, plain=plain: _C.alias_from_cpu(plain, 0))
            self.assertEqual({x.data_ptr() for x in made}, {plain.data_ptr()})
            plain.fill_(7)
            for x in made:
                self.assertEqual(x.cpu(), plain)

    @pytest.mark.host_memory
    def test_outlives_the_tensor(self):
        """Tensors and aliases of one storage are dropped by all threads, in any order."""
        for _ in range(25):
            x = torch.arange(16.0, device="hologram")
            kept = [[x.view(4, 4), _C.alias_as_cpu(x)] for _ in range(THREADS)]
            del x

            def drop(number, kept=kept):
                tensors = kept[number]
                tensors.pop(number % 2)
                total = tensors[0].sum().item()
                tensors.clear()
                return total

            self.assertEqual(in_threads(drop), [120.0] * THREADS)
            self.assertEqual(torch.hologram.memory_allocated(), self.allocated)


class TestMemory(ThreadsTestCase):
    def test_allocate_and_free(self):
        def work(number):
            live = {}
            state = number + 1
            for step in range(200):
                state = (state * 1103515245 + 12345) % 2**31
                if state % 3 == 0 and live:
                    key = next(iter(live))
                    x = live.pop(key)
                    self.assertTrue(bool((x == key).all()), "somebody else wrote here")
                else:
                    size = state % 20000 + 1
                    live[step] = torch.full((size,), step, dtype=torch.int32, device="hologram")
            for key, x in live.items():
                self.assertTrue(bool((x == key).all()), "somebody else wrote here")

        in_threads(work)

    def test_freed_by_another_thread(self):
        made = in_threads(lambda number: [torch.ones(1000, device="hologram") for _ in range(100)])
        self.assertEqual(len({x.data_ptr() for part in made for x in part}), 100 * THREADS)
        self.assertGreaterEqual(
            torch.hologram.memory_allocated() - self.allocated, 100 * THREADS * 4000
        )
        in_threads(lambda number: made[(number + 1) % THREADS].clear())

    def test_cache_emptied_meanwhile(self):
        def work(number):
            for step in range(30):
                if number == 0:
                    torch.hologram.empty_cache()
                    torch.hologram.memory_stats()
                else:
                    x = torch.full((5000 * number,), step, device="hologram")
                    self.assertEqual(x.sum().item(), 5000 * number * step)

        in_threads(work)

    def test_resize(self):
        def work(number):
            x = torch.full((4,), number, device="hologram")
            for size in range(4, 3000, 50):
                x.resize_(size)
                self.assertEqual(x[:4].tolist(), [number] * 4)

        in_threads(work)


class TestOperators(ThreadsTestCase):
    def test_in_place_on_disjoint_tensors(self):
        def work(number):
            x = torch.zeros(500, device="hologram")
            for _ in range(100):
                x.add_(number).hypot_(x).zero_().add_(number).mul_(2)
            return x

        for number, x in enumerate(in_threads(work)):
            self.assertEqual(x.cpu(), torch.full((500,), 2.0 * number))

    def test_in_place_on_disjoint_views(self):
        x = torch.zeros(THREADS, 300, device="hologram")

        def work(number):
            row = x[number]
            for step in range(100):
                row.add_(1.0)
                if step % 10 == 0:
                    row.copy_(row.sort().values)
            return row.data_ptr()

        pointers = in_threads(work)
        self.assertEqual(pointers, [x.data_ptr() + 1200 * i for i in range(THREADS)])
        self.assertEqual(x.cpu(), torch.full((THREADS, 300), 100.0))

    def test_reading_one_tensor(self):
        a = torch.rand(40, 40, device="hologram")
        expected = (a.cpu() @ a.cpu()).sort().values

        def work(number):
            for _ in range(30):
                self.assertEqual((a @ a).sort().values.cpu(), expected)

        in_threads(work)

    def test_copies(self):
        plain = torch.arange(40000.0)

        def work(number):
            for _ in range(30):
                x = (plain + number).to("hologram", non_blocking=True)
                self.assertTrue(torch.equal(x.cpu(), plain + number))

        in_threads(work)

    def test_errors_stay_in_their_thread(self):
        def work(number):
            for _ in range(50):
                x = torch.ones(3, device="hologram")
                if number % 2:
                    with self.assertRaisesRegex(RuntimeError, "must match the size"):
                        x + torch.ones(2, device="hologram")
                    with self.assertRaises(IndexError):
                        x.sort(dim=4)
                else:
                    self.assertEqual((x + x).sort().values.tolist(), [2.0] * 3)

        in_threads(work)

    def test_grad_mode_is_of_the_thread(self):
        def work(number):
            x = torch.ones(3, device="hologram", requires_grad=True)
            for _ in range(50):
                with torch.set_grad_enabled(number % 2 == 0):
                    self.assertEqual(x.cumsum(0).requires_grad, number % 2 == 0)
                    self.assertEqual((x * 2).requires_grad, number % 2 == 0)

        in_threads(work)


def backward(device_threads: bool, work: Callable[[int], object]) -> Callable[[int], object]:
    """The work, its backward passes on a thread of their own or on the one that calls it."""

    def run(number: int) -> object:
        torch.empty(1, device="hologram")
        torch.autograd.set_multithreading_enabled(device_threads)
        return work(number)

    return run


class TestBackward(ThreadsTestCase):
    def test_thread(self):
        """A backward pass runs on the thread that calls it, unless torch is told otherwise.

        Of a device that computes while the host goes on it runs where torch has it: on another.
        """

        def thread_of_backward():
            x, found = torch.ones(2, device="hologram", requires_grad=True), []
            x.register_hook(lambda _: found.append(threading.get_ident()))
            (x * 2).sum().backward()
            return found

        check = self.assertNotEqual if ASYNCHRONOUS else self.assertEqual

        def work(number):
            check(thread_of_backward(), [threading.get_ident()])
            with torch.autograd.set_multithreading_enabled(True):
                self.assertNotEqual(thread_of_backward(), [threading.get_ident()])
            check(thread_of_backward(), [threading.get_ident()])

        in_threads(work)

    def test_torchs_switch_stands_as_it_stood(self):
        """Graphs of the CPU, and whoever asks outside a pass, see nothing of the device's ways."""
        is_on = torch.autograd.is_multithreading_enabled

        def seen_in_backward(loss, x):
            found = []
            here = threading.get_ident()
            hook = x.register_hook(lambda _: found.append((is_on(), threading.get_ident() == here)))
            loss.backward()
            hook.remove()
            return found

        of_the_device = [(ASYNCHRONOUS, not ASYNCHRONOUS)]

        def work(number):
            x = torch.ones(2, device="hologram", requires_grad=True)
            y = torch.ones(2, requires_grad=True)
            self.assertTrue(is_on())
            self.assertEqual(seen_in_backward((y * 2).sum(), y), [(True, True)])
            for loss in (
                (x * 2).sum(),
                (x * 2).sum().cpu() * 3 + 1,  # starts on the CPU
                (x * 2 + y.to("hologram")).sum().cpu() + (y * 2).sum(),
            ):
                self.assertEqual(seen_in_backward(loss, x), of_the_device)
                self.assertTrue(is_on())
            self.assertEqual(torch.autograd.grad((x * 2).sum(), x)[0].cpu(), torch.full((2,), 2.0))
            loss = (x * 2).sum()
            loss.backward()
            with self.assertRaisesRegex(RuntimeError, "second time"):
                loss.backward()
            self.assertTrue(is_on())  # after an error, too
            edge = torch.autograd.graph.get_gradient_edge((x * 2).sum())
            torch.autograd.backward(edge, torch.ones((), device="hologram"))
            with torch.autograd.set_multithreading_enabled(False):
                self.assertEqual(seen_in_backward((x * 2).sum(), x), [(False, True)])
                self.assertFalse(is_on())
            self.assertEqual(seen_in_backward((x * 2).sum(), x), of_the_device)

        in_threads(work)

    def test_the_switch_as_a_function(self):
        def work(number):
            x = torch.ones(2, device="hologram", requires_grad=True)
            found = []
            x.register_hook(lambda _: found.append(threading.get_ident()))
            torch.autograd.set_multithreading_enabled(True)
            (x * 2).sum().backward()
            self.assertNotEqual(found, [threading.get_ident()])
            torch.autograd.set_multithreading_enabled(False)
            (x * 2).sum().backward()
            self.assertEqual(found[1:], [threading.get_ident()])

        in_threads(work)

    @parametrize("device_threads", (False, True))
    def test_separate_graphs(self, device_threads):
        def work(number):
            for _ in range(20):
                x = torch.full((20,), float(number), device="hologram", requires_grad=True)
                (x * x).cumsum(0)[-1].backward()
                self.assertEqual(x.grad.cpu(), torch.full((20,), 2.0 * number))

        in_threads(backward(device_threads, work))

    @parametrize("device_threads", (False, True))
    def test_shared_weight(self, device_threads):
        weight = torch.ones(10, 10, device="hologram", requires_grad=True)

        def work(number):
            for _ in range(20):
                x = torch.full((1, 10), float(number), device="hologram")
                (grad,) = torch.autograd.grad((x @ weight).sum(), weight)
                self.assertEqual(grad.cpu(), torch.full((10, 10), float(number)))

        in_threads(backward(device_threads, work))
        self.assertIsNone(weight.grad)

    @parametrize("device_threads", (False, True))
    def test_accumulation(self, device_threads):
        """No gradient is lost."""
        weight = torch.ones(10, device="hologram", requires_grad=True)

        def work(number):
            for _ in range(25):
                (weight * (number + 1)).sum().backward()

        in_threads(backward(device_threads, work))
        expected = 25.0 * sum(range(1, THREADS + 1))
        self.assertEqual(weight.grad.cpu(), torch.full((10,), expected))

    @parametrize("device_threads", (False, True))
    def test_one_graph(self, device_threads):
        """A graph that is kept is run through by all threads."""
        x = torch.rand(20, device="hologram", requires_grad=True)
        loss = x.sin().cumsum(0).sum()
        (expected,) = torch.autograd.grad(loss, x, retain_graph=True)

        def work(number):
            for _ in range(20):
                (grad,) = torch.autograd.grad(loss, x, retain_graph=True)
                self.assertEqual(grad.cpu(), expected.cpu(), rtol=0, atol=0)

        in_threads(backward(device_threads, work))

    @parametrize("device_threads", (False, True))
    def test_function_that_calls_backward(self, device_threads):
        class Nested(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                with torch.enable_grad():
                    y = x.detach().requires_grad_()
                    (y * y).sum().backward()
                return y.grad * grad

        def work(number):
            for _ in range(10):
                x = torch.full((5,), float(number), device="hologram", requires_grad=True)
                Nested.apply(x).sum().backward()
                self.assertEqual(x.grad.cpu(), torch.full((5,), 2.0 * number))

        in_threads(backward(device_threads, work))

    @parametrize("device_threads", (False, True))
    def test_training(self, device_threads):
        x, target = torch.rand(16, 4), torch.rand(16, 1)

        def train(device):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
            )
            weights = {k: torch.full_like(v, 0.1) for k, v in model.state_dict().items()}
            model.load_state_dict(weights)
            model.to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(5):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x.to(device)), target.to(device)).backward()
                optimizer.step()
            return {k: v.cpu() for k, v in model.state_dict().items()}

        expected = train("cpu")
        for state in in_threads(
            backward(device_threads, lambda number: train("hologram")), threads=4
        ):
            self.assertEqual(state, expected)


class TestGenerators(ThreadsTestCase):
    @parametrize("draw", ["rand", "randint", "randperm"])
    def test_shared(self, draw):
        """The draws of all threads together are those of one thread, in some order."""
        count = 20

        def one(generator):
            options = {"device": "hologram", "generator": generator}
            x = {
                "rand": lambda: torch.rand(16, dtype=torch.float64, **options),
                "randint": lambda: torch.randint(2**40, (16,), **options),
                "randperm": lambda: torch.randperm(100, **options),
            }[draw]()
            return tuple(x.tolist())

        generator = torch.Generator(device="hologram").manual_seed(3)
        alone = [one(generator) for _ in range(count * THREADS)]
        generator.manual_seed(3)
        together = in_threads(lambda number: [one(generator) for _ in range(count)])
        self.assertEqual(sorted(x for part in together for x in part), sorted(alone))

    def test_default(self):
        torch.manual_seed(0)
        alone = [torch.rand(8, device="hologram").tolist() for _ in range(20 * THREADS)]
        torch.manual_seed(0)
        together = in_threads(
            lambda number: [torch.rand(8, device="hologram").tolist() for _ in range(20)]
        )
        self.assertEqual(sorted(x for part in together for x in part), sorted(alone))

    def test_separate(self):
        def draw(number):
            generator = torch.Generator(device="hologram").manual_seed(number)
            return [
                torch.randn(20, device="hologram", generator=generator).tolist() for _ in range(30)
            ]

        together = in_threads(draw)
        self.assertEqual(together, [draw(number) for number in range(THREADS)])

    def test_state_read_meanwhile(self):
        """A state read while others draw is one that was there between two draws."""
        generator = torch.Generator(device="hologram").manual_seed(1)

        def draw(source):
            return torch.rand(16, device="hologram", generator=source).tolist()

        sequence = [draw(generator) for _ in range(25 * (THREADS - 1) + 1)]
        generator.manual_seed(1)

        def work(number):
            if number:
                return [draw(generator) for _ in range(25)]
            return [generator.get_state() for _ in range(25)]

        for state in in_threads(work)[0]:
            other = torch.Generator(device="hologram")
            other.set_state(state)
            self.assertIn(draw(other), sequence)


class TestDeviceAndStream(ThreadsTestCase):
    def test_current_stream_is_of_the_thread(self):
        before = torch.hologram.current_stream()

        def work(number):
            self.assertEqual(torch.hologram.current_stream(), torch.hologram.default_stream())
            stream = torch.hologram.Stream()
            with torch.hologram.stream(stream):
                for _ in range(50):
                    self.assertEqual(torch.hologram.current_stream(), stream)
                    torch.ones(3, device="hologram").cumsum(0)
            self.assertEqual(torch.hologram.current_stream(), torch.hologram.default_stream())

        in_threads(work)
        self.assertEqual(torch.hologram.current_stream(), before)

    def test_report(self):
        torch.hologram.reset_fallback_report()
        x = torch.rand(5, device="hologram")

        def work(number):
            for _ in range(100):
                x.erfinv()

        in_threads(work)
        calls = {row.operator: row.calls for row in torch.hologram.fallback_report().rows}
        self.assertEqual(calls["aten::erfinv"], 100 * THREADS)


instantiate_parametrized_tests(TestBackward)
instantiate_parametrized_tests(TestGenerators)

if __name__ == "__main__":
    run_tests()
