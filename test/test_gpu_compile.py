"""Emitted GPU kernels through NVIDIA's compilers, which need no GPU.

csrc/test/emit_kernels.cpp writes the texts, tools/compile_kernels.py compiles them. That these
kernels compute what they should, test_gpu_dialect.py and `make -C csrc/test gpu` test.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from common import ROOT

sys.path.append(str(ROOT / "tools"))  # after test/, which has a package of the same name as one
import compile_kernels
from build_kernels import dialect
from compile_kernels import ARCHITECTURES, MOST_REGISTERS, CompileError, Nvrtc, Text

FULL = os.environ.get("HOLOGRAM_TEST_FULL") == "1"
INCLUDE = '#include "hologram_gpu.h"\n'
# A block has this many registers; blocks that fold a row have up to 1024 threads, or of f64 and of
# normal draws 512, those that scan rows 288, others 256.
REGISTERS_OF_BLOCK = 65536


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    build = ROOT / "build" / "core-test"
    build.mkdir(parents=True, exist_ok=True)
    with (build / "kernels.lock").open("w") as lock:  # of other test processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "-C", ROOT / "csrc" / "test", "-j", "2", "kernels-build"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    folder = tmp_path_factory.mktemp("kernels")
    subprocess.run([build / "kernels" / "test", folder], check=True, stdout=subprocess.DEVNULL)
    return compile_kernels.find_texts(folder)


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return Nvrtc()


def some_of_each_kind(texts: list[Text]) -> list[Text]:
    """Of each kind the first and the last; in a full run all."""
    taken: list[Text] = []
    for kind in Counter(text.kind for text in texts):
        its = [text for text in texts if text.kind == kind]
        taken += its if FULL else its[:1] + its[1:][-1:]
    return taken


def most_registers(text: Text) -> int:
    threads = 256
    if text.kind.startswith("rows_by_block"):
        threads = 512 if "f64" in text.label or "normal" in text.label else 1024
    elif text.kind.startswith(("scan_few", "scan_many")):
        threads = 288
    return min(MOST_REGISTERS, REGISTERS_OF_BLOCK // threads)


# What is newest takes other registers than what is measured on.
@pytest.mark.parametrize("architecture", ["sm_90", ARCHITECTURES[-1]])
def test_bounded_registers_are_enough(architecture: str, texts: list[Text], nvrtc: Nvrtc) -> None:
    """Of kernels with a row for each warp, of which a processor is to have room for many."""
    rows = [text for text in texts if text.kind.startswith("rows_by_warp_vectors")]
    assert len(rows) > 10
    for text in rows:
        compile_kernels.compile_text(nvrtc, text, architecture)
        for name, usage in text.compiled[architecture].kernels.items():
            assert usage.spilled == 0, (text.label, name, usage)


@pytest.mark.parametrize(
    "architecture",
    [
        name if name == "sm_90" else pytest.param(name, marks=pytest.mark.full)
        for name in ARCHITECTURES
    ],
)
def test_nvrtc_compiles_emitted_kernels(architecture: str, texts: list[Text], nvrtc: Nvrtc) -> None:
    chosen = some_of_each_kind(texts)
    assert len(chosen) >= 50
    assert [len(text.names) for text in chosen if text.label == "libraries/cold"] == [18]
    for text in chosen:
        compile_kernels.compile_text(nvrtc, text, architecture)
        compiled = text.compiled[architecture]
        assert set(compiled.kernels) == set(text.names), text.label
        assert len(text.names) == 1 or text.kind == compile_kernels.LIBRARIES, text.label
        assert compiled.code.startswith(b"\x7fELF"), text.label
        assert "warning" not in compiled.log, f"{text.label}: {compiled.log}"
        for name, usage in compiled.kernels.items():
            assert usage.registers <= most_registers(text), (text.label, name, usage)
            assert usage.spilled == 0, (text.label, name, usage)


@pytest.mark.full  # half a minute for each architecture
@pytest.mark.skipif(compile_kernels.nvcc() is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_compiles_emitted_kernels(architecture: str, texts: list[Text]) -> None:
    count = 0
    for some in compile_kernels.calls_of_nvcc(texts):
        compiled = compile_kernels.compile_with_nvcc(some, architecture)
        assert "warning" not in compiled.log, compiled.log
        count += len(compiled.kernels)
    assert count == sum(len(text.names) for text in texts)


def test_the_dialect_as_one_text(nvrtc: Nvrtc, tmp_path: Path) -> None:
    """As a backend has it that compiles while a program runs."""
    text = INCLUDE + (
        "HG_KERNEL(narrow, HG_BUF(hg_bf16, to, 0), HG_BUF(hg_f32, x, 1)) {\n"
        "  to[HG_LID] = hg_convert<hg_bf16>(x[HG_LID]);\n"
        "}\n"
    )
    expected = nvrtc.compile(text, "narrow.hgk", "sm_90").code
    whole = tmp_path / "hologram_gpu.h"
    whole.write_text(dialect())
    alone = Nvrtc()
    alone._headers = [whole]
    assert alone.compile(text, "narrow.hgk", "sm_90").code == expected


def test_what_a_kernel_uses(nvrtc: Nvrtc) -> None:
    text = INCLUDE + (
        "HG_KERNEL(turn, HG_BUF(hg_f32, x, 0)) {\n"
        "  HG_SHARED(hg_f32, s, 96)\n"
        "  s[HG_LID] = x[HG_LID];\n"
        "  HG_SYNC();\n"
        "  x[HG_LID] = s[95u - HG_LID];\n"
        "}\n"
        "HG_KERNEL(keep, HG_BUF(hg_u32, x, 0)) {\n"
        "  hg_u32 kept[64];\n"
        "  for (hg_u32 k = 0; k < 64u; ++k) kept[x[k] % 64u] = k;\n"
        "  for (hg_u32 k = 0; k < 64u; ++k) x[k] = kept[x[k] % 64u];\n"
        "}\n"
    )
    compiled = nvrtc.compile(text, "two.hgk", "sm_90")
    assert set(compiled.kernels) == {"turn", "keep"}
    turn, keep = compiled.kernels["turn"], compiled.kernels["keep"]
    assert (turn.shared, turn.stack, turn.spilled) == (96 * 4, 0, 0)
    assert (keep.shared, keep.stack, keep.spilled) == (0, 64 * 4, 0)
    assert 1 < turn.registers <= MOST_REGISTERS
    # Two times the same, whatever a cache has of it.
    assert nvrtc.compile(text, "two.hgk", "sm_90").kernels == compiled.kernels


def test_spills_and_what_is_called_are_counted() -> None:
    log = """ptxas info    : 272 bytes gmem
