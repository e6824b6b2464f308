"""Run the Python tests with the extension compiled under AddressSanitizer.

The extension is built in a copy of the source tree, build/asan/source, so the developer's stays as
it is, and the tests run there in the interpreter that runs this tool. Arguments are pytest's;
without any, every subject test (test/test_*.py) but those marked `full`.

usage: python tools/test_asan.py [pytest arguments]

Reports go to build/asan/report.*, one file for each process, also for children whose output a test
keeps to itself; any report makes the exit status 1. JOBS sets the number of test processes (1).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mirror import ROOT, mirror

FOLDER = ROOT / "build" / "asan"
SOURCE = FOLDER / "source"

OPTIONS = {
    # CPython and torch leave memory to the end of the process on purpose, and so does the core with
    # its singletons, which static destructors of others may still use.
    "detect_leaks": "0",
    # The tests of running out of memory ask for more than there is, and expect malloc to say so.
    "allocator_may_return_null": "1",
    # A file per process, beside what it prints.
    "log_path": str(FOLDER / "report"),
    # Unlike 1, not what Python exits with after an exception: a test that expects that one fails.
    "exitcode": "86",
}

# Tests that measure what the sanitizer changes, by how their ids begin; each with the reason.
KEEPS_MEMORY = "the sanitizer keeps what is freed, to find uses of it"
LEFT_OUT = {
    "test/test_autoload.py::TestImport::test_import_takes_at_most_150_ms": (
        "the sanitizer makes loading the library slower"
    ),
    "test/test_delegate.py::TestMemory::test_resident_memory": KEEPS_MEMORY,
    "test/test_memory.py::TestNoGrowth::test_resident_memory": KEEPS_MEMORY,
}


def library(name: str) -> str:
    """The path of a library of gcc's; raises RuntimeError where gcc has none of the name."""
    path = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(path):
        raise RuntimeError(f"gcc has no {name}: install its sanitizer libraries")
    return os.path.realpath(path)


def build() -> None:
    """Compile what changed; raises CalledProcessError where that fails."""
    mirror(SOURCE)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=SOURCE,
        env={
            **os.environ,
            "HOLOGRAM_SANITIZE": "address",
            # setup.py imports torch, which would load an instrumented extension of an earlier run.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
        check=True,
    )


def environment() -> dict[str, str]:
    """What a process needs to load the instrumented extension; children inherit it."""
    return {
        **os.environ,
        # The sanitizer has to be there before the interpreter, which is not linked with it. Its
        # wrapper of throw looks for the real one as it starts: the C++ library comes along.
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6')}",
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in OPTIONS.items()),
        # Every Python object in a block of its own, so that a write past one is seen.
        "PYTHONMALLOC": "malloc",
        # Before the path of an installed development tree.
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        # Random programs take several times as long here.
        "HOLOGRAM_TEST_PROGRAMS": "2000",
    }


def check_build() -> None:
    """Raises RuntimeError unless the interpreter loads the instrumented extension."""
    program = "import torch_hologram._C as c; print(c.__file__)"
    output = subprocess.run(
        [sys.executable, "-c", f"import torch; {program}"],
        cwd=SOURCE,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = output.stdout.strip().rpartition("\n")[2]
    if output.returncode != 0 or not Path(loaded).is_relative_to(SOURCE):
        raise RuntimeError(f"{SOURCE}: not the extension that loads: {loaded}\n{output.stderr}")
    needed = subprocess.run(["ldd", loaded], capture_output=True, text=True, check=True).stdout
    if "libasan" not in needed:
        raise RuntimeError(f"{loaded} is not instrumented")


def reports() -> list[Path]:
    return sorted(FOLDER.glob("report.*"))


def main() -> int:
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    build()
    for path in reports():
        path.unlink()
    check_build()
    arguments = sys.argv[1:] or ["test", "--ignore=test/conformance", "-m", "not full"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--deselect={test}" for test in LEFT_OUT]  # not -k, which the arguments may have
    command += ["-n", os.environ.get("JOBS", "1"), *arguments]
    status = subprocess.run(command, cwd=SOURCE, env=environment(), check=False).returncode
    found = reports()
    for path in found:
        print(f"\n{path.relative_to(ROOT)}:\n{path.read_text(errors='replace')[:6000]}")
    print(f"AddressSanitizer: {len(found)} reports")
    return status or int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
