"""The Metal backend, run without a Mac: its own code, on the runtime of test/metal."""

from __future__ import annotations

import unittest
from pathlib import Path

from common import HologramTestCase
from metal_device import run_on_metal


class TestDevice(HologramTestCase):
    def test_what_it_is(self):
        run_on_metal(
            """
            its = torch.hologram.get_device_properties(0)
            assert its.backend == "metal" and its.name == torch.hologram.get_device_name(), its
            assert its.host_addressable and its.asynchronous and its.isa == "msl3.1", its
            assert its.products == "matrices of simdgroups" and its.total_memory > 1 << 30, its
            assert torch.hologram.device_count() == 1
            """
        )

    def test_beside_the_cpu(self):
        run_on_metal(
            """
            x = torch.randn(100, device="hologram:0")
            y = x.to("hologram:1")
            assert torch.hologram.get_device_properties(1).backend == "cpu"
            assert torch.equal((x * 2).cpu(), (y * 2).cpu())
            assert torch.equal((y + 1).to("hologram:0").cpu(), y.cpu() + 1)
            """,
            "metal,cpu",
        )

    def test_memory_is_the_hosts(self):
        """NumPy and torch's CPU kernels use it where it lies, when what came before is done."""
        run_on_metal(
            """
            x = torch.arange(1000.0, device="hologram")
            address = x.data_ptr()
            for _ in range(20):
                x += 1
            shared = torch.hologram.alias_as_cpu(x)
            assert shared.data_ptr() == address and shared[0] == 20
            shared[0] = 5
            assert x[0].item() == 5 and (x + 1)[:2].tolist() == [6, 22]
            torch.hologram.reset_fallback_report()
            inverse = torch.linalg.inv(torch.eye(3, device="hologram") * 2)
            assert torch.equal(inverse.cpu(), torch.eye(3) / 2)
            assert "aten::linalg_inv_ex" in (
                torch.hologram.fallback_report().operators("delegated")
            )
            """,
            HOLOGRAM_TEST_METAL_DELAY=2000,
        )

    def test_kernels_of_the_cpu_for_what_metal_lacks(self):
        """Double precision and complex numbers are computed on the host, and counted."""
        run_on_metal(
            """
            x = torch.linspace(0.1, 3, 500, dtype=torch.float64)
            before = counts()
            y = torch.exp(x.to("hologram")) * 3 + x.to("hologram")
            torch.testing.assert_close(y.cpu(), torch.exp(x) * 3 + x)
            after = counts()
            assert after["groups.cpu"] > before["groups.cpu"], after
            assert after["groups.cold"] == before["groups.cold"], after
            z = torch.complex(x, -x).to("hologram")
            torch.testing.assert_close((z * z + 1).cpu(), torch.complex(x, -x) ** 2 + 1)
            """
        )

    def test_memory_of_others(self):
        """What Metal has no buffer of is computed by the CPU's code."""
        run_on_metal(
            """
            others = torch.randn(64, 64)
            x = torch.hologram.alias_from_cpu(others)
            before = counts()
            assert torch.equal((x + 1).cpu(), others + 1)
            assert counts()["groups.cpu"] > before["groups.cpu"]
            torch.testing.assert_close((x @ x).cpu(), others @ others)
            """
        )

    def test_what_is_beyond_a_segment(self):
        """Nobody may touch it: a kernel that would, a signal ends."""
        run_on_metal(
            """
            import ctypes, os, signal
            x = torch.ones(5 << 20, device="hologram")
            address = x.data_ptr() + x.nbytes
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                while True:
                    ctypes.memset(address, 0, 1)
                    address += 4096
            assert os.waitpid(child, 0)[1] == signal.SIGSEGV
            assert (x + 1).sum().item() == 2 * (5 << 20)
            """
        )


