"""Memory of several devices: each has statistics, peaks and limits of its own.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_devices_memory.py TestMemory.test_peaks
"""

from __future__ import annotations

import torch
from multi_device import ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch.testing._internal.common_utils import run_tests

hologram = torch.hologram


class TestMemory(SeveralDevicesTestCase):
    def tearDown(self) -> None:
        for index in range(2):
            hologram.set_per_process_memory_fraction(1.0, index)
        super().tearDown()

    def test_statistics(self):
        before = [hologram.memory_allocated(index) for index in range(2)]
        x = torch.empty(1 << 20, dtype=torch.uint8, device=ONE)
        after = [hologram.memory_allocated(index) for index in range(2)]
        self.assertEqual(after[0], before[0])
        self.assertGreaterEqual(after[1] - before[1], 1 << 20)
        self.assertEqual(hologram.memory_allocated("hologram:1"), after[1])
        with hologram.device(1):
            self.assertEqual(hologram.memory_allocated(), after[1])
        self.assertEqual(torch.accelerator.memory_allocated(1), after[1])
        # A copy counts where it is, delegated results too.
        y = x.to(ZERO)
        self.assertGreaterEqual(hologram.memory_allocated(0) - before[0], 1 << 20)
        z = x.flip(0)
        self.assertGreaterEqual(hologram.memory_allocated(1) - before[1], 2 << 20)
        del x, y, z
        self.assertEqual([hologram.memory_allocated(index) for index in range(2)], before)

    def test_peaks(self):
        torch.empty(3 << 20, dtype=torch.uint8, device=ZERO)
        zero = hologram.max_memory_allocated(0)
        hologram.reset_peak_memory_stats(1)
        now = hologram.memory_allocated(1)
        self.assertEqual(hologram.max_memory_allocated(1), now)
        self.assertEqual(hologram.max_memory_allocated(0), zero)
        torch.empty(2 << 20, dtype=torch.uint8, device=ONE)
        self.assertGreaterEqual(hologram.max_memory_allocated(1), now + (2 << 20))
        self.assertEqual(hologram.max_memory_allocated(0), zero)
        torch.accelerator.reset_peak_memory_stats(1)
        self.assertEqual(hologram.max_memory_allocated(1), now)

    def test_limits(self):
        total = hologram.get_device_properties(1).total_memory
        hologram.set_per_process_memory_fraction(
            (hologram.memory_reserved(1) + (8 << 20)) / total, 1
        )
        big = 64 << 20
        # Of tests before this one, in the same process.
        before = [hologram.memory_stats(device)["num_ooms"] for device in range(2)]
        for make in (
            lambda: torch.empty(big, dtype=torch.uint8, device=ONE),
            lambda: torch.empty(big, dtype=torch.uint8, device=ZERO).to(ONE),
        ):
            with self.assertRaisesRegex(
                torch.OutOfMemoryError, r"out of memory. Tried to allocate 64.*hologram:1"
            ):
                make()
        after = [hologram.memory_stats(device)["num_ooms"] for device in range(2)]
        self.assertEqual(after, [before[0], before[1] + 2])
        torch.empty(big, dtype=torch.uint8, device=ZERO)
        torch.empty(1 << 20, dtype=torch.uint8, device=ONE)

    def test_snapshot_and_summary(self):
        x = [torch.empty(1 << 21, dtype=torch.uint8, device=d) for d in (ZERO, ONE)]
        for tensor in x:
            segment = next(
                segment
                for segment in hologram.memory_snapshot()
                if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]
            )
            self.assertEqual(segment["device"], tensor.device.index)
        self.assertIn("hologram:1 memory", hologram.memory_summary(1))

    def test_empty_cache(self):
        for device in (ZERO, ONE):
            torch.empty(16 << 20, dtype=torch.uint8, device=device)
        before = [hologram.memory_reserved(index) for index in range(2)]
        hologram.empty_cache()
        for index in range(2):
            self.assertLessEqual(hologram.memory_reserved(index), before[index] - (16 << 20))

    def test_total(self):
        for index in range(2):
            free, total = hologram.mem_get_info(index)
            self.assertEqual(total, hologram.get_device_properties(index).total_memory)
            self.assertTrue(0 < free <= total)


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
