"""Faults of NVIDIA's driver, planted in that of test/cuda: what is said, and what goes on."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

from common import HologramTestCase, run_python
from cuda_driver import LATE, build_driver, run_on_cuda, write_kernels
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

# A driver that cannot be used, and what is said of it.
UNUSABLE = {
    ("INIT", 100): "which has no device on this machine",
    ("INIT", 803): "whose driver cannot be used: system has unsupported display driver / cuda "
    "driver combination (status 803)",
    ("INIT", 999): "whose driver cannot be used: unknown error (status 999)",
    ("VERSION", 10020): "whose driver is for CUDA 10.2; 11.3 or newer is needed",
    ("DEVICES", 0): "which has no device on this machine",
    ("CAPABILITY", 70): "whose device 0 has compute capability 7.0; 7.5 or newer is needed",
    ("CAPABILITY", 80): "for which the package has no kernels: 'cold' for compute capability 8.0 "
    "is not in ",
}
USE = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.ones(3, device="hologram") + 1
assert x.tolist() == [2, 2, 2]
assert torch.hologram.get_device_properties(0).backend == "cpu"
(warning,) = [str(w.message) for w in caught if "HOLOGRAM" in str(w.message)]
assert "HOLOGRAM_BACKENDS names 'cuda', " + sys.argv[1] in warning, warning
"""
LOST = "CUDA device 0: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"


class TestDriver(HologramTestCase):
    """No device, and the list of backends goes on."""

    def check(self, message: str, variables: dict[str, str]) -> None:
        env = {"HOLOGRAM_BACKENDS": "cuda,cpu"} | build_driver() | variables
        process = run_python("import torch" + USE, message, env=env)
        self.assertEqual(process.stderr, "")

    @parametrize("fault,value", list(UNUSABLE))
    def test_it_cannot_be_used(self, fault, value):
        self.check(UNUSABLE[fault, value], {f"HOLOGRAM_TEST_CUDA_{fault}": str(value)})

    def test_a_function_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["cc", "-shared", "-x", "c", "-", "-o", f"{folder}/libcuda.so.1"],
                input="int cuInit(unsigned flags) { return 0; }",
                text=True,
                check=True,
            )
            message = "whose driver has no function cuDriverGetVersion: a newer one is needed"
            self.check(message, {"LD_LIBRARY_PATH": folder})

    def test_kernels_are_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            kernels = write_kernels(Path(folder), moves=None)
            message = (
                "for which the package has no kernels: 'moves' for compute capability 9.0 is not "
                f"in {kernels} (a build with HOLOGRAM_BUILD_CUDA=1 makes them)"
            )
            self.check(message, {"HOLOGRAM_CUDA_KERNELS": kernels})

    def test_kernels_are_corrupt(self):
        with tempfile.TemporaryDirectory() as folder:
            kernels = write_kernels(Path(folder), moves="\x7fELF")
            run_on_cuda(
                f"""
                path = {kernels!r} + "/moves.sm_90.cubin"
                for _ in range(2):
                    text = message(lambda: torch.ones(3, device="hologram"))
                    assert f"the kernels in {{path}} are damaged" in text, text
                assert torch.ones(3).sum() == 3
                """,
                HOLOGRAM_CUDA_KERNELS=kernels,
            )
            # Text, which only the driver reads, when one of the kernels is first asked for.
            write_kernels(Path(folder), cold="nothing")
            run_on_cuda(
                f"""
                path = {kernels!r} + "/cold.sm_90.cubin"
                x = torch.ones(3, device="hologram")
                for _ in range(2):
                    text = message(lambda: (x * 2).tolist())
                    assert (f"the kernels in {{path}} cannot be loaded: device kernel image is "
                            "invalid (CUDA_ERROR_INVALID_IMAGE)") in text, text
                """,
                HOLOGRAM_CUDA_KERNELS=kernels,
            )

    def test_a_call_that_lacks_a_context_ends_the_process(self):
        """So that the other tests find one."""
        program = """
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuInit(0) == 0
        cuda.cuMemFree_v2(ctypes.c_uint64(0))
        """
        process = run_python(program, env=build_driver(), check=False)
        self.assertEqual(process.returncode, -signal.SIGABRT)
        self.assertEqual(
            process.stderr, "simulated CUDA driver: cuMemFree_v2: invalid device context\n"
        )


