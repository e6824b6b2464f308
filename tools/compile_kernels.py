"""Compile emitted GPU kernels with NVIDIA's compilers, and report times, registers and memory.

usage: make -C csrc/test kernels
       python tools/compile_kernels.py build/core-test/kernels/texts

Each text (*.hgk) under a folder is compiled by NVRTC, of the package nvidia-cuda-nvrtc, for each
architecture: no GPU is needed, and no header but those of csrc/gpu/dialect. Its kind is the name of
the folder in which it lies. In the folder `libraries` are texts of several kernels, some of which
macros may make: `// kernels:` at the beginning of such a text lists them. Where nvcc is on the
PATH, it compiles all texts too, many at once, and they are to be the same kernels. The exit status
is 0 if all compile.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
DIALECT = ROOT / "csrc" / "gpu" / "dialect"
PACKAGE = "nvidia-cuda-nvrtc"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
# As the dialect is to be compiled (hologram_gpu.h).
LANGUAGE = ("--fmad=false", "-std=c++17")
MOST_REGISTERS = 255  # that a thread can have
OF_ONE_CALL = 48  # texts that nvcc compiles at once
LIBRARIES = "libraries"  # the kind of texts that it compiles one by one


class CompileError(Exception):
    """A text that does not compile, with what the compiler says; a compiler that is not there."""


@dataclass(frozen=True)
class Usage:
    """What a thread, or of `shared` a block, of a kernel needs; all but registers in bytes."""

    registers: int
    stack: int
    shared: int
    spilled: int  # stores and loads


@dataclass(frozen=True)
class Compiled:
    seconds: float
    code: bytes
    log: str
    kernels: dict[str, Usage]


@dataclass(eq=False)
class Text:
    """A text of one kernel or several, and what became of it for each architecture."""

    path: Path
    compiled: dict[str, Compiled] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.path.parent.name

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.path.stem}"

    @property
    def names(self) -> list[str]:
        """Of its kernels: those that it lists, or those that stand in it."""
        text = self.path.read_text()
        if listed := re.match(r"// kernels: (.+)\n", text):
            return listed[1].split()
        return re.findall(r"^HG_(?:KERNEL|KERNEL_OF|MOVE_[A-Z_]+)\((\w+),", text, flags=re.M)

    def usages(self, architecture: str) -> list[Usage]:
        return list(self.compiled[architecture].kernels.values())

    @property
    def seconds(self) -> float:
        """Of the architecture that takes the longest time."""
        return max(its.seconds for its in self.compiled.values())


ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def usage_of(log: str) -> dict[str, Usage]:
    """Of each kernel, as ptxas prints it with -v; functions that are called come after it."""
    kernels = {}
    sections = ENTRY.split(log)
    for name, text in zip(sections[1::3], sections[3::3], strict=True):
        used = USED.search(text)
        if used is None:
            raise CompileError(f"ptxas says nothing of the registers of {name}:\n{text}")

        def number(what: str, text: str = text) -> int:
            found = re.search(rf"(\d+) bytes {what}", text)
            return int(found[1]) if found else 0

        kernels[name] = Usage(
            registers=int(used[1]),
            stack=number("cumulative stack size"),
            shared=number("smem"),
            spilled=sum(int(x) + int(y) for x, y in SPILLS.findall(text)),
        )
    return kernels


class Nvrtc:
    """The compiler of the package, called as a backend calls it: with headers in memory."""

    def __init__(self) -> None:
        try:
            files = importlib.metadata.files(PACKAGE) or []
        except importlib.metadata.PackageNotFoundError:
            raise CompileError(
                f"the Python package {PACKAGE} is not installed (requirements/test.txt)"
            ) from None

        def library(pattern: str) -> str:
            found = [Path(str(file.locate())) for file in files if re.fullmatch(pattern, file.name)]
            if len(found) != 1:
                raise CompileError(f"{PACKAGE} has {len(found)} files {pattern}, expected one")
            return str(found[0])

        # NVRTC looks for its second library where the system has libraries, and takes one that is
        # loaded.
        ctypes.CDLL(library(r"libnvrtc-builtins\.so\.[0-9.]+"))
        self._library = ctypes.CDLL(library(r"libnvrtc\.so\.[0-9]+"))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._headers = sorted(DIALECT.glob("*.h"))
        self.version = importlib.metadata.version(PACKAGE)

    def _call(self, function: str, *arguments: object) -> str:
        """What was wrong, or ""."""
        status = getattr(self._library, function)(*arguments)
        return self._library.nvrtcGetErrorString(status).decode() if status != 0 else ""

    def _checked(self, function: str, *arguments: object) -> None:
        if error := self._call(function, *arguments):
            raise CompileError(f"{function}: {error}")

    def _output(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._checked(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        output = ctypes.create_string_buffer(size.value)
        self._checked(f"nvrtcGet{what}", program, output)
        return output.raw

    def compile(self, text: str, name: str, architecture: str) -> Compiled:
        """Code for an architecture: machine code for sm_90, say, PTX for compute_90.

        Raises CompileError with what the compiler says.
        """

        def strings(texts: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
            return (ctypes.c_char_p * len(texts))(*texts)

        program = ctypes.c_void_p()
        self._checked(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            text.encode(),
            name.encode(),
            len(self._headers),
            strings([path.read_bytes() for path in self._headers]),
            strings([path.name.encode() for path in self._headers]),
        )
        # A cache would make of the second time nothing that says anything.
        own = [f"--gpu-architecture={architecture}", "--no-cache"]
        is_code = architecture.startswith("sm_")
        if is_code:
            own.append("--ptxas-options=-v")
        options = strings([option.encode() for option in (*LANGUAGE, *own)])
        try:
            # Of the processor: it does all in this thread, and other processes do not count.
            begin = time.thread_time()
            error = self._call("nvrtcCompileProgram", program, len(options), options)
            seconds = time.thread_time() - begin
            log = self._output("ProgramLog", program).rstrip(b"\0").decode()
            if error:
                raise CompileError(f"{name} for {architecture}: {error}\n{log}")
            output = self._output("CUBIN" if is_code else "PTX", program)
            return Compiled(seconds, output, log, usage_of(log) if is_code else {})
        finally:
            self._checked("nvrtcDestroyProgram", ctypes.byref(program))


@functools.cache
def nvcc() -> str | None:
    return shutil.which("nvcc")


def nvcc_version() -> str:
    done = subprocess.run([str(nvcc()), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"V([0-9.]+)", done.stdout)
    return found[1] if found else "unknown"


def calls_of_nvcc(texts: Sequence[Text]) -> list[list[Text]]:
    """Texts to compile at once: none of them has a kernel of another one, or includes what is of
    every text but once."""
    alone = [[text] for text in texts if text.kind == LIBRARIES]
    calls: list[list[Text]] = []
    names: set[str] = set()
    for text in texts:
        if text.kind == LIBRARIES:
            continue
        if not calls or len(calls[-1]) == OF_ONE_CALL or not names.isdisjoint(text.names):
            calls.append([])
            names = set()
        calls[-1].append(text)
        names.update(text.names)
    return calls + alone


def compile_with_nvcc(texts: Sequence[Text], architecture: str) -> Compiled:
    """All texts as one. They have the same operations, so each is in a namespace of its own."""
    source = '#include "hologram_gpu.h"\n#include "moves.h"\n' + "".join(
        f'namespace text_{i} {{\n#include "{text.path.resolve()}"\n}}\n'
        for i, text in enumerate(texts)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cu"
        path.write_text(source)
        code = path.with_suffix(".cubin")
        own = [f"-arch={architecture}", "-cubin", "-Xptxas=-v", "-I", str(DIALECT)]
        command = [str(nvcc()), *LANGUAGE, *own, str(path), "-o", str(code)]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        log = done.stdout + done.stderr
        if done.returncode != 0:
            raise CompileError(f"{shlex.join(command)}\n{log}")
        return Compiled(seconds, code.read_bytes(), log, usage_of(log))


def find_texts(folder: Path) -> list[Text]:
    texts = [Text(path) for path in sorted(folder.rglob("*.hgk"))]
    if not texts:
        raise CompileError(f"there are no kernels (*.hgk) in {folder}")
    return texts


def compile_text(nvrtc: Nvrtc, text: Text, architecture: str) -> None:
    """Again where it was before: the least time counts."""
    compiled = nvrtc.compile(text.path.read_text(), f"{text.label}.hgk", architecture)
    if not compiled.kernels:
        raise CompileError(f"{text.path} has no kernel")
    before = text.compiled.get(architecture)
    if before is None or compiled.seconds < before.seconds:
        text.compiled[architecture] = compiled


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def machine() -> str:
    """The processor, without naming the machine."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{model}, {os.cpu_count()} cores"