class TestKernels(HologramTestCase):
    def test_products(self):
        """Rows, columns, batches, slices, biases, in each dtype that there are kernels for."""
        run_on_metal(
            """
            import itertools
            torch.manual_seed(0)
            torch.hologram.reset_fallback_report()
            shapes = [(1, 1, 1), (33, 17, 50), (64, 32, 16), (5, 70, 3), (40, 31, 100)]
            dtypes = [torch.float32, torch.float16, torch.bfloat16]
            for dtype, (m, n, k) in itertools.product(dtypes, shapes):
                for left, right in itertools.product((False, True), repeat=2):
                    a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
                    a = a.t().contiguous().t() if left else a
                    b = b.t().contiguous().t() if right else b
                    bias = torch.randn(n, dtype=dtype)
                    c = torch.randn(m, n, dtype=dtype)
                    A, B = a.to("hologram"), b.to("hologram")
                    for mine, wanted in (
                        (A @ B, a @ b),
                        (torch.addmm(bias.to("hologram"), A, B), torch.addmm(bias, a, b)),
                        (torch.addmm(c.to("hologram"), A, B, beta=0.5, alpha=2),
                         torch.addmm(c, a, b, beta=0.5, alpha=2)),
                        (torch.bmm(A.expand(3, m, k), B.expand(3, k, n)),
                         (a @ b).expand(3, m, n)),
                    ):
                        torch.testing.assert_close(mine.cpu(), wanted)
            own = torch.hologram.fallback_report().operators("native")
            assert own["aten::mm"] == own["aten::bmm"] == 60, own
            # Of f64 there is none.
            x = torch.randn(8, 8, dtype=torch.float64)
            torch.testing.assert_close((x.to("hologram") @ x.to("hologram")).cpu(), x @ x)
            """
        )

    def test_compiled_kernels_have_the_bits_of_the_cold_ones(self):
        out = run_on_metal(
            """
            import torch.nn.functional as F
            def compute(x, y):
                z = F.gelu(x * y + 1) - torch.tanh(y)
                return (z.bfloat16() * 2).float() + F.softmax(x, -1), z.sum(0), z.amax(1)
            torch.manual_seed(0)
            x, y = torch.randn(40, 257).to("hologram"), torch.randn(40, 257).to("hologram")
            first = [t.clone() for t in compute(x, y)]
            torch.hologram.synchronize()
            assert counts()["kernels.compiled"] == 0
            for _ in range(6):
                last = compute(x, y)
                torch.hologram.synchronize()
            after = counts()
            assert after["kernels.compiled"] > 0 and after["kernels.failed"] == 0, after
            assert after["groups.emitted"] > 0 and after["groups.cold"] > 0, after
            for one, other in zip(first, last, strict=True):
                assert torch.equal(one.cpu(), other.cpu())
            print("equal")
            """,
            HOLOGRAM_COMPILE="wait",
        )
        self.assertEqual(out, "equal\n")

    def test_a_kernel_that_does_not_compile(self):
        """The cold one goes on with it; a warning names it once."""
        run_on_metal(
            """
            x = torch.randn(1000, device="hologram")
            wanted = None
            for _ in range(6):
                y = torch.sigmoid(x) * 3 - x
                wanted = y.cpu() if wanted is None else wanted
                assert torch.equal(y.cpu(), wanted)
            after = counts()
            assert after["kernels.failed"] == 1 and after["kernels.compiled"] == 0, after
            """,
            HOLOGRAM_COMPILE="wait",
            # The first text is that of the cold kernels.
            HOLOGRAM_TEST_METAL_COMPILE_ERROR="2,3,4,5,6,7,8,9",
        )


class TestQueues(HologramTestCase):
    def test_streams_and_events(self):
        run_on_metal(
            """
            x = torch.ones(50_000, device="hologram")
            start, end = (torch.Event(enable_timing=True) for _ in range(2))
            side = torch.hologram.Stream()
            start.record()
            y = submit_additions(x, 30)
            event = torch.hologram.current_stream().record_event()
            with torch.hologram.stream(side):
                side.wait_event(event)
                z = submit_additions(y, 30)
            torch.hologram.current_stream().wait_stream(side)
            w = z * 2
            end.record()
            end.synchronize()
            assert start.elapsed_time(end) > 0
            assert (w == 122).all().item()
            """,
            HOLOGRAM_TEST_METAL_DELAY=500,
        )

    def test_two_queues_wait_for_each_other(self):
        """In turn: neither may wait, in one command buffer, for what the other has behind it."""
        run_on_metal(
            """
            x = torch.ones(1000, device="hologram")
            one, other = torch.hologram.Stream(), torch.hologram.Stream()
            for _ in range(20):
                with torch.hologram.stream(one):
                    one.wait_stream(other)
                    x = x + 1
                with torch.hologram.stream(other):
                    other.wait_stream(one)
                    x = x + 1
            torch.hologram.synchronize()
            assert (x == 41).all().item()
            """,
            HOLOGRAM_TEST_METAL_DELAY=300,
        )

    def test_many_threads(self):
        run_on_metal(
            """
            x = torch.arange(5000.0)
            def work(number):
                mine = x.to("hologram") + number
                for _ in range(30):
                    mine = mine * 1 + 1
                assert torch.equal(mine.cpu(), x + number + 30)
            in_threads(work, 4)
            """
        )

    def test_command_buffers_are_few(self):
        """One for a program, unless that is long."""
        run_on_metal(
            """
            x = torch.ones(100, device="hologram")
            torch.hologram.synchronize()
            before = counts()["buffers.committed"]
            y = x
            for _ in range(100):
                y = torch.sin(y) + x
            torch.hologram.synchronize()
            assert 1 <= counts()["buffers.committed"] - before <= 4
            """
        )

    def test_many_command_buffers_at_a_time(self):
        """More than Metal has: the host waits for some to end, and these can be reported."""
        run_on_metal(
            """
            x = torch.ones(10, device="hologram")
            before = counts()["buffers.committed"]
            y = submit_additions(x, 300)
            assert (y == 301).all().item()
            assert counts()["buffers.committed"] - before >= 300
            """,
            HOLOGRAM_TEST_METAL_DELAY=2000,
        )


