"""torch.hologram: the names a torch.cuda user expects, devices, properties."""

from __future__ import annotations

import inspect
import os
import re
import time
import types
import typing
import warnings

import torch
from common import BACKEND, ROOT, HologramTestCase
from torch.testing._internal.common_utils import run_tests

import torch_hologram
from torch_hologram import legacy
from torch_hologram.absent import ABSENT

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


def public_names(module: types.ModuleType) -> set[str]:
    """What a module offers: what it lists, and what is defined in it without an underscore."""
    names = set(module.__all__)
    for name, value in vars(module).items():
        owner = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        if not name.startswith("_") and str(owner).startswith(module.__name__):
            names.add(name)
    return names


class TestNamesOfOtherDevices(HologramTestCase):
    def test_each_is_here_or_says_what_to_use(self):
        absent = set(ABSENT)
        for module in (torch.cuda, torch.xpu):
            for name in sorted(public_names(module)):
                here = hasattr(torch.hologram, name)
                self.assertTrue(here or name in absent, f"{module.__name__}.{name}")
                self.assertFalse(here and name in absent, name)

    def test_what_is_not_here_says_why(self):
        for name, reason in ABSENT.items():
            with self.assertRaises(AttributeError) as caught:
                getattr(torch.hologram, name)
            expected = f"module 'torch.hologram' has no attribute '{name}': {reason}"
            self.assertEqual(str(caught.exception), expected)
            self.assertFalse(hasattr(torch.hologram, name))

    def test_the_user_guide_has_the_same_table(self):
        guide = (ROOT / "docs/user-guide.md").read_text()
        table = guide.partition("| name | instead |")[2].partition("```")[0]
        rows = {}
        for names, reason in re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.MULTILINE):
            for name in re.findall(r"`(\w+)`", names):
                rows[name] = reason
        self.assertEqual(rows, ABSENT)

    def test_what_reasons_name_exists(self):
        for name, reason in ABSENT.items():
            for path in re.findall(r"torch\.hologram\.([\w.]+\w)", reason):
                value = torch.hologram
                for part in path.split("."):
                    self.assertTrue(hasattr(value, part), f"{name}: {path}")
                    value = getattr(value, part)

    def test_version(self):
        self.assertEqual(torch.hologram.__version__, torch_hologram.__version__)

    def test_small_answers(self):
        self.assertIs(torch.hologram.AcceleratorError, torch.AcceleratorError)
        self.assertIs(torch.hologram.streams.Stream, torch.hologram.Stream)
        self.assertIn(torch.hologram.get_device_properties().isa, torch.hologram.get_arch_list())
        if torch.hologram.get_device_properties().backend == "cpu":
            self.assertFalse(torch.hologram.is_tf32_supported())
        self.assertFalse(torch.hologram.has_magma)
        half = torch.ones(2, dtype=torch.float16, device="hologram") * 2
        self.assertEqual(torch.hologram.has_half, half.tolist() == [2.0, 2.0])
        self.assertFalse(torch.hologram.is_current_stream_capturing())
        self.assertIsNone(torch.hologram.ipc_collect())

    def test_utilization(self):
        first = torch.hologram.utilization()
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            pass
        for percent in (first, torch.hologram.utilization("hologram:0")):
            self.assertIsInstance(percent, int)
            self.assertTrue(0 <= percent <= 100, percent)
        self.assertGreater(percent, 0)  # this loop ran
        with self.assertRaisesRegex(RuntimeError, "99 is out of range"):
            torch.hologram.utilization(99)

    def test_amp(self):
        scaler = torch.hologram.amp.GradScaler(init_scale=8.0)
        self.assertIsInstance(scaler, torch.amp.GradScaler)
        loss = torch.ones(1, device="hologram", requires_grad=True)
        self.assertEqual(scaler.scale(loss).item(), 8.0)
        a = torch.ones(2, 2, device="hologram")
        with torch.hologram.amp.autocast(dtype=torch.bfloat16):
            self.assertEqual((a @ a).dtype, torch.bfloat16)
        with torch.hologram.amp.autocast(enabled=False):
            self.assertEqual((a @ a).dtype, torch.float32)


