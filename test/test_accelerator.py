"""torch.accelerator and torch's other device-generic entry points."""

from __future__ import annotations

import unittest

import torch
from common import HologramTestCase
from torch.testing._internal.common_utils import run_tests


class TestAccelerator(HologramTestCase):
    def test_current_accelerator(self):
        self.assertEqual(torch.accelerator.current_accelerator(), torch.device("hologram"))
        self.assertTrue(torch.accelerator.is_available())
        self.assertEqual(torch.accelerator.device_count(), torch.hologram.device_count())
        self.assertEqual(torch._utils._get_available_device_type(), "hologram")

    def test_device_index(self):
        for device in (0, "hologram:0", torch.device("hologram", 0)):
            torch.accelerator.set_device_index(device)
        self.assertEqual(torch.accelerator.current_device_index(), 0)
        with torch.accelerator.device_index(0):
            self.assertEqual(torch.accelerator.current_device_index(), 0)
        with torch.accelerator.device_index(None):
            self.assertEqual(torch.accelerator.current_device_index(), 0)

    def test_integers_are_device_indices(self):
        self.assertEqual(torch.ones(1, device=0).device, torch.device("hologram", 0))
        self.assertTrue(torch.ones(1).to(0).is_hologram)

    def test_capability(self):
        capability = torch.accelerator.get_device_capability()
        dtypes = capability["supported_dtypes"]
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64):
            self.assertIn(dtype, dtypes)

    def test_streams(self):
        stream = torch.Stream(device="hologram")
        before = torch.accelerator.current_stream()
        self.assertEqual(before, torch.hologram.current_stream())
        torch.accelerator.set_stream(stream)
        try:
            self.assertEqual(torch.accelerator.current_stream("hologram"), stream)
            self.assertEqual(torch.hologram.current_stream(), stream)
        finally:
            torch.accelerator.set_stream(before)
        torch.accelerator.synchronize()
        torch.accelerator.synchronize("hologram:0")

    def test_generic_events(self):
        start, end = (torch.Event(enable_timing=True) for _ in range(2))
        self.assertEqual(start.device.type, "hologram")
        start.record()
        end.record()
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 0)

    def test_memory(self):
        accelerator, hologram = torch.accelerator, torch.hologram
        accelerator.reset_accumulated_memory_stats()
        tensor = torch.empty(1 << 20, dtype=torch.uint8, device="hologram")
        self.assertEqual(accelerator.memory_allocated(), hologram.memory_allocated())
        self.assertEqual(accelerator.memory_reserved(), hologram.memory_reserved())
        self.assertGreaterEqual(accelerator.memory_allocated(), 1 << 20)
        del tensor
        accelerator.empty_cache()
        self.assertEqual(accelerator.max_memory_allocated(), hologram.max_memory_allocated())
        self.assertEqual(accelerator.max_memory_reserved(), hologram.max_memory_reserved())
        accelerator.reset_peak_memory_stats()
        self.assertEqual(accelerator.max_memory_allocated(), accelerator.memory_allocated())
        free, total = accelerator.get_memory_info()
        self.assertLessEqual(free, total)
        generic, own = accelerator.memory_stats(), hologram.memory_stats()
        for key in set(generic) & set(own):
            self.assertEqual(generic[key], own[key], key)
        self.assertIn("allocated_bytes.all.current", generic)

    @unittest.skipUnless(hasattr(torch.accelerator, "empty_host_cache"), "new in torch 2.12")
    def test_host_cache(self):
        pinned = torch.empty(1000).pin_memory()
        del pinned
        torch.accelerator.empty_host_cache()

    def test_wrong_type(self):
        with self.assertRaisesRegex(ValueError, "cpu doesn't match the current accelerator"):
            torch.accelerator.set_device_index("cpu")


class TestDefaultDevice(HologramTestCase):
    def tearDown(self) -> None:
        torch.set_default_device(None)
        super().tearDown()

    def test_context(self):
        with torch.device("hologram"):
            self.assertTrue(torch.ones(2).is_hologram)
            self.assertTrue(torch.nn.Linear(2, 2).weight.is_hologram)
            self.assertTrue(torch.ones(2, device="cpu").is_cpu)
            with torch.device("cpu"):
                self.assertTrue(torch.ones(2).is_cpu)
        self.assertTrue(torch.ones(2).is_cpu)

    def test_set_default_device(self):
        torch.set_default_device("hologram")
        self.assertEqual(torch.get_default_device(), torch.device("hologram", 0))
        for tensor in (torch.rand(2), torch.tensor([1.0]), torch.arange(3), torch.eye(2)):
            self.assertTrue(tensor.is_hologram)
        torch.set_default_device(None)
        self.assertTrue(torch.rand(2).is_cpu)

    def test_printing(self):
        tensor = torch.tensor([1.0, 2.5], device="hologram")
        self.assertEqual(str(tensor), "tensor([1.0000, 2.5000], device='hologram:0')")
        self.assertIn("requires_grad=True", repr(tensor.requires_grad_()))
        self.assertIn("size=(0, 3)", str(torch.empty(0, 3, device="hologram")))
        parameter = torch.nn.Parameter(torch.ones(1, device="hologram"))
        self.assertIn("Parameter containing", str(parameter))
        self.assertIn("...", str(torch.zeros(2000, device="hologram")))
        self.assertEqual(f"{torch.tensor(2.5, device='hologram'):.1f}", "2.5")
        for dtype in (torch.bool, torch.int8, torch.bfloat16, torch.complex64):
            self.assertIn("hologram:0", str(torch.ones(2, dtype=dtype, device="hologram")))


if __name__ == "__main__":
    run_tests()
