"""The CPU executor, seen from torch: threads, contraction, special values, instruction sets."""

from __future__ import annotations

import threading
import unittest
from pathlib import Path

import numpy as np
import torch
from common import CUDA_KERNELS, GPUS, HologramTestCase, run_python, several_devices
from rows import COMPARISONS, EXACT_UNARY, LOGICAL, UNARY
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_hologram import _C

hologram = torch.hologram
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Where torch makes zeros of denormal results: the reference is its float64, rounded.
FLUSHED_BY_TORCH = {("erf", torch.bfloat16), ("sigmoid", torch.float32)}


def specials(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, infinities, NaN, denormals, the smallest, the greatest, halves and whole numbers."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([0, 1, 2, 3, -1, -2, -7, info.max, info.min, info.min + 1], dtype=dtype)
    info = torch.finfo(dtype)
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.25, 30.0, 100.0, 1e4, info.eps, info.tiny]
    values += [info.tiny / 4, info.smallest_normal, info.max, torch.inf]
    made = torch.tensor(values, dtype=torch.float64).to(dtype)
    return torch.cat([made, -made, torch.tensor([torch.nan], dtype=dtype)])


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every two special values."""
    edge = specials(dtype)
    return edge.repeat_interleave(len(edge)), edge.repeat(len(edge))


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x * y + x).tanh() * 0.3 - y / (x.abs() + 1)).sigmoid()


class TestSpecialValues(HologramTestCase):
    def assert_as_torch(self, function, *operands, ulps: float = 0, what: str = "") -> None:
        """NaN, infinities, zeros and their signs as on the CPU, other values within some ulps."""
        want = function(*operands)
        have = function(*(x.to("hologram") for x in operands)).cpu()
        self.assertEqual(have.dtype, want.dtype, what)
        if not want.dtype.is_floating_point:
            self.assertEqual(have, want, what)
            return
        for test in (torch.isnan, torch.isinf, lambda t: t == 0):
            self.assertEqual(test(have), test(want), f"{what}: {operands} {have} {want}")
        number = ~want.isnan()
        self.assertEqual(have[number].signbit(), want[number].signbit(), what)
        finite = want.isfinite()
        info = torch.finfo(want.dtype)
        scale = want[finite].double().abs().clamp_min(info.smallest_normal) * info.eps
        error = (have[finite].double() - want[finite].double()).abs() / scale
        self.assertLessEqual(error.max().item() if error.numel() else 0, ulps, what)

    @parametrize("dtype", FLOATS)
    @parametrize("row", UNARY)
    def test_unary(self, row, dtype):
        exact = row in EXACT_UNARY
        # The other functions of torch are a few ulps off themselves.
        ulps = 0 if exact else 4
        function, x = getattr(torch, row), specials(dtype)
        if (row, dtype) in FLUSHED_BY_TORCH:
            self.assertTrue((function(x) != function(x.double()).to(dtype)).sum() > 1)  # with NaN

            def reference(v):
                return (
                    function(v) if v.device.type == "hologram" else function(v.double()).to(dtype)
                )
        else:
            reference = function
        self.assert_as_torch(reference, x, ulps=ulps, what=f"{row} {dtype}")

    @parametrize("dtype", FLOATS)
    def test_pow(self, dtype):
        x, y = pairs(dtype)
        # Where torch's own results of f16 and bf16 depend on the position in the tensor they are
        # those of float32, rounded.
        self.assert_as_torch(torch.pow, x, y, ulps=4, what=f"pow {dtype}")

    @parametrize("dtype", FLOATS)
    def test_activations(self, dtype):
        x = torch.cat([specials(dtype), torch.linspace(-8, 8, 1001).to(dtype)])
        self.assert_as_torch(torch.nn.functional.hardswish, x, what=f"hardswish {dtype}")
        elu = torch.ops.aten.elu
        self.assert_as_torch(elu, x, ulps=4, what=f"elu {dtype}")
        self.assert_as_torch(lambda v: elu(v, 0.7, 1.25, 0.5), x, ulps=4, what=f"elu {dtype}")

    @parametrize("dtype", (*FLOATS, torch.int64, torch.int32, torch.bool))
    def test_comparisons_and_logic(self, dtype):
        x, y = pairs(dtype)
        for row in COMPARISONS + LOGICAL:
            self.assert_as_torch(getattr(torch, row), x, y, what=f"{row} {dtype}")
        self.assert_as_torch(torch.logical_not, x)
        self.assert_as_torch(lambda c, a, b: torch.where(c, a, b), x == y, x, y)

    @parametrize("dtype", (*FLOATS, torch.int64))
    def test_clamp(self, dtype):
        x, y = pairs(dtype)
        self.assert_as_torch(lambda v, low: torch.clamp(v, low, low.flip(0)), x, y, what="clamp")

    def test_integers_wrap(self):
        x, y = pairs(torch.int64)
        for function in (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum):
            self.assert_as_torch(function, x, y)
        for function in (torch.neg, torch.abs, torch.relu):
            self.assert_as_torch(function, specials(torch.int64))

    def test_division_of_integers_by_zero(self):
        x = torch.tensor([1, 2, 3], device="hologram")
        zero = torch.zeros(3, dtype=torch.int64, device="hologram")
        for function in () if CUDA_KERNELS else (torch.floor_divide, torch.remainder, torch.fmod):
            with self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
                function(x, zero).cpu()
        self.assert_as_torch(torch.div, x.cpu(), zero.cpu())

    @parametrize("isa", ("baseline", "avx2", "avx512"))
    def test_every_instruction_set(self, isa):
        widest = hologram.get_device_properties(0).isa
        order = ("baseline", "avx2", "avx512")
        if isa not in order or widest not in order or order.index(isa) > order.index(widest):
            self.skipTest(f"this processor has {widest}")
        source = """
            import sys, unittest
            sys.path.insert(0, sys.argv[1])
            import torch
            assert torch.hologram.get_device_properties(0).isa == sys.argv[2]
            import test_executor
            names = [n for n in dir(test_executor.TestSpecialValues) if n.startswith("test_")]
            names = [n for n in names if "every_instruction_set" not in n]
            suite = unittest.TestSuite(map(test_executor.TestSpecialValues, names))
            result = unittest.TextTestRunner().run(suite)
            assert result.wasSuccessful() and result.testsRun > 90
        """
        run_python(
            source, str(Path(__file__).parent), isa, env={"HOLOGRAM_CPU_ISA": isa}, timeout=300
        )


class TestContraction(HologramTestCase):
    def tearDown(self) -> None:
        hologram.set_float_contraction(False)
        super().tearDown()

    def test_only_bools(self) -> None:
        for wrong in ("yes", 1, None, torch.tensor(True)):
            with self.assertRaisesRegex(TypeError, "expected True or False, got "):
                hologram.set_float_contraction(wrong)
        self.assertFalse(hologram.float_contraction())

    def numbers(self, dtype) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        return [generator.standard_normal(1000).astype(dtype) for _ in range(3)]

    @parametrize("dtype", (np.float32, np.float64))
    def test_bits(self, dtype):
        """Against numpy: its separate operations, and one rounding of the exact result."""
        a, b, c = self.numbers(dtype)
        wide = np.longdouble if dtype == np.float64 else np.float64
        exact = a.astype(wide) * b.astype(wide)
        cases = {
            "a * b + c": (a * b + c, exact + c.astype(wide)),
            "c + a * b": (c + a * b, exact + c.astype(wide)),
            "a * b - c": (a * b - c, exact - c.astype(wide)),
            "c - a * b": (c - a * b, c.astype(wide) - exact),
        }
        tensors = {n: torch.from_numpy(x).hologram() for n, x in zip("abc", (a, b, c), strict=True)}
        for source, (separate, once) in cases.items():
            code = compile(source, "case", "eval")
            for contracted in (False, True, False):
                hologram.set_float_contraction(contracted)
                self.assertEqual(hologram.float_contraction(), contracted)
                have = eval(code, {}, tensors).cpu().numpy()
                if not contracted:
                    np.testing.assert_array_equal(have, separate, source)
                    continue
                self.assertGreater((have != separate).mean(), 0.1, source)
                # The reference is rounded twice: of f64 it may be off by an ulp in rare cases.
                self.assertGreater((have == once.astype(dtype)).mean(), 0.99, source)
                np.testing.assert_allclose(have, once.astype(dtype), rtol=2.3e-16, atol=1e-18)

    def test_a_product_that_is_needed_is_rounded(self):
        a, b, c = (torch.from_numpy(x).hologram() for x in self.numbers(np.float32))
        hologram.set_float_contraction(True)
        product = a * b
        total = product + c
        self.assertEqual(product.cpu(), a.cpu() * b.cpu(), rtol=0, atol=0)
        self.assertEqual(total.cpu(), a.cpu() * b.cpu() + c.cpu(), rtol=0, atol=0)

    @parametrize("dtype", (torch.bfloat16, torch.float16))
    def test_halves_are_rounded_after_every_operation(self, dtype):
        a, b, c = (torch.from_numpy(x).to(dtype).hologram() for x in self.numbers(np.float32))
        hologram.set_float_contraction(True)
        self.assertEqual((a * b + c).cpu(), a.cpu() * b.cpu() + c.cpu(), rtol=0, atol=0)

    def test_it_is_off_unless_asked_for(self):
        run_python(
            """
            import torch
            assert not torch.hologram.float_contraction()
            x = torch.randn(100000, device="hologram")
            assert torch.equal((x * 1.1 + x).cpu(), x.cpu() * 1.1 + x.cpu())
            """
        )

    def test_every_instruction_set_gives_the_same_bits(self):
        source = """
            import hashlib, torch
            torch.hologram.set_float_contraction(True)
            torch.manual_seed(1)
            out = b""
            for dtype in (torch.float32, torch.float64):
                a, b, c = (torch.randn(5000, dtype=dtype).hologram() for _ in range(3))
                for scale in (1, 1e-22, 1e22):
                    y = (a * scale) * b + c
                    out += y.cpu().numpy().tobytes() + (c - y * (a * scale)).cpu().numpy().tobytes()
            print(hashlib.sha256(out).hexdigest())
        """
        sets = [{"HOLOGRAM_CPU_ISA": isa} for isa in _C.instruction_sets()]
        if GPUS:  # which is to have them too
            sets = [{}, *(one | {"HOLOGRAM_BACKENDS": "cpu"} for one in sets)]
        digests = {run_python(source, env=one).stdout for one in sets}
        self.assertEqual(len(digests), 1)


class TestThreads(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.threads = torch.get_num_threads()

    def tearDown(self) -> None:
        torch.set_num_threads(self.threads)
        super().tearDown()

    def results(self, n: int) -> list[torch.Tensor]:
        """Dense, broadcast, narrow, and a batch of many tensors."""
        torch.manual_seed(0)
        x, y = (torch.randn(n, device="hologram") for _ in range(2))
        rows, column = torch.randn(300, n // 300 + 1).hologram(), torch.randn(300, 1).hologram()
        parts = [torch.randn(4096 + i).hologram() for i in range(40)]
        out = [chain(x, y), chain(rows, column), chain(x.bfloat16(), y.bfloat16())]
        for part in parts:
            out.append(chain(part, part * 2))
        return [tensor.cpu() for tensor in out]

    def test_the_number_of_threads_does_not_change_bits(self):
        for n in (20_000, 32_767, 32_768, 200_001):
            torch.set_num_threads(1)
            want = self.results(n)
            for threads in (2, 3, 8):
                torch.set_num_threads(threads)
                for one, other in zip(self.results(n), want, strict=True):
                    self.assertTrue(torch.equal(one, other), f"{n} {threads}")

    def test_from_threads_that_end(self):
        """Every Python thread has a team of its own in OpenMP; none may be needed after its end."""
        torch.set_num_threads(2)
        want = self.results(100_000)
        wrong: list[str] = []

        def work() -> None:
            for _ in range(3):
                for one, other in zip(self.results(100_000), want, strict=True):
                    if not torch.equal(one, other):
                        wrong.append("different")

        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        self.assertEqual(wrong, [])

    def test_in_the_backward_pass(self):
        torch.set_num_threads(2)
        x = torch.randn(200_000)
        mine = x.hologram().requires_grad_()
        theirs = x.clone().requires_grad_()
        (mine * mine * 3).sum().backward()
        (theirs * theirs * 3).sum().backward()
        self.assertEqual(mine.grad.cpu(), theirs.grad)

    def test_several_devices_at_once(self):
        run_python(
            """
            import threading, torch
            torch.set_num_threads(2)
            def work(index):
                x = torch.arange(200_000.0, device=f"hologram:{index}")
                for _ in range(20):
                    x = (x * 0.5 + 1).relu()
                    x.sum().item()
                results[index] = x.cpu()
            results = {}
            threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
            """,
            env=several_devices(3),
        )

    @unittest.skipIf(GPUS, "no thread computes; NVIDIA's driver has some of its own")
    def test_threads_are_torchs_own(self):
        """No thread is started beside those that torch starts itself, and a device's own one."""
        run_python(
            """
            import os, torch
            count = lambda: len(os.listdir("/proc/self/task"))
            torch.set_num_threads(3)
            torch.randn(1 << 20).add_(1).exp_()
            before = count()
            x = torch.randn(1 << 20, device="hologram")
            (x + 1).exp().cpu()
            queues = int(torch.hologram.get_device_properties().asynchronous)
            assert count() == before + queues, (before, count())
            """
        )

    @unittest.skipIf(GPUS, "no thread computes")
    def test_work_is_shared(self):
        """A worker of torch's pool, or a thread of the device's, has computed a part."""
        run_python(
            """
            import os, resource, torch
            def others():  # clock ticks of all threads but this one
                ticks = 0
                for task in os.listdir("/proc/self/task"):
                    if int(task) != os.getpid():
                        with open(f"/proc/self/task/{task}/stat") as stat:
                            fields = stat.read().rsplit(")", 1)[1].split()
                        ticks += int(fields[11]) + int(fields[12])
                return ticks
            torch.set_num_threads(2)
            x = torch.randn(1 << 21, device="hologram")
            y = x.clone()
            for _ in range(4):
                y = (y.sin() + x.cos()).tanh()
                y.cpu()
            before = others()
            for _ in range(30):
                for _ in range(10):
                    y = (y.sin() + x.cos()).tanh()
                torch.hologram.flush()
            torch.hologram.synchronize()
            gained = others() - before
            assert gained >= 5, gained
            """,
            env={"OMP_WAIT_POLICY": "passive"},
        )

    @unittest.skipIf(GPUS, "no thread computes, and a GPU flushes none (test_stream.py)")
    def test_denormals_are_flushed_in_every_thread(self):
        x = torch.full((200_000,), 2.0**-126).hologram()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            self.assertTrue(torch.set_flush_denormal(True))
            try:
                flushed = (x * 0.5).cpu()
            finally:
                torch.set_flush_denormal(False)
            # By their bits: threads that torch started meanwhile take denormals for zeros for ever.
            self.assertTrue((flushed.view(torch.int32) == 0).all())
            self.assertTrue(((x * 0.5).cpu().view(torch.int32) != 0).all())


instantiate_parametrized_tests(TestSpecialValues)
instantiate_parametrized_tests(TestContraction)

if __name__ == "__main__":
    run_tests()