class TestLegacyTypes(HologramTestCase):
    def test_tensors(self):
        for name in (name for name in legacy.__all__ if name.endswith("Tensor")):
            kind = getattr(torch.hologram, name)
            dtype = kind.dtype
            self.assertEqual(dtype, getattr(torch, name).dtype)
            tensor = kind(2, 3)
            self.assertEqual((tensor.shape, tensor.dtype), ((2, 3), dtype))
            self.assertEqual(tensor.device.type, "hologram")
            self.assertEqual(tensor.type(), f"torch.hologram.{name}")
            self.assertEqual(
                kind([1, 0, 1]).tolist(), torch.tensor([1, 0, 1], dtype=dtype).tolist()
            )
            self.assertIsInstance(tensor, kind)
            self.assertNotIsInstance(tensor.cpu(), kind)
            self.assertNotIsInstance(tensor.to(torch.complex64), kind)
            for target in (kind, f"torch.hologram.{name}"):
                moved = torch.ones(3).type(target)
                self.assertEqual((moved.dtype, moved.device.type), (dtype, "hologram"))
        self.assertEqual(repr(torch.hologram.FloatTensor), "<class 'torch.hologram.FloatTensor'>")

    def test_a_tensor_that_is_given_is_shared(self):
        x = torch.ones(3, device="hologram")
        y = torch.hologram.FloatTensor(x)
        y.fill_(2)
        self.assertEqual(x.tolist(), [2.0] * 3)
        z = torch.hologram.FloatTensor(x.untyped_storage())
        self.assertEqual(z.data_ptr(), x.data_ptr())
        with self.assertRaisesRegex(TypeError, "torch.hologram.HalfTensor .got torch.hologram.Flo"):
            torch.hologram.HalfTensor(x)
        with self.assertRaisesRegex(RuntimeError, "device type: cpu"):
            torch.hologram.FloatTensor(2, device="cpu")
        with self.assertRaises(TypeError):
            torch.hologram.FloatTensor("three")

    def test_storages(self):
        for name in (name for name in legacy.__all__ if name.endswith("Storage")):
            kind = getattr(torch.hologram, name)
            dtype = kind._dtype
            self.assertEqual(dtype, getattr(torch, name)._dtype)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                storage = kind(4)
                self.assertEqual((storage.dtype, storage.device.type), (dtype, "hologram"))
                self.assertEqual(storage.size(), 4)
                self.assertIsInstance(storage, kind)
                typed = torch.zeros(2, dtype=dtype, device="hologram").storage()
                self.assertIsInstance(typed, kind)
                self.assertNotIsInstance(torch.zeros(2, dtype=dtype).storage(), kind)
                with self.assertRaisesRegex(RuntimeError, "Not available for hologram storage"):
                    kind.from_buffer(b"1234")


class TestDevices(HologramTestCase):
    def test_availability(self):
        self.assertTrue(torch.hologram.is_available())
        self.assertGreaterEqual(torch.hologram.device_count(), 1)
        torch.hologram.init()
        self.assertTrue(torch.hologram.is_initialized())

    def test_properties(self):
        for device in (None, 0, "hologram", "hologram:0", torch.device("hologram", 0)):
            properties = torch.hologram.get_device_properties(device)
            self.assertEqual(properties.backend, BACKEND)
            shared = BACKEND == "cpu" or (
                os.environ.get("HOLOGRAM_TEST_SIM_MEMORY", "device") != "device"
            )
            self.assertIs(properties.host_addressable, shared)
            self.assertIs(properties.asynchronous, BACKEND != "cpu")
            self.assertGreater(properties.total_memory, 2**28)
            self.assertGreaterEqual(properties.multi_processor_count, 1)
            self.assertRegex(properties.isa, r"^(avx512|avx2|neon|baseline|sm_\d+)$")
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