def kind_table(texts: Sequence[Text], architectures: Sequence[str]) -> str:
    kinds: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        kinds[text.kind].append(text)
    kinds["all"] = list(texts)

    def line(kind: str) -> list[str]:
        texts = kinds[kind]

        def of(usage: Callable[[Usage], int], architecture: str) -> list[int]:
            return [usage(its) for text in texts for its in text.usages(architecture)]

        def most(usage: Callable[[Usage], int]) -> str:
            number = max(max(of(usage, architecture)) for architecture in architectures)
            return str(number) if number else ""

        def registers(architecture: str) -> str:
            numbers = of(lambda usage: usage.registers, architecture)
            return f"{median(numbers):.0f} / {max(numbers)}"

        times = [1e3 * compiled.seconds for text in texts for compiled in text.compiled.values()]
        return [
            kind,
            str(len(of(lambda usage: usage.registers, architectures[0]))),
            f"{median(times):.0f}",
            f"{max(times):.0f}",
            *map(registers, architectures),
            most(lambda usage: usage.stack),
            most(lambda usage: usage.shared),
            most(lambda usage: usage.spilled),
        ]

    header = (
        "kind",
        "kernels",
        "median ms",
        "worst ms",
        *architectures,
        "stack",
        "shared",
        "spilled",
    )
    return markdown_table(header, map(line, kinds))