class TestLaunches(HologramTestCase):
    def test_one_is_refused(self):
        run_on_cuda(
            """
            x = torch.ones(10, device="hologram") + 1
            torch.hologram.flush()
            y = x * 2
            other = torch.arange(4, device="hologram") + 1
            for _ in range(2):  # whoever reads it hears of it
                text = message(lambda: y.sum().item(), torch.AcceleratorError)
                assert "CUDA device 0: the kernel hg_cold_" in text, text
                assert ("cannot be launched: too many resources requested for launch "
                        "(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES), which computes mul, sum of 10 "
                        "elements") in text, text
            assert other.tolist() == [1, 2, 3, 4]
            y.fill_(3)
            assert y.tolist() == [3.0] * 10 and (x * 2).tolist() == [4.0] * 10
            """,
            HOLOGRAM_TEST_CUDA_NO_LAUNCH=2,
        )

    def test_one_goes_to_an_illegal_address(self):
        run_on_cuda(
            f"""
            lost = {LOST!r}
            end = ". The device cannot be used any more by this process"
            kept = torch.ones(10, device="hologram")
            event = torch.hologram.Event()
            def work():
                x = submit_additions(kept, 3)
                y = x * 3
                torch.hologram.flush()
                return y
            assert work().tolist() == [12] * 10  # all that it needs is there
            before = submit_additions(kept, 3)  # time for all that follows to be submitted
            y = work()
            event.record()
            text = message(torch.hologram.synchronize, torch.AcceleratorError)
            assert text.startswith(lost + "; it was one of: add"), text
            assert "; mul" in text and text.split("\\n")[0].endswith(end), text
            # Whatever it is used for says so.
            assert event.query()
            for use in (kept.tolist, y.cpu, lambda: (kept + 1).tolist(), torch.hologram.synchronize,
                        lambda: torch.ones(5).to("hologram:0").cpu(),
                        lambda: kept.to("hologram:1").cpu(), lambda: (kept * 1j).cpu(),
                        lambda: torch.sort(kept).values.cpu(),
                        lambda: torch.empty(1 << 28, device="hologram"),
                        lambda: torch.empty(1 << 40, device="hologram")):
                text = message(use, torch.AcceleratorError)
                assert "an illegal memory access was encountered" in text, text
                assert "memory left" not in text and "out of memory" not in text.lower(), text
            # The other device and the host go on.
            other = torch.arange(5.0, device="hologram:1")
            assert ((other + 1) * 2).tolist() == [2, 4, 6, 8, 10]
            assert torch.ones(3).sum() == 3
            """,
            HOLOGRAM_TEST_CUDA_ILLEGAL_LAUNCH=9,
            **LATE,
        )

    @parametrize("end", ["pass", "torch.hologram.empty_cache()"])
    def test_the_process_ends_after_it(self, end):
        run_on_cuda(
            f"""
            with torch.hologram.stream(torch.hologram.Stream()):
                x = submit_additions(torch.ones(1 << 20, device="hologram"), 3)
            event = torch.hologram.Event(enable_timing=True)
            event.record()
            pinned = torch.ones(3).pin_memory()
            message(torch.hologram.synchronize)
            del pinned, event, x
            try:
                {end}
            except RuntimeError as error:
                assert "an illegal memory access" in str(error), error
            """,
            HOLOGRAM_TEST_CUDA_ILLEGAL_LAUNCH=2,
        )


class TestMemory(HologramTestCase):
    def test_there_is_no_more(self):
        run_on_cuda(
            """
            kept = torch.ones(1 << 20, device="hologram")
            x = kept + 1
            torch.hologram.flush()
            for _ in range(3):
                try:
                    torch.empty(100 << 20, device="hologram")
                except torch.OutOfMemoryError as error:
                    assert "hologram:0" in str(error), error
                else:
                    raise AssertionError("nothing was raised")
            assert x[7].item() == 2 and (kept * 3)[9].item() == 3
            # What nobody uses is given back for it.
            idle = torch.empty(20 << 20, device="hologram")
            del idle
            torch.empty(25 << 20, device="hologram")
            """,
            HOLOGRAM_TEST_CUDA_MEGABYTES=128,
        )

    def test_an_allocation_fails_once(self):
        """The n-th, whatever it is for: a program asks once more, and goes on."""
        self.check_allocations_that_fail(times=1, raise_=0)

    def test_an_allocation_fails_twice(self):
        """A program says so, or does without, and goes on."""
        # Of programs of kernels, and of partial results.
        self.check_allocations_that_fail(times=2, raise_=4)

    def check_allocations_that_fail(self, times: int, raise_: int) -> None:
        run_on_cuda(
            f"""
            times, raise_ = {times}, {raise_}
            """
            """
            import os
            failed = 0
            for number in range(1, 9):
                child = os.fork()
                if child == 0:
                    os.environ["HOLOGRAM_TEST_CUDA_NO_MEMORY"] = ",".join(
                        str(number + i) for i in range(times))
                    def work():
                        x = torch.ones(100, 3000, device="hologram")
                        y = torch.cat([(x * 2).sum().reshape(1), (x + 1).cumsum(1).sum(1)])
                        return y.cpu(), torch.empty(9 << 20, device="hologram")
                    expected = torch.full((101,), 2 * 3000 * 3001 / 2)
                    expected[0] = 600_000
                    raised = False
                    try:
                        result, _ = work()
                    except torch.OutOfMemoryError as error:
                        assert "limit 8.00 GiB" in str(error), error
                        raised = True
                        result, _ = work()
                    assert torch.equal(result, expected), result
                    os._exit(10 + raised)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert status in (10, 11), (number, status)
                failed += status == 11
            assert failed == raise_, failed
            """,
        )


instantiate_parametrized_tests(TestDriver)
instantiate_parametrized_tests(TestLaunches)

if __name__ == "__main__":
    run_tests()
