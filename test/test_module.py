"""torch.hologram: the names a torch.cuda user expects, devices, properties."""

from __future__ import annotations

import inspect
import typing

import torch
from common import HologramTestCase, run_python
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


class TestSeveralDevices(HologramTestCase):
    """HOLOGRAM_CPU_DEVICES splits the CPU, so that multi-device code can be tested anywhere."""

    def run_with_two(self, source: str) -> None:
        run_python(
            "import torch\nassert torch.hologram.device_count() == 2\n" + source,
            env={"HOLOGRAM_CPU_DEVICES": "2"},
        )

    def test_current_device(self):
        self.run_with_two(
            """
assert torch.hologram.current_device() == 0
with torch.hologram.device(1):
    assert torch.hologram.current_device() == 1
    assert torch.ones(1, device="hologram").device.index == 1
    assert torch.hologram.current_stream().device == torch.device("hologram", 1)
    with torch.hologram.device(None):
        assert torch.hologram.current_device() == 1
    with torch.hologram.device(0):
        assert torch.hologram.current_device() == 0
    assert torch.hologram.current_device() == 1
assert torch.hologram.current_device() == 0
try:
    with torch.hologram.device("hologram:1"):
        raise KeyError
except KeyError:
    assert torch.hologram.current_device() == 0
with torch.hologram.device_of(torch.ones(1, device="hologram:1")):
    assert torch.hologram.current_device() == 1
torch.hologram.set_device("hologram:1")
assert torch.ones(1).hologram().device.index == 1
"""
        )

    def test_current_device_is_per_thread(self):
        self.run_with_two(
            """
import threading
torch.hologram.set_device(1)
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.hologram.current_device()))
thread.start()
thread.join()
assert seen == [0], seen
assert torch.hologram.current_device() == 1
"""
        )

    def test_moving_between_devices(self):
        self.run_with_two(
            """
first = torch.arange(4.0, device="hologram:0")
second = first.to("hologram:1")
assert second.device.index == 1
second += 1
assert first.tolist() == [0, 1, 2, 3] and second.tolist() == [1, 2, 3, 4]
assert torch.hologram.can_device_access_peer(0, 1)
try:
    first + second
except RuntimeError as error:
    text = str(error)
    assert "Expected all tensors to be on the same device" in text, text
    assert "hologram:0" in text and "hologram:1" in text, text
else:
    raise AssertionError
assert (first + second.to("hologram:0")).tolist() == [1, 3, 5, 7]
"""
        )

    def test_streams_and_memory_are_per_device(self):
        self.run_with_two(
            """
stream = torch.hologram.Stream("hologram:1")
assert stream.device.index == 1
with torch.hologram.stream(stream):
    assert torch.hologram.current_device() == 1
    assert torch.hologram.current_stream() == stream
    assert torch.hologram.current_stream(0) == torch.hologram.default_stream(0)
assert torch.hologram.current_device() == 0
assert torch.hologram.current_stream(1) == torch.hologram.default_stream(1)

before = [torch.hologram.memory_allocated(index) for index in range(2)]
tensor = torch.empty(1 << 20, dtype=torch.uint8, device="hologram:1")
after = [torch.hologram.memory_allocated(index) for index in range(2)]
assert after[0] == before[0], (before, after)
assert after[1] - before[1] >= 1 << 20, (before, after)
"""
        )

    def test_generators_are_per_device(self):
        self.run_with_two(
            """
torch.hologram.manual_seed_all(7)
a = torch.rand(4, device="hologram:0").cpu()
b = torch.rand(4, device="hologram:1").cpu()
assert torch.equal(a, b)
torch.hologram.manual_seed(8)
state = torch.hologram.get_rng_state_all()
assert not torch.equal(state[0], state[1])
torch.rand(3, device="hologram:1")
torch.hologram.set_rng_state_all(state)
assert torch.equal(torch.hologram.get_rng_state(1), state[1])
assert len(torch.hologram.default_generators) == 2
assert torch.hologram.default_generators[1].device.index == 1
"""
        )

    def test_backward_across_devices(self):
        self.run_with_two(
            """
x = torch.ones(3, device="hologram:0", requires_grad=True)
y = (x * 2).to("hologram:1")
(y * torch.arange(3.0, device="hologram:1")).sum().backward()
assert x.grad.device.index == 0
assert x.grad.tolist() == [0, 2, 4]
"""
        )


if __name__ == "__main__":
    run_tests()