class TestFaults(HologramTestCase):
    def check_missing(self, pattern: str, **env: object) -> None:
        out = run_on_metal(
            """
            print(message(lambda: torch.ones(3, device="hologram")))
            """,
            **env,
        )
        self.assertRegex(out, pattern)

    def test_no_device(self):
        self.check_missing(
            "HOLOGRAM_BACKENDS names 'metal', which cannot be used: .*there is no device",
            HOLOGRAM_TEST_METAL_NO_DEVICE=1,
        )

    def test_an_old_macos(self):
        self.check_missing("macOS 14 or newer", HOLOGRAM_TEST_METAL_OS_VERSION="13.6.0")

    def test_a_gpu_of_somebody_elses(self):
        self.check_missing("a GPU of Apple's is needed", HOLOGRAM_TEST_METAL_FAMILY=0)

    def test_the_cpu_instead(self):
        run_on_metal(
            """
            assert torch.hologram.get_device_properties().backend == "cpu"
            assert torch.ones(3, device="hologram").sum().item() == 3
            """,
            "metal,cpu",
            HOLOGRAM_TEST_METAL_NO_DEVICE=1,
        )

    def test_without_the_emulation(self):
        out = run_on_metal(
            'print(message(lambda: torch.ones(3, device="hologram")))',
            HOLOGRAM_METAL_EMULATION=0,
        )
        self.assertRegex(out, "'metal', which this build does not have .*macOS 14")

    def test_memory_that_a_buffer_cannot_have(self):
        run_on_metal(
            """
            kept = torch.ones(1000, device="hologram")
            text = message(lambda: torch.empty(1 << 26, device="hologram"), torch.OutOfMemoryError)
            assert "256.00 MiB" in text, text
            assert (kept + 1).sum().item() == 2000
            assert torch.ones(1 << 20, device="hologram").sum().item() == 1 << 20
            """,
            HOLOGRAM_TEST_METAL_MOST_BUFFER_BYTES=64 << 20,
        )

    def test_a_command_buffer_that_fails(self):
        """Whoever waits is told once, with what it may have been; the next one runs."""
        out = run_on_metal(
            """
            x = torch.arange(1000.0, device="hologram")
            torch.hologram.synchronize()
            y = torch.sqrt(x) + 1
            torch.hologram.flush()
            print(message(torch.hologram.synchronize))
            torch.hologram.synchronize()
            assert counts()["buffers.failed"] == 1
            assert torch.equal((x + 1).cpu(), torch.arange(1000.0) + 1)
            """,
            HOLOGRAM_TEST_METAL_FAILED_COMMANDS=1,
        )
        self.assertRegex(out, "Metal device 0: a command buffer failed: .*it was one of: .*sqrt")

    def test_cold_kernels_that_do_not_compile(self):
        """There is nothing that could run instead: the error has the compiler's words."""
        out = run_on_metal(
            """
            x = torch.arange(10.0).to("hologram")
            print(message(lambda: (x + 1).cpu()))
            assert torch.equal((x + 2).cpu(), torch.arange(10.0) + 2)
            """,
            HOLOGRAM_TEST_METAL_COMPILE_ERROR=1,
        )
        self.assertRegex(out, "Metal: kernels do not compile: kernel:1:1: error")

    def test_exit_with_work_in_flight(self):
        run_on_metal(
            """
            x = submit_additions(torch.ones(10_000, device="hologram"), 20)
            """,
            HOLOGRAM_TEST_METAL_DELAY=3000,
        )


class TestWholeThings(HologramTestCase):
    def test_the_sdk(self):
        run_on_metal(
            """
            import numpy as np
            import torch_hologram as hg
            with hg.Executor("metal") as executor:
                assert executor.backend == "metal"
                x, y, z = (executor.allocate(1000) for _ in range(3))
                x.from_numpy(np.arange(1000, dtype=np.float32))
                y.fill(2)
                before = counts()
                hg.ops.vector_mul(executor, x, y, z)
                hg.ops.vector_relu(executor, z, z)
                assert np.array_equal(z.to_numpy(), 2 * np.arange(1000, dtype=np.float32))
                assert counts()["groups.cold"] > before["groups.cold"]
                assert z.as_ptr() != 0
            assert hg.Executor("auto").backend == "metal"
            """
        )

    def test_one_result_in_every_mode(self):
        """The equality proof: 300 random programs, fused, eager and under delays."""
        run_on_metal(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            import programs
            totals = programs.check_seeds(range(300))
            assert totals.programs == 300
            after = counts()
            assert after["groups.cold"] > 1000, after
            """,
            HOLOGRAM_COMPILE=0,
        )

    def test_digits(self):
        """The demo's network learns to read."""
        out = run_on_metal(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parents[1] / "examples")!r})
            import train_digits as demo
            data = demo.load_data(0)
            run = demo.train(torch.device("hologram"), data, 4, 0)
            assert run.accuracies[-1] > 0.95, run.accuracies
            own = torch.hologram.fallback_report().operators("native")
            print("read")
            """,
            HOLOGRAM_COMPILE=0,
        )
        self.assertIn("read", out)


if __name__ == "__main__":
    unittest.main()
