"""torch.hologram: the names a torch.cuda user expects, devices, properties."""

from __future__ import annotations

import inspect
import typing

import torch
from common import HologramTestCase
from torch.testing._internal.common_utils import run_tests

NAMES = """
    is_available is_initialized init device_count current_device set_device device device_of
    get_device_name get_device_properties get_device_capability synchronize Stream Event stream
    current_stream default_stream set_stream manual_seed manual_seed_all seed seed_all initial_seed
    get_rng_state get_rng_state_all set_rng_state set_rng_state_all memory_allocated
    max_memory_allocated memory_reserved max_memory_reserved memory_stats memory_summary
    memory_snapshot reset_peak_memory_stats reset_accumulated_memory_stats empty_cache mem_get_info
    set_per_process_memory_fraction is_bf16_supported get_amp_supported_dtype can_device_access_peer
    OutOfMemoryError fallback_report reset_fallback_report set_fallback_mode
""".split()


class TestNames(HologramTestCase):
    def test_every_name_is_there_documented_and_typed(self):
        for name in NAMES:
            self.assertIn(name, torch.hologram.__all__)
            value = getattr(torch.hologram, name)
            self.assertTrue(inspect.getdoc(value), f"{name} has no documentation")
            if inspect.isfunction(value):
                parameters = set(inspect.signature(value).parameters)
                annotated = set(value.__annotations__)
                self.assertEqual(annotated, parameters | {"return"}, name)

    def test_all_lists_what_exists(self):
        for name in torch.hologram.__all__:
            self.assertTrue(hasattr(torch.hologram, name), name)

    def test_unknown_name(self):
        with self.assertRaisesRegex(AttributeError, "torch.hologram.*no_such_name"):
            torch.hologram.no_such_name  # noqa: B018

    def test_out_of_memory_is_torchs(self):
        self.assertIs(torch.hologram.OutOfMemoryError, torch.OutOfMemoryError)


class TestDevices(HologramTestCase):
    def test_availability(self):
        self.assertTrue(torch.hologram.is_available())
        self.assertGreaterEqual(torch.hologram.device_count(), 1)
        torch.hologram.init()
        self.assertTrue(torch.hologram.is_initialized())

    def test_properties(self):
        for device in (None, 0, "hologram", "hologram:0", torch.device("hologram", 0)):
            properties = torch.hologram.get_device_properties(device)
            self.assertEqual(properties.backend, "cpu")
            self.assertGreater(properties.total_memory, 2**28)
            self.assertGreaterEqual(properties.multi_processor_count, 1)
            self.assertIn(properties.isa, ("avx512", "avx2", "neon", "baseline"))
            self.assertEqual(torch.hologram.get_device_name(device), properties.name)
            capability = torch.hologram.get_device_capability(device)
            self.assertEqual(capability, (properties.major, properties.minor))
        self.assertTrue(properties.name)

    def test_set_device(self):
        torch.hologram.set_device(0)
        torch.hologram.set_device("hologram:0")
        torch.hologram.set_device(-1)
        self.assertEqual(torch.hologram.current_device(), 0)

    def test_device_context(self):
        with torch.hologram.device(0), torch.hologram.device("hologram"):
            self.assertEqual(torch.hologram.current_device(), 0)
        for nothing in (None, -1):
            with torch.hologram.device(nothing):
                self.assertEqual(torch.hologram.current_device(), 0)

    def test_device_of(self):
        for value in (torch.ones(1, device="hologram"), torch.ones(1)):
            for owner in (value, value.untyped_storage()):
                with torch.hologram.device_of(owner):
                    self.assertEqual(torch.hologram.current_device(), 0)

    def test_amp_answers(self):
        self.assertTrue(torch.hologram.is_bf16_supported())
        self.assertEqual(
            set(torch.hologram.get_amp_supported_dtype()), {torch.float16, torch.bfloat16}
        )

    def test_peer_access(self):
        self.assertTrue(torch.hologram.can_device_access_peer(0, 0))

    def test_synchronize(self):
        torch.hologram.synchronize()
        torch.hologram.synchronize("hologram:0")
        torch.hologram.synchronize(torch.device("hologram"))

    def test_annotations_resolve(self):
        # The names in the annotations are those of torch, not only of this package's type checker.
        hints = typing.get_type_hints(torch.hologram.mem_get_info, {"Device": object})
        self.assertEqual(hints["return"], tuple[int, int])


if __name__ == "__main__":
    run_tests()
