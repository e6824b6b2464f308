"""csrc/metal/runtime.cpp without a Mac: as it is, on the Metal runtime of test/metal; and its types
as a compiler for macOS sees them.

The cases are those of test/metal/check, each in a process of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT
from sim_device import made

CHECK = ROOT / "build" / "metal" / "check"
HEADERS = ROOT / "build" / "metal" / "include"
SOURCE = ROOT / "csrc" / "metal" / "runtime.cpp"
PREFIX = "HOLOGRAM_TEST_METAL_"

# Those that end with 0.
RUNNING = "device pointwise rows arguments_by_index order two_queues between events times".split()
RUNNING += "callbacks no_kernel leaks".split()

# Case, variables, and what it prints, which the backend's users would read.
FAULTS = [
    ("no_device", {"NO_DEVICE": 1}, r"Metal: there is no device"),
    (
        "no_device",
        {"OS_VERSION": "13.6.0"},
        r"Metal: macOS 14 or newer is needed, this is 13\.6",
    ),
    (
        "no_device",
        {"FAMILY": 6},
        r"Metal: a GPU of Apple's is needed, M1 or later; this is simulated Metal GPU",
    ),
    ("no_device", {"FAMILY": 0}, r"Metal: a GPU of Apple's is needed, .*"),
    ("no_device", {"OWN_MEMORY": 1}, r"Metal: a GPU of Apple's is needed, .*"),
    ("no_buffer", {"NO_BUFFER": 2, "MOST_BUFFER_BYTES": 32768}, r""),
    (
        "compile_error",
        {},
        r"Metal: kernels do not compile: kernel:41:20: error: use of undeclared identifier"
        r" 'wrong'\n   41 \|   y\[i\] = left\[i\] - wrong;\n(.*\n)+1 error generated\.",
    ),
    (
        "refused_library",
        {"COMPILE_ERROR": 2},
        r"Metal: kernels do not compile: kernel:1:1: error: as a test wants it",
    ),
    (
        "no_pipeline",
        {"NO_PIPELINE": 1},
        r"Metal: no pipeline of kernel linear: no pipeline, as a test wants it",
    ),
    (
        "no_pipeline",
        {"SIMD_WIDTH": 16},
        r"Metal: simdgroups of kernel linear have 16 threads; kernels are written for 32",
    ),
    ("failed_commands", {"FAILED_COMMANDS": 2}, r"command buffer failed: as a test wants it"),
    (
        "much_threadgroup_memory",
        {},
        r"command buffer failed: much_memory: 40000 bytes of threadgroup memory: "
        r"there are 32768 .*",
    ),
    (
        "many_threads",
        {},
        r"command buffer failed: increment: 2048 threads of a threadgroup: there may be 1024",
    ),
    (
        "more_threads_than_the_pipeline_has",
        {"MOST_THREADS": 64},
        r"command buffer failed: increment: 96 threads of a threadgroup: there may be 64",
    ),
    (
        "barrier_of_some",
        {},
        r"command buffer failed: barrier_of_some: not all threads reach a barrier: "
        r"3 wait at kernel:51:14, 29 have left the kernel .*",
    ),
]

# What the process says where it is ended.
MISUSE = {
    "open_encoder": "commit: an encoder of the command buffer is open",
    "encoder_that_has_not_ended": "an encoder is released that has not ended",
    "signal_with_an_open_encoder": "a signal of an event: an encoder of the command buffer is open",
    "concurrent_encoder": "an encoder of kernels that do not wait for each other",
    "two_commits": "commit: the command buffer is committed",
    "dead_object": "status is sent to a dead MTLCommandBuffer",
    "dead_argument": "retain of a dead MTLSharedEvent",
    "two_releases": "release is sent to a dead MTLSharedEvent",
    "no_pool": "MTLCommandBuffer is autoreleased without a pool",
    "pools_out_of_order": "an autorelease pool that is not the latest ends",
    "thread_with_a_pool": "a thread ends with an autorelease pool",
    "unknown_selector": "-[MTLDevice newFence] is not known",
    "unknown_selector_of_a_class": "+[NSString string] is not known",
    "nil": "signaledValue is sent to nil",
    "fast_math": "a library with fast math",
    "other_language": "a library of another language than MSL 3.1",
    "buffer_in_use": "a buffer is released before kernels that use it have ended",
    "buffer_gone_before_commit": "a buffer is released before kernels that use it have ended",
    "half_a_page": "a buffer of 20480 bytes, which are not whole pages",
    "within_a_page": "a buffer of memory that does not begin with a page",
    "no_bytes": "a buffer of 0 bytes, which are not whole pages",
    "no_memory_there": "a buffer of memory that is not there",
    "memory_of_another_buffer": "a buffer of memory that is another buffer's",
    "many_buffers": "argument 31: the last one is 30",
    "many_bytes": "argument 2 of 4100 bytes: there may be 1 to 4096",
    "part_of_a_simdgroup": "a threadgroup of 48 threads: no whole simdgroups",
    "no_blocks": "a dispatch of no threads",
    "missing_buffer": "argument 1 of kernel linear is missing",
    "missing_parameters": "argument 2 of kernel linear is missing",
    "other_parameters": "argument 2 of kernel linear has 12 bytes, given are 16",
    "one_argument_too_many": "argument 1 of kernel increment is given, but it has none",
    "behind_the_buffer": "argument 0 begins behind its buffer",
    "event_that_falls": "an event of value 2 falls to 1",
    "many_command_buffers": "a command buffer is made that waits forever: "
    "none of the queue's is committed",
    "in_a_child": "commit: in a child of the process",
}


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    with made(CHECK):
        pass


def run(case: str, given: str = "", **settings: object) -> subprocess.CompletedProcess[str]:
    environment = {name: its for name, its in os.environ.items() if not name.startswith(PREFIX)}
    environment |= {PREFIX + name: str(its) for name, its in settings.items()}
    return subprocess.run(
        [str(CHECK), case],
        input=given,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def output_of(case: str, given: str = "", **settings: object) -> str:
    done = run(case, given, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("case", RUNNING)
def test_running(case: str) -> None:
    assert output_of(case) == ""


def test_slow_queues() -> None:
    """Late threads are later than the host by far, in another order."""
    for case in ("two_queues", "events", "callbacks"):
        output_of(case, DELAY=20_000, SEED=7)


def test_before_math_modes() -> None:
    """macOS 14 does not know them: libraries are made without fast math in its own way."""
    output_of("pointwise", OS_VERSION="14.0.0")


@pytest.mark.parametrize(("case", "settings", "expected"), FAULTS)
def test_faults(case: str, settings: dict[str, object], expected: str) -> None:
    said = output_of(case, **settings)
    assert re.fullmatch(expected, said.removesuffix("\n")), said


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(case: str) -> None:
    done = run(case)
    assert done.stderr.splitlines()[-1:] == [f"simulated Metal: {MISUSE[case]}"], done.stderr
    assert done.returncode == -signal.SIGABRT


def test_a_kernel_that_leaves_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    # Under AddressSanitizer, which would end the process in its own way.
    options = [os.environ.get("ASAN_OPTIONS", ""), "handle_segv=0"]
    monkeypatch.setenv("ASAN_OPTIONS", ":".join(filter(None, options)))
    assert run("beyond_the_end").returncode == -signal.SIGSEGV


def test_every_case_is_run() -> None:
    done = subprocess.run([str(CHECK)], capture_output=True, text=True, check=True)
    cases = {*RUNNING, *MISUSE, *(case for case, _, _ in FAULTS), "text", "beyond_the_end"}
    assert set(done.stdout.split()) == cases


def dialect() -> str:
    """The kernel dialect in one text, as a compiler without folders has to have it."""
    folder = ROOT / "csrc" / "gpu" / "dialect"

    def flat(name: str) -> str:
        text = (folder / name).read_text()
        include = re.compile(r'^#include "(\w+\.h)"$', re.M)
        return include.sub(lambda found: "" if "cuda" in found[1] else flat(found[1]), text)

    return flat("hologram_gpu.h")


KERNEL = """
HG_KERNEL(halve, HG_CBUF(float, x, 0), HG_BUF(float, y, 1), HG_PARAM(hg_u32, n, 2)) {
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i < n) y[i] = 0.5f * x[i];
}
"""


def test_the_dialect_in_one_text() -> None:
    assert output_of("text", dialect() + KERNEL) == "halve\n"


def compile_for_macos(text: str, folder: Path) -> str:
    """What clang says of a file of the backend's where it compiles for Apple's processors.

    It has Apple's standard library, and in place of macOS's C library glibc's for arm64.
    """
    llvm = subprocess.run(
        ["clang++-19", "-print-resource-dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    stubs = ROOT / "test" / "metal"
    include = [f"{llvm}/../../../include/c++/v1", f"{llvm}/include", stubs / "stubs_apple"]
    include += ["/usr/aarch64-linux-gnu/include", stubs / "stubs", HEADERS]
    path = folder / "checked.cpp"
    path.write_text(text)
    done = subprocess.run(
        [
            *("clang++-19", "-std=c++20", "-fblocks", "-fsyntax-only", "-Wall", "-Wextra"),
            *("-Werror", "-target", "arm64-apple-macos14", "-U__nonnull", "-D_GNU_SOURCE"),
            *("-D_LIBCPP_HAS_NO_LOCALIZATION", "-D_LIBCPP_HAS_NO_THREADS", "-nostdinc++"),
            *(part for its in include for part in ("-isystem", str(its))),
            *("-I", str(ROOT / "build" / "metal" / "core")),
            *("-I", str(ROOT / "torch_hologram" / "include"), str(path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


def test_types_on_macos(tmp_path: Path) -> None:
    text = SOURCE.read_text()
    assert compile_for_macos(text, tmp_path) == ""
    # It would say so if one were wrong.
    for right, wrong, said in (
        ("MTL::Size(threads, 1, 1)", "threads", "no matching member function"),
        ("setMathMode(MTL::MathModeSafe)", "setMathMode(1)", "cannot initialize a parameter"),
        ("done->GPUStartTime()", "done->gpuStartTime()", "no member named 'gpuStartTime'"),
    ):
        assert right in text
        assert said in compile_for_macos(text.replace(right, wrong), tmp_path)


def fetch(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "metal_cpp.py"), *arguments, str(folder)]
    environment = os.environ | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_headers_that_cannot_be_fetched(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    done = fetch(tmp_path / "headers", **nowhere, PIP_FIND_LINKS="", PIP_EXTRA_INDEX_URL="")
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    said = "metal_cpp: pip cannot download mlx-metal=="
    assert line.startswith(said)
    other = tmp_path / "other.whl"
    other.write_bytes(b"something else")
    done = fetch(tmp_path / "headers", "--wheel", str(other))
    assert done.returncode == 1 and done.stderr.endswith(": it has another hash\n")
    assert not (tmp_path / "headers").exists()


def test_headers_are_fetched_once() -> None:
    before = (HEADERS / "Metal" / "Metal.hpp").stat()
    done = fetch(HEADERS, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (HEADERS / "Metal" / "Metal.hpp").stat() == before


def test_only_one_file_sees_metal_cpp() -> None:
    seen = [
        path.name
        for path in SOURCE.parent.rglob("*.*")
        if re.search(r"#include <(Metal|Foundation)/", path.read_text())
    ]
    assert seen == ["runtime.cpp"]
    # A compiler for macOS could not read these in this environment, nor is there a need.
    assert not re.search(r"#include <(thread|iostream|mutex)>", SOURCE.read_text())
