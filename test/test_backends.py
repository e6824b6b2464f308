"""Backends outside the package: the page that says how to add one, and libraries that are none."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile

from common import ROOT, HologramTestCase, run_python
from sim_device import build_sim
from torch.testing._internal.common_utils import run_tests


class TestPage(HologramTestCase):
    """docs/add-a-backend.md says what the code says."""

    PAGE = (ROOT / "docs" / "add-a-backend.md").read_text()

    def test_it_has_every_function(self):
        interface = {}
        for header in ("backend.h", "queue.h"):
            text = (ROOT / "csrc" / "atlas" / header).read_text()
            for name, body in re.findall(r"^class (\w+)(.*?)^};", text, re.M | re.S):
                for function in re.findall(
                    r"^  virtual [^;{]*?(\w+)\([^;{]*\)[^;(){]*(?:= 0;|\{)", body, re.M
                ):
                    owner = "Backend" if name == "PlanCompiler" else name
                    interface[f"{owner}::{function}"] = header
        self.assertGreaterEqual(len(interface), 14)
        for name in interface:
            self.assertIn(f"`{name}`", self.PAGE)
        for name in re.findall(r"`((?:Backend|Queue|PlanCode|Moment)::\w+)`", self.PAGE):
            self.assertIn(name, interface)

    def test_its_code_is_that_of_the_simulated_device(self):
        excerpts = re.findall(r"<!-- from: (\S+) -->\n```cpp\n(.*?)```", self.PAGE, re.S)
        self.assertEqual(len(excerpts), 3)
        for file, code in excerpts:
            self.assertIn(code, (ROOT / file).read_text())

    def test_backend_folders_have_equal_files(self):
        table = self.PAGE.split("| file |")[1].split("\n\n")[0]
        files = re.findall(r"`(\w+\.(?:h|cpp))`", table)
        self.assertEqual(len(files), 6)
        for file in files:
            self.assertTrue((ROOT / "csrc" / "cpu" / file).exists(), file)
            if file != "code.h":
                self.assertTrue((ROOT / "test" / "sim" / file).exists(), file)

    def test_its_files_are_there(self):
        for file in re.findall(r"`((?:test|csrc)/[\w/.]+\.\w+)`", self.PAGE):
            self.assertTrue((ROOT / file).exists(), file)


# A library with the function hologram_backend() that answers a text.
LIBRARY = """
struct Library { const char* interface; };
extern "C" const Library* hologram_backend() {
  static const Library library{"hologram backend interface 14, C++ ABI 1"};
  return &library;
}
"""


class TestLibraries(HologramTestCase):
    def compile(self, source: str) -> str:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        output = os.path.join(folder, "libhologram_odd.so")
        compiler = os.environ.get("CXX", "g++")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", output],
            input=source,
            text=True,
            check=True,
        )
        return folder

    def warned(self, path: str) -> str:
        """What is said of the backend "odd" where the CPU is left; both devices' lists go on."""
        return run_python(
            """
            import warnings
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                import torch
                assert torch.hologram.device_count() == 1
                assert torch.ones(3, device="hologram").sum().item() == 3
            print(*(w.message for w in caught if "odd" in str(w.message)))
            """,
            env={"HOLOGRAM_BACKENDS": "odd,cpu", "HOLOGRAM_BACKEND_PATH": path},
        ).stdout

    def test_missing(self):
        for path in ("", "/nowhere", "/nowhere:/"):
            with self.subTest(path):
                text = self.warned(path)
                self.assertIn("names 'odd', which this build does not have", text)
                self.assertIn("libhologram_odd.so is in no folder of HOLOGRAM_BACKEND_PATH", text)
                self.assertIn(f"'{path}'" if path else "which is not set", text)

    def test_of_another_interface(self):
        text = self.warned(self.compile(LIBRARY))
        self.assertIn("was built for 'hologram backend interface 14, C++ ABI 1', not for", text)
        self.assertIn("'hologram backend interface 14, C++ ABI ", text)

    def test_without_the_function(self):
        text = self.warned(self.compile("int nothing;"))
        self.assertIn("does not have the function hologram_backend()", text)

    def test_without_a_symbol_it_needs(self):
        text = self.warned(self.compile("void absent(); void f() { absent(); }" + LIBRARY))
        self.assertIn("library does not load: ", text)
        self.assertIn("absent", text)

    def test_that_is_no_library(self):
        folder = self.compile("int nothing;")
        with open(os.path.join(folder, "libhologram_odd.so"), "w") as file:
            file.write("not a library")
        self.assertIn("library does not load: ", self.warned(folder))

    def test_without_devices(self):
        text = run_python(
            """
            import warnings
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                import torch
                assert torch.hologram.is_available() and torch.hologram.device_count() == 1
            print(*(w.message for w in caught if "sim" in str(w.message)))
            """,
            env={
                "HOLOGRAM_BACKENDS": "sim,cpu",
                "HOLOGRAM_BACKEND_PATH": build_sim(),
                "HOLOGRAM_TEST_SIM_DEVICES": "0",
            },
        ).stdout
        self.assertIn("names 'sim', which has no device on this machine", text)


if __name__ == "__main__":
    run_tests()