ptxas info    : Compiling entry function 'hg_1' for 'sm_80'
ptxas info    : Function properties for hg_1
ptxas         .     40 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 26 registers, used 1 barriers, 48 bytes cumulative stack size, 512 bytes smem
ptxas info    : Function properties for a_function
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
    usage = compile_kernels.Usage(registers=26, stack=48, shared=512, spilled=28)
    assert compile_kernels.usage_of(log) == {"hg_1": usage}
    assert compile_kernels.usage_of("") == {}
    with pytest.raises(CompileError, match="nothing of the registers of hg_1"):
        compile_kernels.usage_of("\n".join(log.splitlines()[:4]))


def test_a_wrong_text_has_the_compilers_message(nvrtc: Nvrtc) -> None:
    text = INCLUDE + "\nHG_KERNEL(wrong, HG_BUF(hg_f32, x, 0)) {\n  x[HG_LID] = nothing;\n}\n"
    where = r"wrong\.hgk for sm_90: NVRTC_ERROR_COMPILATION\n"
    what = r'wrong\.hgk\(4\): error: identifier "nothing" is undefined'
    with pytest.raises(CompileError, match=where + what):
        nvrtc.compile(text, "wrong.hgk", "sm_90")
    right = text.replace("nothing", "0.0f")
    nvrtc.compile(right, "right.hgk", "sm_90")
    with pytest.raises(CompileError, match=r"right\.hgk for sm_1: .*\n.*gpu-architecture"):
        nvrtc.compile(right, "right.hgk", "sm_1")


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_kernels, "PACKAGE", "nvrtc-of-nobody")
    with pytest.raises(CompileError, match=r"nvrtc-of-nobody is not installed \(requirements/te"):
        Nvrtc()


def test_the_command_and_its_report(tmp_path: Path) -> None:
    command = [sys.executable, compile_kernels.__file__, str(tmp_path), "--arch", "sm_80"]
    # Without nvcc, which is slow to start.
    environment = {**os.environ, "PATH": str(tmp_path)}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], env=environment, capture_output=True, text=True)

    none = run()
    assert (none.returncode, none.stderr) == (1, f"there are no kernels (*.hgk) in {tmp_path}\n")
    assert "--repeats is 0, expected 1 or more" in run("--repeats", "0").stderr
    kernel = "HG_KERNEL({}, HG_BUF(hg_f32, x, 0)) {{ HG_SHARED(hg_f32, s, 32) {} }}\n"
    body = "s[HG_LID] = x[HG_LID]; HG_SYNC(); x[HG_LID] = s[31u - HG_LID];"
    for kind in ("some", "others"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "one.hgk").write_text(INCLUDE + kernel.format(f"of_{kind}", body))
    library = [kernel.format(name, body) for name in ("of_some", "of_all")]
    (tmp_path / "others" / "library.hgk").write_text(INCLUDE + "".join(library))
    # The same kernel twice is too much for one call of nvcc.
    calls = compile_kernels.calls_of_nvcc(compile_kernels.find_texts(tmp_path))
    assert [[text.label for text in call] for call in calls] == [
        ["others/library", "others/one"],
        ["some/one"],
    ]
    # A library, whose kernels macros make, is a call of its own.
    (tmp_path / "libraries").mkdir()
    made = "#define MAKE(name, body) " + kernel.format("name", "body").replace("\n", "")
    made += f"\nMAKE(first, {body})\nMAKE(second, {body})\n"
    (tmp_path / "libraries" / "two.hgk").write_text("// kernels: first second\n" + INCLUDE + made)
    found = compile_kernels.find_texts(tmp_path)
    assert [text.names for text in found if text.label == "libraries/two"] == [["first", "second"]]
    calls = compile_kernels.calls_of_nvcc(found)
    assert [text.label for text in calls[-1]] == ["libraries/two"] and len(calls) == 3
    written = tmp_path / "report.md"
    good = run("--report", str(written))
    assert good.returncode == 0, good.stderr
    assert written.read_text() == good.stdout.removesuffix("\n")
    (line,) = [line for line in good.stdout.splitlines() if line.startswith("| some |")]
    assert line.split(" | ")[1] == "1" and line.endswith(" |  | 128 |  |")
    assert (
        "| some/one | " in good.stdout
        and "\n| libraries | 2 |" in good.stdout
        and "\n| all | 6 |" in good.stdout
    )
    (tmp_path / "some" / "two.hgk").write_text(INCLUDE + kernel.format("wrong", "x = y;"))
    bad = run("--report", str(written))
    assert bad.returncode == 1 and bad.stdout == ""
    assert "some/two.hgk(2): error" in bad.stderr and "1 compilations failed" in bad.stderr
