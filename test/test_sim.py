"""Backends outside the package: the simulated device of test/sim, and libraries that are none."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import tempfile
import textwrap

from common import ROOT, HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

FOLDER = ROOT / "build" / "sim"


def build_sim() -> str:
    """The folder of the simulated device's library, which is brought up to date."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that share the tests
        done = subprocess.run(
            ["make", "-s", "build/sim/libhologram_sim.so"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return str(FOLDER)


# Values that the queue works on for some time.
PRELUDE = """
import torch
def submit_additions(x, times):
    for _ in range(times):
        x = x + 1
        torch.hologram.flush()
    return x
"""


def run_on_sim(program: str, backends: str = "sim", **env: object) -> str:
    """What the program prints where `backends` are the devices."""
    variables = {"HOLOGRAM_BACKENDS": backends, "HOLOGRAM_BACKEND_PATH": build_sim()}
    variables |= {name: str(value) for name, value in env.items()}
    return run_python(PRELUDE + textwrap.dedent(program), env=variables).stdout


# Each task of a queue takes up to so many microseconds: long enough to see what does not wait.
LATE = {"HOLOGRAM_TEST_SIM_DELAY": 20_000}


class TestSimulatedDevice(HologramTestCase):
    def test_two_devices(self):
        run_on_sim(
            """
            import torch
            assert torch.hologram.device_count() == 2
            for index in range(2):
                properties = torch.hologram.get_device_properties(index)
                assert (properties.backend, properties.name) == ("sim", f"simulated device {index}")
            x = torch.randn(1000, device="hologram:1")
            y = x.to("hologram:0") * 2
            assert y.device.index == 0
            assert torch.equal(y.cpu(), x.cpu() * 2)
            try:
                torch.ones(1, device="hologram:2")
            except RuntimeError as error:
                assert "index 2 is out of range: 2 device(s)" in str(error), error
            else:
                raise AssertionError
            """
        )

    def test_beside_the_cpu(self):
        run_on_sim(
            """
            import torch
            names = [torch.hologram.get_device_properties(i).backend for i in range(3)]
            assert names == ["cpu", "sim", "sim"], names
            torch.manual_seed(0)
            x, w = torch.randn(64, 32), torch.randn(32, 16)
            results = []
            for index in range(3):
                a, b = (t.to(f"hologram:{index}").requires_grad_() for t in (x, w))
                loss = torch.nn.functional.gelu(a @ b + 1).mul(0.5).square().mean()
                loss.backward()
                results.append([loss.detach().cpu(), a.grad.cpu(), b.grad.cpu()])
            for other in results[1:]:
                assert all(torch.equal(p, q) for p, q in zip(results[0], other))
            """,
            backends="cpu,sim",
        )

    def test_nothing_waits_before_the_host_looks(self):
        run_on_sim(
            """
            import time, torch
            x = torch.ones(1000, device="hologram")
            torch.hologram.synchronize()
            start = time.perf_counter()
            event = torch.hologram.Event(enable_timing=True)
            x = submit_additions(x, 20)
            event.record()
            submitted = time.perf_counter() - start
            assert not event.query()
            assert not torch.hologram.current_stream().query()
            assert x[5].item() == 21
            read = time.perf_counter() - start
            assert submitted < read / 2, (submitted, read)
            torch.hologram.synchronize()
            assert event.query() and torch.hologram.current_stream().query()
            """,
            **LATE,
        )

    def test_events_take_the_time_of_the_queue(self):
        run_on_sim(
            """
            import time, torch
            first, last, never = (torch.hologram.Event(enable_timing=True) for _ in range(3))
            x = torch.ones(10, device="hologram")
            torch.hologram.synchronize()
            first.record()
            x = submit_additions(x, 10)
            last.record()
            try:
                first.elapsed_time(last)
            except RuntimeError as error:
                assert "must be completed" in str(error), error
            else:
                raise AssertionError("nobody has waited")
            last.synchronize()
            elapsed = first.elapsed_time(last)  # of ten tasks, each late by 10 ms on average
            assert 20 < elapsed < 400, elapsed
            assert last.elapsed_time(first) == -elapsed
            """,
            **LATE,
        )

    def test_another_device_waits_for_an_event(self):
        run_on_sim(
            """
            import torch
            slow = submit_additions(torch.zeros(100, device="hologram:0"), 5)
            event = torch.hologram.Event()
            event.record()
            with torch.hologram.device(1):
                event.wait()
                fast = torch.ones(100, device="hologram:1") * 2
                torch.hologram.synchronize(1)
            assert event.query()
            assert fast.sum().item() == 200 and slow.sum().item() == 500
            """,
            **LATE,
        )

    def test_memory_is_freed_while_it_is_used(self):
        run_on_sim(
            """
            import torch
            expected = torch.arange(5000.0)
            held = []
            for step in range(200):
                x = torch.arange(5000.0, device="hologram")  # written by the host
                y = x * 2
                torch.hologram.flush()
                del x                                        # while the queue reads it
                z = torch.full((5000,), float(step))
                held.append(z.to("hologram"))                # the host writes to what came back
                held[-1] += y
            for step, z in enumerate(held):
                assert torch.equal(z.cpu(), expected * 2 + step), step
            """,
            HOLOGRAM_TEST_SIM_DELAY=500,
        )

    def test_memory_of_a_loop_stays_flat(self):
        out = run_on_sim(
            """
            import torch
            x = torch.ones(1 << 16, device="hologram")
            reserved = []
            for step in range(300):
                x = (x * 1.5 + 1) / 2
                torch.hologram.flush()
                if step in (20, 299):
                    reserved.append(torch.hologram.memory_reserved())
            print(*reserved)
            torch.hologram.empty_cache()
            assert abs(x[0].item() - 2) < 1e-3  # the fixed point
            """,
            HOLOGRAM_TEST_SIM_DELAY=2000,
        )
        early, late = map(int, out.split())
        self.assertEqual(early, late)

    def test_bytes_seen_from_outside_are_there(self):
        run_on_sim(
            """
            import torch
            x = torch.zeros(1000, device="hologram")
            assert x.__dlpack_device__() == (1, 0)  # kDLCPU
            seen = torch.from_dlpack(x)
            for step in range(5):
                x += 1
                assert seen[7].item() == step + 1
            """,
            **LATE,
        )

    @parametrize("end", ["pass", "os._exit(0)", "sys.exit(0)"])
    def test_exit_with_work_in_flight(self, end):
        run_on_sim(
            f"""
            import os, sys, torch
            x = torch.ones(1000, device="hologram")
            x = submit_additions(x, 20)
            {end}
            """,
            **LATE,
        )

    def test_fork_with_work_in_flight(self):
        run_on_sim(
            """
            import os, torch
            x = torch.ones(1000, device="hologram")
            x = submit_additions(x, 5)
            child = os.fork()
            if child == 0:
                try:
                    x + 1
                except RuntimeError as error:
                    os._exit(0 if "fork" in str(error) else 1)
                os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert x[3].item() == 6
            """,
            **LATE,
        )


class TestPage(HologramTestCase):
    """docs/add-a-backend.md says what the code says."""

    PAGE = (ROOT / "docs" / "add-a-backend.md").read_text()

    def test_it_has_every_function(self):
        interface = {}
        for header in ("backend.h", "queue.h"):
            text = (ROOT / "csrc" / "atlas" / header).read_text()
            for name, body in re.findall(r"^class (\w+)(.*?)^};", text, re.M | re.S):
                for function in re.findall(
                    r"^  virtual [^;]*?(\w+)\([^;]*\)[^;()]*= 0;", body, re.M
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
        self.assertEqual(len(excerpts), 2)
        for file, code in excerpts:
            self.assertIn(code, (ROOT / file).read_text())

    def test_its_files_are_there(self):
        for file in re.findall(r"`((?:test|csrc)/[\w/.]+\.\w+)`", self.PAGE):
            self.assertTrue((ROOT / file).exists(), file)


# A library with the function hologram_backend() that answers a text.
LIBRARY = """
struct Library { const char* interface; };
extern "C" const Library* hologram_backend() {
  static const Library library{"hologram backend interface 0, C++ ABI 1"};
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
        self.assertIn("was built for 'hologram backend interface 0, C++ ABI 1', not for", text)
        self.assertIn("'hologram backend interface 1, C++ ABI ", text)

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


instantiate_parametrized_tests(TestSimulatedDevice)

if __name__ == "__main__":
    run_tests()
