"""The stream of recorded operations: what is seen of it, and that results are those of eager mode.

One test for each rule of the window (docs/architecture.md), named after it. Random programs are in
test_programs.py; of rule 16, what a failed producer means for its readers in test_flush_errors.py.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time

import numpy as np
import pytest
import torch
from common import GPUS, HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import run_tests

hologram = torch.hologram
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def stats(function, *arguments):
    """What a call records and runs, and its result."""
    hologram.flush()
    hologram.reset_stream_stats()
    result = function(*arguments)
    hologram.flush()
    return result, hologram.stream_stats()


def mode(at_once: bool):
    return hologram.eager() if at_once else contextlib.nullcontext()


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


class TestPlans(HologramTestCase):
    def test_plans_are_small_and_given_back(self):
        x = torch.ones(3, 4000, device="hologram")

        def step():
            for column in x.unbind(1):
                column.add_(1)
            hologram.flush()

        hologram.empty_cache()
        self.assertEqual(hologram.stream_stats()["plan_bytes"], 0)
        for _ in range(3):
            step()
        held = hologram.stream_stats()["plan_bytes"]
        self.assertTrue(4000 * 16 < held < 1 << 20, held)
        hologram.reset_stream_stats()
        step()
        counts = hologram.stream_stats()
        self.assertEqual((counts["plan_hits"], counts["plan_bytes"]), (1, held))
        hologram.empty_cache()
        self.assertEqual(hologram.stream_stats()["plan_bytes"], 0)
        step()
        self.assertEqual(x.cpu(), torch.full((3, 4000), 6.0))


class TestRules(HologramTestCase):
    def test_01_equal_immediates_are_not_taken_for_granted(self):
        x = torch.tensor([1.0, 2.0], device="hologram")
        for s, t in ((2.0, 2.0), (2.0, 3.0), (0.0, -0.0), (1.0, 5.0), (5.0, 1.0)):
            y = x * s
            z = x * t
            self.assertEqual(y.cpu(), torch.tensor([1.0, 2.0]) * s)
            self.assertEqual(z.cpu(), torch.tensor([1.0, 2.0]) * t)
            self.assertEqual(z.cpu().signbit(), (torch.tensor([1.0, 2.0]) * t).signbit())

    def test_what_is_broadcast_by_hand_is_one_element(self):
        """As the gradient of a sum is, also beside an operand with gaps."""
        number = torch.tensor(3.0)
        for x in (torch.randn(70), torch.randn(7, 10).t()[::2]):
            on = [x.to("hologram"), number.to("hologram")]
            explained = torch.hologram.explain(
                lambda x, number: x * number.expand(x.shape), on[0], on[1]
            )
            code = explained.flushes[-1].passes[-1].code
            self.assertEqual([line.endswith("f32[]") for line in code], [False, True, False, False])
            self.assertEqual(explained.result.cpu(), x * number)

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

    def test_04_columns_of_one_matrix_merge(self):
        """Interleaved views: their extents overlap, their elements do not."""
        x = torch.ones(3, 500, device="hologram")

        def step():
            for t in range(500):
                x[:, t].mul_(t + 2)  # none by 1, which is no operation

        _, counts = stats(step)
        self.assertEqual((counts["recorded"], counts["passes"]), (500, 1))
        self.assertEqual(x.cpu(), (torch.arange(500.0) + 2).expand(3, 500))

    def test_04_time_grows_with_the_number_of_views(self):
        def columns(n):
            x = torch.ones(8, n, device="hologram")
            parts = x.unbind(1)
            hologram.flush()
            start = time.thread_time()
            for _ in range(4000 // n):
                for part in parts:
                    part.add_(1)
                hologram.flush()
            return time.thread_time() - start

        few = min(columns(100) for _ in range(3))
        self.assertLess(min(columns(4000) for _ in range(3)), 4 * few)

    def test_04_views_that_are_only_read_cost_the_same_each(self):
        def steps(n):
            s = torch.zeros(16, device="hologram")
            for x, y in zip(a[:n], b[:n], strict=True):
                s = s * x + y
            hologram.flush()
            return s

        a, b = (torch.rand(16, 2000, device="hologram").unbind(1) for _ in range(2))
        hologram.empty_cache()
        times = {200: [], 2000: []}
        for _ in range(5):
            for n in times:
                start = time.thread_time()
                steps(n)
                times[n].append((time.thread_time() - start) / n)
        self.assertLess(min(times[2000]), 3 * min(times[200]))
        # No pairs of views. On a GPU each group of about 25 operations counts 4 KiB, and each of
        # its nodes 64 bytes, for its code.
        self.assertLess(hologram.stream_stats()["plan_bytes"], 2200 * (900 if GPUS else 400))
        fused = steps(2000)
        with hologram.eager():
            self.assertEqual(fused, steps(2000), rtol=0, atol=0)

    def test_05_random_draws_are_not_merged(self):
        x = torch.ones(100, device="hologram")

        def draw():
            torch.manual_seed(7)
            first = x * 2 + torch.rand_like(x)
            second = x * 2 + torch.rand_like(x)
            return first.cpu(), second.cpu()

        first, second = draw()
        self.assertNotEqual(first, second)
        # The draws take their numbers in the order of the calls, whenever they are executed.
        with hologram.eager():
            self.assertEqual(draw(), (first, second), rtol=0, atol=0)

    def test_06_one_plan_serves_many_tensors(self):
        def chain(x, s):
            return ((x * s + 1).relu() - x).cpu()

        hologram.reset_stream_stats()
        for n in (3, 100, 7, 5000, 1):
            for s in (2.0, 0.5):
                x = torch.randn(n, device="hologram")
                wanted = (x.cpu() * s + 1).relu() - x.cpu()
                self.assertEqual(chain(x, s), wanted, rtol=0, atol=0)
        self.assertGreaterEqual(hologram.stream_stats()["plan_hits"], 6)

        # Two threads at once: what is bound to a plan belongs to the flush.
        errors = []

        def work(number):
            x = torch.full((50,), float(number), device="hologram")
            wanted = (x.cpu() * number + 1).relu() - x.cpu()
            for _ in range(200):
                if not torch.equal(chain(x, float(number)), wanted):
                    errors.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in (2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

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

    @pytest.mark.host_memory
    def test_10_instructions_on_memory_that_others_see_run_at_once(self):
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

    def test_11_recorded_and_delegated_operations_share_a_block(self):
        x = torch.arange(4.0, device="hologram")
        address = x.data_ptr()
        for _ in range(3):
            x.add_(1)  # recorded
            x.hypot_(x)  # torch's kernel, on the CPU tensor that is the block's twin
            x[1:].mul_(2)
        wanted = torch.arange(4.0)
        for _ in range(3):
            wanted.add_(1).hypot_(wanted)[1:].mul_(2)
        self.assertEqual(x.cpu(), wanted)
        self.assertEqual(x.data_ptr(), address)

    def test_12_windows_of_two_devices_do_not_wait_for_each_other(self):
        run_python(
            """
            import gc, threading, torch

            def work(mine, other):
                x = torch.ones(64, device=mine)
                for step in range(300):
                    x = x * 0.5 + 1  # pending here ...
                    y = x.to(other) * 2  # ... and there
                    x = y.to(mine) - x
                    if step % 50 == 0:
                        gc.collect()
                results.append(x.cpu())

            results = []
            names = ("hologram:0", "hologram:1")
            threads = [threading.Thread(target=work, args=pair) for pair in (names, names[::-1])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(100)
                assert not thread.is_alive(), "deadlock"
            work("cpu", "cpu")
            assert all(torch.equal(result, results[0]) for result in results), results
            """,
            env=several_devices(2),
        )

    def test_13_a_free_runs_nothing(self):
        x = torch.ones(100, device="hologram")
        hologram.flush()
        hologram.reset_stream_stats()
        y = x * 2
        temporaries = [y + n for n in range(20)]
        del x, y
        temporaries.clear()
        gc.collect()
        counts = hologram.stream_stats()
        self.assertEqual((counts["recorded"], counts["executed"]), (21, 0))
        hologram.flush()
        self.assertEqual(hologram.stream_stats()["stores_elided"], 21)

    def test_14_fork_runs_what_is_pending(self):
        run_python(
            """
            import os, torch
            x = torch.ones(3, device="hologram")
            torch.hologram.flush()
            torch.hologram.reset_stream_stats()
            y = x * 2
            child = os.fork()
            if child == 0:
                del x, y  # nothing happens
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert torch.hologram.stream_stats()["flushes.exit"] == 1
            assert y.tolist() == [2, 2, 2]
            """
        )

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

    def test_16_nothing_traps(self):
        least = -(2**63)
        x = torch.tensor([least, least + 1, 2**63 - 1, 0], device="hologram")
        for function in (
            torch.neg,
            torch.abs,
            lambda x: x - 1,
            lambda x: x * -1,
            lambda x: x / 0,
            lambda x: x.float() / x.float().sub(x.float()),
        ):
            self.assertEqual(function(x).cpu(), function(x.cpu()), rtol=0, atol=0)
        y = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30], device="hologram")
        converted = y.long() + 1
        with hologram.eager():
            self.assertEqual(converted.cpu(), (y.long() + 1).cpu())

    def test_17_one_result_for_every_layout(self):
        x = torch.randn(37, 53, device="hologram")
        for function in (torch.exp, torch.tanh, torch.sigmoid, torch.erf):
            self.assertEqual(
                function(x).cpu(), function(x.t()).t().cpu(), rtol=0, atol=0, msg=str(function)
            )
            self.assertEqual(function(x[:, 1:]).cpu(), function(x).cpu()[:, 1:], rtol=0, atol=0)

    def test_17_results_have_the_strides_of_torchs(self):
        """The first operand of torch's kernel decides, which is not always the first argument."""
        aten = torch.ops.aten
        functions = {
            "add": aten.add.Tensor,
            "rsub": aten.rsub.Tensor,
            "lt": aten.lt.Tensor,
            "where": lambda x, y: torch.where(x > 0, x, y),
            "where of the other": lambda x, y: torch.where(y > 0, x, y),
            "lerp": lambda x, y: aten.lerp.Scalar(x, y, 0.3),
            "addcmul": lambda x, y: aten.addcmul(x, y, y),
            "addcdiv": lambda x, y: aten.addcdiv(x, y, y),
            "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0.0),
            "gelu_backward": aten.gelu_backward,
            "silu_backward": aten.silu_backward,
            "sigmoid_backward": aten.sigmoid_backward,
            "tanh_backward": aten.tanh_backward,
        }
        x = torch.randn(3, 1, 4, 5)
        layouts = [x, x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1), x.mT.contiguous().mT]
        for name, function in functions.items():
            for one in layouts:
                for other in layouts:
                    expected = function(one, other)
                    result, counts = stats(function, one.hologram(), other.hologram())
                    self.assertEqual(result.stride(), expected.stride(), msg=name)
                    self.assertEqual(result.cpu(), expected, msg=name)
                    self.assertGreater(counts["recorded"], 0, msg=name)

    def test_17_wider_operands_are_rounded_to_half_precision(self):
        x = torch.linspace(0.5, 2, 64)
        for dtype, other in ((torch.float16, torch.float32), (torch.bfloat16, torch.int64)):
            half, wide = x.to(dtype), torch.tensor(65520, dtype=other)
            for function in (torch.addcdiv, torch.addcmul):
                for operands in ((half, wide, half), (half, half, wide)):
                    expected = function(*operands, value=0.5)
                    result = function(*(t.hologram() for t in operands), value=0.5)
                    self.assertEqual(result.cpu(), expected, rtol=0, atol=0)

    def test_18_products_are_rounded_before_they_are_added(self):
        for dtype in FLOATS:
            x = torch.randn(1000).to(dtype).to("hologram")
            product = (x * x).cpu().to("hologram")
            # With one rounding the difference would be the error of the product.
            self.assertEqual((x * x - product).cpu(), torch.zeros(1000, dtype=dtype))

    def test_18_denormals_are_flushed_as_torch_says(self):
        x = torch.full((1000,), 1e-38)
        y = x.to("hologram")
        for flush in (True, False):
            if not torch.set_flush_denormal(flush):
                self.skipTest("this processor cannot")
            try:
                fused = (y * 0.1) * 10
                self.assertEqual(fused.cpu() == 0, (x * 0.1) * 10 == 0)
                self.assertEqual(bool((fused.cpu() == 0).all()), flush)
            finally:
                torch.set_flush_denormal(False)

    def test_18_denormals_are_flushed_where_the_call_is_made(self):
        """Not where the program runs, and also by operations that are none otherwise.

        A GPU knows nothing of it, as torch's own CUDA does not.
        """
        cpu = torch.full((1000,), 1e-40)
        x = cpu.to("hologram")
        functions = (
            lambda v: v * 1,
            lambda v: v / 1,
            lambda v: v - 0.0,
            lambda v: v * 0.5,
            lambda v: v + v,
            lambda v: (v * 1).neg().neg(),
        )
        if not torch.set_flush_denormal(False):
            self.skipTest("this processor cannot")

        def call(function, v, flush):
            torch.set_flush_denormal(flush)
            try:
                return function(v)
            finally:
                torch.set_flush_denormal(False)

        for function in functions:
            for before, after in ((False, True), (True, False), (True, True)):
                want = [call(function, cpu, flush and not GPUS) for flush in (before, after)]
                for at_once in (False, True):
                    with mode(at_once):
                        have = [call(function, x, flush) for flush in (before, after)]
                    # Read where denormals are zeros: of no account.
                    have = call(lambda pair: [y.cpu() for y in pair], have, True)
                    for mine, theirs in zip(have, want, strict=True):
                        self.assertEqual(mine.view(torch.int32), theirs.view(torch.int32))
        _, counts = stats(lambda: [call(lambda v: v * 3, x, f) for f in (True, True, False)])
        self.assertEqual(counts["flushes.mode"], 1)

    def test_19_rounding_is_not_folded(self):
        x = torch.tensor([1.0 + 2**-10], device="hologram")
        self.assertEqual(x.bfloat16().float().cpu(), torch.tensor([1.0]))

    def test_19_a_number_is_rounded_by_what_is_done_with_it(self):
        def steps() -> torch.Tensor:
            x = torch.empty(9, dtype=torch.bfloat16, device="hologram")
            return x.fill_(1).mul_(1e30).mul_(-1.5)

        with hologram.eager():
            want = steps()
        self.assertEqual(steps().cpu(), want.cpu(), rtol=0, atol=0)
        self.assertEqual(want.cpu(), torch.ones(9, dtype=torch.bfloat16).mul(1e30).mul(-1.5))

    def test_operations_on_nothing_are_not_recorded(self):
        x = torch.ones(4, device="hologram")
        hologram.flush()
        _, counts = stats(lambda: (torch.neg(x[:0]), x[:0] + x[1:1], x[:0].neg_()))
        self.assertEqual(counts["recorded"], 0)

    def test_results_without_bytes_are_freed_like_others(self):
        x, y = (torch.ones(4, device="hologram") for _ in range(2))
        hologram.flush()
        y.neg_()
        torch.set_flush_denormal(True)  # the window runs between allocating and recording
        try:
            result = torch.neg(x[:0])
            del result
        finally:
            torch.set_flush_denormal(False)
        for _ in range(4096):  # a full window, likewise
            y.neg_()
        result = torch.neg(x[:0])
        del result
        self.assertEqual(y.cpu(), -torch.ones(4))

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


if __name__ == "__main__":
    run_tests()
