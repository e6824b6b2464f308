"""The CUDA backend without a GPU: kernels that are compiled while the program goes on."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from pathlib import Path

from common import ROOT, HologramTestCase, run_python
from cuda_driver import DEVICES, FOLDER, build_driver, write_kernels
from sim_device import PRELUDE, made
from torch.testing._internal.common_utils import run_tests

sys.path.append(str(ROOT / "tools"))
from build_kernels import dialect

START = (
    DEVICES
    + """
import time

def compiled():
    stats = torch.hologram.stream_stats(gpu)
    return tuple(stats[f"kernels.{name}"] for name in ("compiled", "failed", "found"))

def swish(x, y):
    return x * torch.sigmoid(y) + x

x, y = torch.randn(40, 30), torch.randn(40, 30)
gpu_x, gpu_y = x.to(gpu), y.to(gpu)
expected = swish(x.to(cpu), y.to(cpu)).cpu()

def check():
    assert torch.equal(swish(gpu_x, gpu_y).cpu(), expected)
"""
)


class TestCompiling(HologramTestCase):
    def run_compiling(self, program: str, **env: str) -> str:
        """Returns what the program says on stderr."""
        variables = build_driver()
        with made(FOLDER / "libnvrtc.so.13"), tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "hologram_gpu.h").write_text(dialect())
            variables |= {
                "HOLOGRAM_BACKENDS": "cpu,cuda",
                "HOLOGRAM_CUDA_KERNELS": write_kernels(Path(folder)),
                "HOLOGRAM_NVRTC": str(FOLDER / "libnvrtc.so.13"),
            }
            text = PRELUDE + START + textwrap.dedent(program)
            return run_python(text, env=variables | env, timeout=150).stderr

    def test_nobody_waits(self):
        said = self.run_compiling(
            """
            check(); check()
            assert runs()["emitted"] == 0 and compiled() == (0, 0, 0), "what runs once"
            deadline = time.monotonic() + 100
            while runs()["emitted"] == 0 and time.monotonic() < deadline:
                check()
                time.sleep(0.01)
            assert compiled() == (1, 0, 0), compiled()
            before = runs()
            for _ in range(5):
                check()
            after = runs()
            assert after["emitted"] - before["emitted"] == 5 and after["cold"] == before["cold"]
            # Elsewhere in memory and of another size it is the same kernel.
            larger = torch.randn(77, 130)
            for _ in range(2):
                wanted = swish(larger.to("hologram:0"), larger.to("hologram:0")).cpu()
                assert torch.equal(
                    swish(larger.to("hologram:1"), larger.to("hologram:1")).cpu(), wanted)
            assert runs()["emitted"] - after["emitted"] >= 1
            """
        )
        self.assertEqual(said, "")

    def test_rows_and_many_tensors(self):
        self.run_compiling(
            """
            def both(device):
                torch.manual_seed(0)
                model = torch.nn.Sequential(torch.nn.LayerNorm(30), torch.nn.Linear(30, 7))
                model.to(device)
                optimizer = torch.optim.AdamW(model.parameters())
                for _ in range(12):
                    loss = torch.log_softmax(model(x.to(device)), 1).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                return [p.detach().cpu() for p in model.parameters()]

            for one, other in zip(both("hologram:0"), both("hologram:1")):
                torch.testing.assert_close(one, other)
            assert compiled()[0] >= 3 and compiled()[1] == 0, compiled()
            assert runs()["emitted"] >= 3, runs()
            """,
            HOLOGRAM_COMPILE="wait",
        )

    def test_what_does_not_compile(self):
        said = self.run_compiling(
            """
            for _ in range(6):
                check()
                assert torch.equal((gpu_x - gpu_y).cpu(), x - y)
            assert compiled() == (1, 1, 0), compiled()
            assert runs()["emitted"] >= 2, "the other one"
            """,
            HOLOGRAM_COMPILE="wait",
            HOLOGRAM_TEST_NVRTC_REFUSES="hg_op_sigmoid",
        )
        self.assertEqual(said.count("torch_hologram: the kernel hg_"), 1, said)
        self.assertIn("hologram.cu(1): error: hg_op_sigmoid is refused", said)

    def test_without_a_compiler(self):
        said = self.run_compiling(
            "for _ in range(6):\n    check()\nassert compiled() == (0, 1, 0), compiled()",
            HOLOGRAM_COMPILE="wait",
            HOLOGRAM_NVRTC="/nowhere/libnvrtc.so.13",
        )
        self.assertIn("HOLOGRAM_NVRTC: /nowhere/libnvrtc.so.13", said)

    def test_switched_off(self):
        said = self.run_compiling(
            "for _ in range(6):\n    check()\nassert compiled() == (0, 0, 0), compiled()",
            HOLOGRAM_COMPILE="0",
            HOLOGRAM_NVRTC="/nowhere/libnvrtc.so.13",
        )
        self.assertEqual(said, "")

    def test_a_forked_child_ends(self):
        """It has not the thread that compiles."""
        self.run_compiling(
            """
            import os
            for _ in range(4):
                check()
            assert compiled() == (1, 0, 0)
            if os.fork() == 0:
                raise SystemExit(3)
            _, status = os.wait()
            assert os.waitstatus_to_exitcode(status) == 3, status
            check()
            """,
            HOLOGRAM_COMPILE="wait",
        )

    def test_while_something_is_compiled(self):
        """The library has its objects until the thread is done with it."""
        for _ in range(3):
            said = self.run_compiling(
                "for _ in range(4):\n    check()", HOLOGRAM_TEST_NVRTC_MS="700"
            )
            self.assertEqual(said, "")

    def kept(self, folder: str) -> Path:
        """The one file there."""
        (path,) = Path(folder).rglob("*.kernels")
        return path

    def test_found_on_disk_by_the_next_process(self):
        with tempfile.TemporaryDirectory() as folder:
            caches = str(Path(folder) / "caches" / "hologram")
            many = "for _ in range(4):\n    check()\n"
            ways = {"HOLOGRAM_COMPILE": "wait", "HOLOGRAM_CACHE_DIR": caches}
            self.run_compiling(many + "assert compiled() == (1, 0, 0), compiled()", **ways)
            self.assertEqual(Path(caches).stat().st_mode & 0o777, 0o700)
            self.assertEqual(self.kept(caches).stat().st_mode & 0o777, 0o600)
            said = self.run_compiling(
                "check(); check()\n"
                "assert compiled() == (0, 0, 1) and runs()['emitted'] >= 1, (compiled(), runs())",
                **ways,
                HOLOGRAM_NVRTC="/nowhere/libnvrtc.so.13",
            )
            self.assertEqual(said, "")

            # Other code is another kernel.
            said = self.run_compiling(
                """
                for _ in range(8):
                    (gpu_x * gpu_y - 2).cpu()
                    check()
                assert compiled() == (1, 0, 1), compiled()
                """,
                **ways,
            )
            self.assertEqual(said, "")
            self.assertEqual(len(list(Path(caches).rglob("*.kernels"))), 2)

    def test_damaged_files(self):
        many = "for _ in range(4):\n    check()\n"
        with tempfile.TemporaryDirectory() as folder:
            ways = {"HOLOGRAM_COMPILE": "wait", "HOLOGRAM_CACHE_DIR": folder}
            self.run_compiling(many, **ways)
            path = self.kept(folder)
            whole = path.read_bytes()
            format, _, rest = whole.split(b"\n", 2)
            refused = rest[: rest.index(b"\n\n") + 2] + b"no module"
            hash = 0xCBF29CE484222325  # FNV-1a
            for byte in refused:
                hash = (hash ^ byte) * 0x100000001B3 % 2**64
            for damaged, words in (
                (whole[:-40], "the file is damaged"),
                (whole[:-1] + bytes([whole[-1] ^ 1]), "the file is damaged"),
                (b"", "no file of this version"),
                (b"kernels 0" + whole, "no file of this version"),
                (b"\n".join((format, b"0" * 16, rest)), "the file is damaged"),
                (b"\n".join((format, b"%016x" % hash, refused)), "cuModuleLoadData"),
            ):
                path.write_bytes(damaged)
                said = self.run_compiling(
                    many
                    + "assert compiled() == (1, 0, 0), compiled()\n"
                    + "assert torch.hologram.stream_stats(gpu)['kernels.discarded'] == 1\n"
                    + "assert 'kernels.found' not in torch.hologram.stream_stats(cpu)",
                    **ways,
                )
                self.assertIn(f"torch_hologram: compiled kernels in {path}: {words}", said)
                self.assertEqual(self.kept(folder).read_bytes(), whole)

    def test_folders_that_are_not_used(self):
        many = "for _ in range(4):\n    check()\nassert compiled() == (1, 0, 0), compiled()"
        with tempfile.TemporaryDirectory() as folder:
            shared = Path(folder) / "shared"
            shared.mkdir()
            shared.chmod(0o777)
            file = Path(folder) / "file"
            file.write_text("something else")
            link = Path(folder) / "link"
            link.symlink_to("/tmp")
            for path, words in (
                (shared, "others can write it"),
                (file, "it is no folder"),
                (link, "others can write it"),
                (file / "below", "Not a directory"),
            ):
                said = self.run_compiling(
                    many, HOLOGRAM_COMPILE="wait", HOLOGRAM_CACHE_DIR=str(path)
                )
                self.assertEqual(
                    said, f"torch_hologram: compiled kernels in {path}: {words}; none are kept\n"
                )
            self.assertEqual(file.read_text(), "something else")
            self.assertEqual(list(shared.iterdir()), [])

    def test_what_was_not_used_for_long_goes(self):
        with tempfile.TemporaryDirectory() as folder:
            old = Path(folder) / "of-another-version"
            old.mkdir()
            for number, megabytes in enumerate((200, 100, 100)):
                path = old / f"{number}.kernels"
                path.touch()
                os.truncate(path, megabytes << 20)
                os.utime(path, (number, number))
            other = old / "notes.txt"
            other.touch()
            self.run_compiling(
                "for _ in range(4):\n    check()",
                HOLOGRAM_COMPILE="wait",
                HOLOGRAM_CACHE_DIR=folder,
            )
            left = sorted(path.name for path in old.iterdir())
            self.assertEqual(left, ["1.kernels", "2.kernels", "notes.txt"])
            self.assertEqual(len(list(Path(folder).rglob("*.kernels"))), 3)

    def test_the_process_ends_while_something_is_compiled(self):
        self.run_compiling("for _ in range(3):\n    check()\n    (gpu_x * 3 - gpu_y).exp().cpu()")


if __name__ == "__main__":
    run_tests()