def worst_table(texts: Sequence[Text], architectures: Sequence[str]) -> str:
    def registers(text: Text) -> int:
        return max(
            usage.registers for architecture in architectures for usage in text.usages(architecture)
        )

    slowest = sorted(texts, key=lambda text: text.seconds, reverse=True)[:8]
    largest = sorted(texts, key=registers, reverse=True)[:8]
    lines = [
        (text.label, f"{1e3 * text.seconds:.0f}", str(registers(text)))
        for text in dict.fromkeys([*slowest, *largest])
    ]
    return markdown_table(("text", "ms", "registers"), lines)


def report(
    texts: Sequence[Text],
    architectures: Sequence[str],
    repeats: int,
    nvrtc: Nvrtc,
    empty: float,
    of_nvcc: dict[str, list[Compiled]],
) -> str:
    lines = [
        "# Kernels by NVIDIA's compilers",
        "",
        "Written by `make bench-kernels`: the kernels that `csrc/test/emit_kernels.cpp` has",
        "`csrc/gpu` emit, each compiled alone, to machine code. Those of a library are compiled",
        "at once: the time is that of all of them. No GPU has run them.",
        "",
        f"- processor: {machine()}",
        f"- system: {platform.system()} {platform.machine()}",
        f"- python: {platform.python_version()}",
        f"- NVRTC: {nvrtc.version}",
    ]
    if of_nvcc:
        lines.append(f"- nvcc: {nvcc_version()}")
    lines += [
        "",
        f"ms: processor time of NVRTC, which has one thread, the least of {repeats}, over all",
        f"architectures; an empty kernel takes {1e3 * empty:.0f} ms.",
        "Registers of a thread: median / most. Stack of a thread, shared memory of a block, and",
        "what is spilled (stores and loads): the most, in bytes.",
        "",
        kind_table(texts, architectures),
        "",
        "## Those that take the longest time, or the most registers",
        "",
        worst_table(texts, architectures),
        "",
    ]
    if of_nvcc:
        lines += [
            "## By nvcc",
            "",
            f"{OF_ONE_CALL} texts at once; s: of all calls. `as by NVRTC`: kernels with the same",
            "registers, stack, shared memory and spills.",
            "",
            nvcc_table(texts, of_nvcc),
            "",
        ]
    return "\n".join(lines)


def nvcc_table(texts: Sequence[Text], of_nvcc: dict[str, list[Compiled]]) -> str:
    lines = []
    for architecture, calls in of_nvcc.items():
        kernels = {name: usage for call in calls for name, usage in call.kernels.items()}
        same = sum(
            kernels.get(name) == usage
            for text in texts
            for name, usage in text.compiled[architecture].kernels.items()
        )
        seconds = sum(call.seconds for call in calls)
        lines.append((architecture, str(len(kernels)), str(same), f"{seconds:.0f}"))
    return markdown_table(("architecture", "kernels", "as by NVRTC", "s"), lines)


def run(options: argparse.Namespace) -> int:
    from tqdm import tqdm  # of the set demo: the tests do without

    nvrtc = Nvrtc()
    texts = find_texts(options.folder)
    failed: list[str] = []
    # The first time has the library's own start.
    nothing = '#include "hologram_gpu.h"\nHG_KERNEL(nothing, HG_BUF(hg_f32, x, 0)) {}\n'
    empty = min(nvrtc.compile(nothing, "nothing", options.arch[0]).seconds for _ in range(5))
    jobs = [(a, text) for a in options.arch for text in texts for _ in range(options.repeats)]
    for architecture, text in tqdm(jobs, disable=None, unit="kernel", desc="NVRTC"):
        try:
            compile_text(nvrtc, text, architecture)
        except CompileError as error:
            failed.append(str(error))
    of_nvcc: dict[str, list[Compiled]] = {}
    if nvcc() and not failed:
        calls = [(a, some) for a in options.arch for some in calls_of_nvcc(texts)]
        for architecture, some in tqdm(calls, disable=None, unit="call", desc="nvcc"):
            try:
                of_nvcc.setdefault(architecture, []).append(compile_with_nvcc(some, architecture))
            except CompileError as error:
                failed.append(str(error))
    if failed:
        print("\n".join(dict.fromkeys(failed)), file=sys.stderr)
        print(f"{len(failed)} compilations failed", file=sys.stderr)
        return 1
    written = report(texts, options.arch, options.repeats, nvrtc, empty, of_nvcc)
    if options.report is not None:
        options.report.write_text(written)
    print(written)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="texts of kernels: FOLDER/KIND/NAME.hgk")
    parser.add_argument("--arch", nargs="+", default=list(ARCHITECTURES), help="%(default)s")
    parser.add_argument("--repeats", type=int, default=1, help="the least time counts")
    parser.add_argument("--report", type=Path, help="Markdown, also written to this file")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}, expected 1 or more")
    try:
        return run(options)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
