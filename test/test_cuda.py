"""NVIDIA's GPUs as a backend: what is said on a machine that has none, and the bits of one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from common import ROOT, HologramTestCase, run_python
from torch.testing._internal.common_utils import run_tests

# No GPU is visible, whether or not the machine has a driver.
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
REASONS = "whose driver is not installed: libcuda|which has no device on this machine"


class TestWithoutGpu(HologramTestCase):
    def test_the_list_goes_on_with_the_cpu(self):
        process = run_python(
            f"""
            import re, warnings
            with warnings.catch_warnings(record=True) as at_import:
                warnings.simplefilter("always")
                import torch
                import torch_hologram
            assert not any("HOLOGRAM" in str(w.message) for w in at_import), at_import
            with warnings.catch_warnings(record=True) as at_use:
                warnings.simplefilter("always")
                x = torch.ones(3, device="hologram") + 1
            assert x.tolist() == [2, 2, 2]
            assert torch.hologram.device_count() == 1
            assert torch.hologram.get_device_properties(0).backend == "cpu"
            (warning,) = [str(w.message) for w in at_use if "HOLOGRAM" in str(w.message)]
            assert re.search("HOLOGRAM_BACKENDS names 'cuda', ({REASONS})", warning), warning
            """,
            env={**WITHOUT_GPU, "HOLOGRAM_BACKENDS": "cuda,cpu"},
        )
        self.assertEqual(process.stderr, "")

    def test_without_another_device(self):
        run_python(
            f"""
            import re
            import torch
            assert torch.hologram.device_count() == 0
            try:
                torch.ones(3, device="hologram")
            except RuntimeError as error:
                assert re.search("names 'cuda', ({REASONS})", str(error)), error
            else:
                raise AssertionError("there is a device")
            assert torch.ones(3).sum() == 3
            """,
            env={**WITHOUT_GPU, "HOLOGRAM_BACKENDS": "cuda"},
        )


@pytest.mark.cuda
class TestBitsOfAGpu(HologramTestCase):
    def test_common_programs_equal_the_cpu(self):
        folders = [str(ROOT), str(ROOT / "tools")]
        path = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))
        process = subprocess.run(
            [sys.executable, "test/equal_on_devices.py"],
            cwd=ROOT,
            env={**os.environ, "HOLOGRAM_BACKENDS": "cuda,cpu", "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        compared = re.search(r"(\d+) programs compared", process.stdout)
        self.assertGreater(int(compared[1]), 6000)
        ran = {
            name: int(n)
            for name, n in re.findall(r"(emitted|cold|on the CPU) (\d+)", process.stdout)
        }
        self.assertEqual(ran["on the CPU"], 0)
        self.assertGreater(ran["emitted"], 50 * ran["cold"])  # what is common has its own kernels


if __name__ == "__main__":
    run_tests()
