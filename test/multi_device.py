"""Test cases of several devices: HOLOGRAM_CPU_DEVICES splits the CPU, so that they run anywhere.

The environment is read once, so TestInProcessesOfTheirOwn of each file that has such cases starts a
process for each number of devices, and the file's cases for that number run there.
"""

from __future__ import annotations

import sys

import torch
from common import HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

hologram = torch.hologram
ZERO, ONE = torch.device("hologram", 0), torch.device("hologram", 1)
BOTH_WAYS = ((ZERO, ONE), (ONE, ZERO))


def alike() -> bool:
    """Whether the devices are of one backend, so that what they compute has the same bits."""
    count = hologram.device_count()
    return len({hologram.get_device_properties(i).backend for i in range(count)}) == 1


class SeveralDevicesTestCase(HologramTestCase):
    """Runs with HOLOGRAM_CPU_DEVICES = DEVICES only. Every test ends with work on every device."""

    DEVICES = 2
    __test__ = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Other processes must not collect it; unittest, which runs it in its own, does not ask.
        cls.__test__ = hologram.device_count() == cls.DEVICES

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(hologram.device_count(), self.DEVICES)
        self.assertEqual(hologram.current_device(), 0, "left by another test")

    def tearDown(self) -> None:
        self.assertEqual(hologram.current_device(), 0, "not restored")
        for index in range(self.DEVICES):
            x = torch.arange(6.0, device=f"hologram:{index}").reshape(2, 3)
            self.assertEqual((x @ x.t()).tolist(), [[5.0, 14.0], [14.0, 50.0]])
        super().tearDown()

    def assertSame(self, value: torch.Tensor, wanted: torch.Tensor, device: torch.device) -> None:
        """Asserts that a tensor is on a device and has the bits of a CPU tensor."""
        self.assertEqual(value.device, device)
        self.assertEqual(value.cpu(), wanted, rtol=0, atol=0, exact_dtype=True)

    def assertClose(self, value: torch.Tensor, wanted: torch.Tensor, device: torch.device) -> None:
        """Asserts that a tensor is on a device and has a CPU tensor's values, up to rounding."""
        self.assertEqual(value.device, device)
        self.assertEqual(value.cpu(), wanted, exact_dtype=True)


def in_processes_of_their_own(module: str, **variables: str) -> type[HologramTestCase]:
    """The test case that runs a module's SeveralDevicesTestCases where they have their devices.

    Instantiates their parametrized tests.

    Args:
        module: its ``__name__``; all of its cases are defined.
        **variables: of their environment.
    """
    file = sys.modules[module].__file__
    several = [
        case for case in SeveralDevicesTestCase.__subclasses__() if case.__module__ == module
    ]
    for case in several:
        instantiate_parametrized_tests(case)
    elsewhere = sorted({case.DEVICES for case in several} - {hologram.device_count()})

    class TestInProcessesOfTheirOwn(HologramTestCase):
        if elsewhere:  # parametrize() wants a value

            @parametrize("devices", elsewhere)
            def test_several(self, devices):
                process = run_python(
                    """
                    import sys, pytest
                    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
                    sys.exit(pytest.main([*options, *sys.argv[1:]]))
                    """,
                    *(f"{file}::{case.__name__}" for case in several if devices == case.DEVICES),
                    env=several_devices(devices) | variables | {"HOLOGRAM_TEST_SHARD": "1/1"},
                    timeout=300,
                )
                self.assertRegex(process.stdout, r"\n[1-9]\d* passed")
                self.assertNotIn("skipped", process.stdout)

    instantiate_parametrized_tests(TestInProcessesOfTheirOwn)
    return TestInProcessesOfTheirOwn
