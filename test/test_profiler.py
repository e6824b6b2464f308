"""torch's profilers: what a chain costs is not charged to who needed it, and memory shows."""

from __future__ import annotations

import json
import os
import re
import tempfile
import unittest

import torch
from about_torch import TORCH
from common import CUDA_KERNELS, HologramTestCase, run_python
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.common_utils import run_tests

N = 1 << 20


def rows(averages):
    return {row.key: row for row in averages}


# What is recorded is run before it is read, or before a vendor's kernel is launched that reads it.
FLUSH = f"hologram::flush ({'kernel' if CUDA_KERNELS else 'read'})"


class TestEvents(HologramTestCase):
    def test_a_flush_and_its_passes_are_events(self):
        x = torch.randn(N, device="hologram")
        torch.hologram.synchronize()
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            (x * 2 + 1).tanh().lgamma()
        table = rows(prof.key_averages())
        passed = table["hologram::pass (mul, add, tanh)"]
        self.assertEqual(passed.count, 1)
        flush = table[FLUSH]
        self.assertEqual(flush.count, 1)
        self.assertGreaterEqual(flush.cpu_time_total, passed.cpu_time_total)
        # The flush is a part of what needs its result and not its own time.
        total = table["aten::lgamma"]
        self.assertGreaterEqual(total.cpu_time_total, flush.cpu_time_total)
        self.assertLessEqual(
            total.self_cpu_time_total, total.cpu_time_total - flush.cpu_time_total + 1
        )

    def test_nothing_runs_nothing_shows(self):
        x = torch.ones(3, device="hologram")
        torch.hologram.synchronize()
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            x.sum()
        self.assertFalse([key for key in rows(prof.key_averages()) if "hologram::" in key])

    def test_the_trace_has_them(self):
        x = torch.ones(3, device="hologram")
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            (x + 1).tolist()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            prof.export_chrome_trace(path)
            with open(path) as file:
                names = {event.get("name") for event in json.load(file)["traceEvents"]}
        self.assertIn("hologram::flush (read)", names)
        self.assertIn("hologram::pass (add)", names)

    def test_a_backward_pass_on_this_and_on_another_thread(self):
        x = torch.randn(100, device="hologram", requires_grad=True)
        for threads in (False, True):
            with (
                torch.autograd.set_multithreading_enabled(threads),
                profile(activities=[ProfilerActivity.CPU]) as prof,
            ):
                (x.sin() * x.cos()).sum().backward()
                torch.hologram.synchronize()
            self.assertTrue([key for key in rows(prof.key_averages()) if "pass (" in key])


class TestMemory(HologramTestCase):
    def test_bytes_of_the_device(self):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            x = torch.empty(N, device="hologram")
            y = x.new_empty(N // 2)
            del x
        table = rows(prof.key_averages())
        self.assertEqual(table["aten::empty"].device_memory_usage, 6 * N)
        self.assertEqual(table["aten::new_empty"].device_memory_usage, 2 * N)
        freed = table["[memory]"].device_memory_usage
        self.assertEqual(freed, -4 * N)
        total = sum(row.self_device_memory_usage for row in table.values())
        self.assertEqual(total, 2 * N)
        self.assertEqual(table["aten::empty"].self_cpu_memory_usage, 0)
        del y

    def test_results_of_delegated_and_of_recorded_operators(self):
        x = torch.randn(N, device="hologram")
        torch.hologram.synchronize()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            a = x.flip(0)
            b = x * 2
        table = rows(prof.key_averages())
        self.assertEqual(table["aten::flip"].device_memory_usage, 4 * N)
        self.assertEqual(table["aten::mul"].device_memory_usage, 4 * N)
        self.assertEqual(table["aten::flip"].cpu_memory_usage, 0)
        del a, b


@unittest.skipIf(TORCH < (2, 12), "torch has no place for a device's profiler before 2.12")
class TestActivities(HologramTestCase):
    def profiled(self, *activities):
        x = torch.randn(N, device="hologram")
        torch.hologram.synchronize()
        with profile(activities=activities) as prof:
            for _ in range(3):
                (x * 2 + 1).tanh().lgamma()
        return prof

    def device_rows(self, prof):
        return {
            row.key: row
            for row in prof.key_averages()
            if row.device_type == torch.autograd.DeviceType.PrivateUse1
        }

    def test_passes_and_kernels_have_times_of_the_device(self):
        prof = self.profiled(ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)
        on_device = self.device_rows(prof)
        for name in ("hologram::pass (mul, add, tanh)", "aten::lgamma"):
            row = on_device[name]
            self.assertEqual(row.count, 3)
            self.assertGreater(row.self_device_time_total, 0)
            (host,) = (
                r for r in prof.key_averages() if r.key == name and r.device_type != row.device_type
            )
            self.assertLessEqual(row.self_device_time_total, host.cpu_time_total * 1.5 + 1000)
        self.assertIn("Self HOLOGRAM", prof.key_averages().table())

    def test_alone(self):
        on_device = self.device_rows(self.profiled(ProfilerActivity.PrivateUse1))
        self.assertEqual(on_device["hologram::pass (mul, add, tanh)"].count, 3)

    def test_calls_that_are_recorded(self):
        x = torch.randn(N, device="hologram")
        x.flip(0)
        torch.hologram.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            for _ in range(3):
                x = (x.flip(0) * 2).tanh()
            torch.hologram.synchronize()
        row = self.device_rows(prof)["hologram::pass (aten::flip)"]
        self.assertEqual(row.count, 3)
        self.assertGreater(row.self_device_time_total, 0)

    def test_it_ends(self):
        self.profiled(ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)
        prof = self.profiled(ProfilerActivity.CPU)
        self.assertEqual(self.device_rows(prof), {})


class TestLegacyProfiler(HologramTestCase):
    def test_use_device(self):
        # In a process of its own, for what it prints.
        process = run_python(
            """
            import sys, torch
            x = torch.randn(1 << 18, device="hologram")
            torch.hologram.synchronize()
            with torch.autograd.profiler.profile(use_device="hologram") as prof:
                for _ in range(5):
                    (x * 2 + 1).tanh().lgamma()
            rows = {row.key: row for row in prof.key_averages()}
            for row in rows.values():
                assert 0 <= row.self_device_time_total <= row.device_time_total, row
                assert row.device_time_total <= row.cpu_time_total * 1.5 + 1000, row
            flush = rows[sys.argv[1]]
            assert flush.count == 5 and flush.device_time_total > 0, flush
            assert rows["aten::lgamma"].device_time_total >= flush.device_time_total
            assert "hologram::pass (mul, add, tanh)" in rows
            print(prof.key_averages().table(sort_by="self_device_time_total", row_limit=5))
            """,
            FLUSH,
        )
        self.assertIn("Self HOLOGRAM", process.stdout)
        # What a torch that is built for CUDA says where it finds no GPU is not of this device.
        said = [
            line
            for line in process.stderr.splitlines()
            if not re.search("GetDeviceCount|CUPTI", line, re.IGNORECASE)
        ]
        self.assertNotIn("Failed", "\n".join(said))
        self.assertNotIn("error", "\n".join(said).lower())


if __name__ == "__main__":
    run_tests()
