"""Build, import and test torch_hologram with every supported torch, and build it with the newest.

Each version gets a folder build/matrix/VERSION with an environment of its own (venv/), a copy of
the source tree in which the extension is built (source/), and the logs of every step. The
developer's environment and extension are not touched. What is there is used again: a second run
installs nothing and compiles only what changed.

For a supported version the steps are install, build, import, test; any that fails makes the exit
status 1. For the newest torch that the registry serves, when it is not a supported one: the build
has to refuse it, then everything is compiled regardless and the errors are listed, and what was
built has to refuse to be imported. If it compiles, the tests run on it too, in the copy with the
version declared supported. What does not work there is a report, not a failure.

Tested is a part that fits in ten minutes on one core: every subject test (test/test_*.py) but those
marked `full`, and of the conformance suite in float32 every eighth test (--conformance).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirror import ROOT, mirror

MATRIX = ROOT / "build" / "matrix"
BEGIN, END = "<!-- table: make test-matrix -->", "<!-- end of table -->"
# What pytest's closing line counts.
OUTCOMES = ("passed", "failed", "error", "errors", "skipped", "xfailed", "xpassed")


class StepFailed(Exception):
    """A step of one version ended with a non-zero status; the text says where its output is."""


@dataclass
class Row:
    """What became of one version: a line of the table. None: that step was not reached."""

    version: str
    supported: bool
    wheel: str = ""  # torch.__version__ of what was installed
    built: str = "no"
    imported: str = "no"
    tests: Counter[str] = field(default_factory=Counter)
    minutes: float = 0.0
    notes: list[str] = field(default_factory=list)
    failed: bool = False

    def cells(self) -> list[str]:
        if self.tests:
            passed, failed = str(self.tests["passed"]), str(self.tests["failed"])
            others = f"{self.tests['xfailed']} / {self.tests['skipped']}"
        else:
            passed = failed = others = "-"
        minutes = f"{self.minutes:.0f}"
        wheel = self.wheel or "not installed"
        return [self.version, wheel, self.built, self.imported, passed, failed, others, minutes]


HEAD = [
    "torch",
    "wheel",
    "built",
    "imported",
    "tests passed",
    "failed",
    "expected to fail / skipped",
    "minutes",
]


def supported_minors() -> tuple[str, ...]:
    """The minor versions of torch that the package accepts, oldest first, e.g. ("2.11", ...)."""
    text = (ROOT / "torch_hologram" / "_version_check.py").read_text()
    line = re.search(r"^SUPPORTED = .+$", text, re.M)
    if line is None:
        raise RuntimeError("torch_hologram/_version_check.py has no line `SUPPORTED = ...`")
    return tuple(re.findall(r'"(\d+\.\d+)"', line[0]))


def served_versions(listing: str) -> list[str]:
    """The released versions in what `pip index versions torch` prints, newest first.

    A version that is also served as a build for the CPU ("2.13.0+cpu") is listed once, without it:
    pip prefers that build to the plain one when it is asked for "2.13.0".
    """
    line = re.search(r"^Available versions: (.+)$", listing, re.M)
    if line is None:
        raise RuntimeError(f"pip lists no versions of torch:\n{listing}")
    versions = {version.strip().split("+")[0] for version in line[1].split(",")}
    released = [version for version in versions if re.fullmatch(r"\d+(\.\d+)+", version)]
    return sorted(released, key=_key, reverse=True)


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def minor(version: str) -> str:
    """For example "2.13" for "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def choose(served: Sequence[str], minors: Iterable[str]) -> list[str]:
    """Of each minor version the newest patch release served; raises RuntimeError for none."""
    chosen = []
    for wanted in minors:
        found = [version for version in served if minor(version) == wanted]
        if not found:
            raise RuntimeError(f"the registry serves no torch {wanted}")
        chosen.append(found[0])
    return chosen


def constraints(version: str, *, pinned: bool) -> str:
    """The constraints file for an environment with torch `version`.

    The project's own with another torch; without any of its pins where `pinned` is false, since
    they were chosen for the pinned torch and a newer one may want newer packages.
    """
    if not pinned:
        return f"torch=={version}\n"
    text = (ROOT / "constraints.txt").read_text()
    text = re.sub(r"^torch==.*$", f"torch=={version}", text, flags=re.M)
    if _key(version) < (2, 13):  # these refuse a setuptools from 82 on
        text = re.sub(r"^setuptools==.*$", "setuptools==81.0.0", text, flags=re.M)
    if _key(version) >= (2, 15):  # built for CUDA 13.2, and wants that NVRTC
        text = re.sub(r"^(nvidia-cuda-nvrtc)==", r"\1>=", text, flags=re.M)
    return text


def requirements() -> str:
    """What running, building and testing need, of the sets in requirements/."""
    sets = ("run", "build", "demo", "test", "integrations")
    texts = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in sets]
    return "".join(texts).replace("-r run.txt\n", "")


def count_outcomes(output: str) -> Counter[str]:
    """The numbers of pytest's closing line, e.g. {"passed": 812, "xfailed": 3}; none: empty.

    Errors outside tests (in fixtures, at collection) count as failed.
    """
    counts: Counter[str] = Counter()
    closing = [line for line in output.splitlines() if re.search(r"\bin \d+(\.\d+)?s", line)]
    if closing:
        for number, outcome in re.findall(r"(\d+) (\w+)", closing[-1]):
            if outcome in OUTCOMES:
                counts["failed" if outcome in ("error", "errors") else outcome] += int(number)
    return counts


def summarise_errors(output: str, folder: Path) -> list[str]:
    """The compiler's and linker's errors in `output`, each once, paths relative to `folder`."""
    errors: dict[str, None] = {}
    for line in output.splitlines():
        found = re.search(r"(\S+:\d+):\d+: (?:fatal )?error: (.+)", line)
        if found:
            errors[f"{found[1].replace(f'{folder}/', '')}: {found[2]}"] = None
        elif re.search(r"undefined (reference|symbol)", line):
            errors[line.strip()] = None
    return list(errors)


class Version:
    """The steps for one version of torch, each of which writes a log beside the environment."""

    def __init__(self, version: str, *, supported: bool, jobs: int, conformance: str) -> None:
        self.row = Row(version, supported)
        self.folder = MATRIX / version
        self.source = self.folder / "source"
        self.python = self.folder / "venv" / "bin" / "python"
        self.jobs = jobs
        self.conformance = conformance

    def run(self, step: str, command: Sequence[object], **environment: str) -> str:
        """Runs a command in the copy of the tree; its output, also when it fails."""
        log = self.folder / f"{step}.log"
        with log.open("w") as stream:
            self.status = subprocess.run(
                [str(part) for part in command],
                cwd=self.source,
                env={**_environment(), "MAX_JOBS": str(self.jobs), **environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        return log.read_text(errors="replace")

    def need(self, step: str, command: Sequence[object], **environment: str) -> str:
        """`run` for a command that has to succeed; raises StepFailed."""
        output = self.run(step, command, **environment)
        if self.status != 0:
            print("\n".join(output.splitlines()[-30:]))
            raise StepFailed(f"{step} failed, see {(self.folder / step).relative_to(ROOT)}.log")
        return output

    def install(self) -> None:
        self.source.mkdir(parents=True, exist_ok=True)
        wanted = {
            self.folder / "requirements.txt": requirements(),
            self.folder / "constraints.txt": constraints(
                self.row.version, pinned=self.row.supported
            ),
        }
        stamp = self.folder / "installed"
        content = "\n".join(wanted.values())
        if not stamp.exists() or stamp.read_text() != content:
            for path, text in wanted.items():
                path.write_text(text)
            if not self.python.exists():
                self.need("venv", [sys.executable, "-m", "venv", self.folder / "venv"])
            files = ["-r", self.folder / "requirements.txt", "-c", self.folder / "constraints.txt"]
            self.need("install", [self.python, "-m", "pip", "install", "--no-cache-dir", *files])
            # Objects of another torch are of no use.
            shutil.rmtree(self.source / "build", ignore_errors=True)
            stamp.write_text(content)
        self.row.wheel = self.need(
            "torch",
            [self.python, "-c", "import torch; print(torch.__version__)"],
            TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        ).split()[-1]

    def build_command(self) -> list[object]:
        pip = [self.python, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
        return [*pip, "-v", "-e", "."]

    def build(self) -> None:
        self.need("build", self.build_command())
        self.row.built = "yes"

    def import_it(self) -> None:
        program = (
            "import torch; assert torch.hologram.device_count() > 0; "
            "print(torch.arange(3., device='hologram').sum().item())"
        )
        self.need("import", [self.python, "-c", program])
        self.row.imported = "yes"

    def test(self) -> None:
        pytest = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full"]
        pytest += ["-n", str(self.jobs)]
        parts: dict[str, tuple[list[object], dict[str, str]]] = {
            "subjects": (["test", "--ignore=test/conformance"], {}),
            "conformance": (
                ["test/conformance", "-k", "float32"],
                {"HOLOGRAM_TEST_SHARD": self.conformance},
            ),
        }
        for name, (arguments, environment) in parts.items():
            begin = time.monotonic()
            output = self.run(
                f"test-{name}", [*pytest, *arguments], OMP_NUM_THREADS="1", **environment
            )
            counts = count_outcomes(output)
            self.row.tests += counts
            spent = time.monotonic() - begin
            text = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
            print(f"    {name}: {text or 'no test ran'} ({spent:.0f} s)", flush=True)
            failures = re.findall(r"^(?:FAILED|ERROR) .+$", output, re.M)
            for line in failures:
                print(f"      {line[:200]}")
            self.row.notes += failures
            if self.status != 0 or not counts["passed"]:
                self.row.failed = True

    def build_unsupported(self) -> None:
        """The build refuses; built regardless, every error is found, not only the first file's."""
        output = self.run("build-refused", self.build_command())
        if self.status == 0 or "torch_hologram supports torch" not in output:
            raise StepFailed("the build does not refuse this torch")
        output = self.run("build", self.build_command(), HOLOGRAM_BUILD_ANY_TORCH="1")
        if self.status == 0:
            self.row.built = "yes, when forced"
            return
        if (self.source / "build" / "temp" / "build.ninja").exists():
            ninja = self.python.with_name("ninja")
            output = self.run(
                "build-everything", [ninja, "-k", "0", f"-j{self.jobs}", "-C", "build/temp"]
            )
        errors = summarise_errors(output, self.source)
        if not errors:
            raise StepFailed(
                f"the build fails without a compile error, see {self.folder}/build.log"
            )
        files = {error.split(":")[0] for error in errors}
        self.row.built = f"no: {len(errors)} errors in {len(files)} files"
        self.row.notes += errors

    def import_unsupported(self) -> None:
        """`import torch` works, `import torch_hologram` says which versions would do."""
        program = """
import torch
try:
    import torch_hologram
except ImportError as error:
    assert "supports torch" in str(error) and torch.__version__ in str(error), error
    print(error)
else:
    raise SystemExit("torch_hologram imports with an unsupported torch")
"""
        environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(self.source)}
        output = self.need("import", [self.python, "-c", program], **environment)
        self.row.imported = "refused"
        print(f"    import: {output.strip().splitlines()[-1]}")
        libraries = list(self.source.glob("torch_hologram/_C.*.so"))
        if libraries and self.row.built.startswith("yes"):
            # Bypasses the package: does the library itself find all its symbols?
            output = self.run(
                "load",
                [
                    self.python,
                    "-c",
                    f"import torch, ctypes, os; ctypes.CDLL({str(libraries[0])!r}, os.RTLD_NOW)",
                ],
                TORCH_DEVICE_BACKEND_AUTOLOAD="0",
            )
            self.row.notes.append(
                "the extension loads: no symbol is missing"
                if self.status == 0
                else f"the extension does not load: {output.strip().splitlines()[-1]}"
            )

    def test_unsupported(self) -> None:
        """What the tests say once the version is declared supported, which is done in the copy."""
        if not self.row.built.startswith("yes"):
            print("    nothing to test")
            return
        path = self.source / "torch_hologram" / "_version_check.py"
        text, declared = path.read_text(), f'SUPPORTED = ("{minor(self.row.version)}", '
        path.write_text(text.replace("SUPPORTED = (", declared, 1))
        try:
            self.test()
        finally:
            mirror(self.source)
        self.row.failed = False  # a report

    def go(self) -> Row:
        """All steps; never raises StepFailed: a failed step ends the row."""
        steps = (
            [self.install, self.build, self.import_it, self.test]
            if self.row.supported
            else [
                self.install,
                self.build_unsupported,
                self.import_unsupported,
                self.test_unsupported,
            ]
        )
        start = time.monotonic()
        for step in steps:
            begin = time.monotonic()
            name = step.__name__.split("_")[0]
            print(f"  {self.row.version} {name} ...", flush=True)
            try:
                if name == "build":
                    mirror(self.source)
                step()
            except StepFailed as error:
                print(f"    {error}")
                self.row.notes.append(str(error))
                self.row.failed = True
                break
            print(f"    {name}: {time.monotonic() - begin:.0f} s", flush=True)
        self.row.minutes = (time.monotonic() - start) / 60
        return self.row


def _environment() -> dict[str, str]:
    """This process's environment without what would lead Python to the developer's packages."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table, and below it what did not go well or would have to change."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for row in rows:
        if row.notes:
            lines += ["", f"torch {row.version}:", "", *(f"- `{note}`" for note in row.notes)]
    return "\n".join(lines)


def save(row: Row) -> None:
    """Keeps the row beside the version's logs, for --report."""
    (MATRIX / row.version / "row.json").write_text(json.dumps(vars(row), indent=1) + "\n")


def saved(version: str) -> Row | None:
    """The row of the version's last run; None if it has not been run."""
    path = MATRIX / version / "row.json"
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    return Row(**{**values, "tests": Counter(values["tests"])})


def write_table(path: Path, text: str) -> None:
    """Replaces the part of a document between the two marks of the table."""
    document = path.read_text()
    before, rest = document.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> int:
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "versions", nargs="*", help="versions of torch instead of all: 2.12, 2.12.1, newest"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--conformance",
        default="1/8",
        metavar="I/N",
        help="which part of the conformance suite is run in float32 (default 1/8)",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the table between the marks in FILE"
    )
    parser.add_argument(
        "--report", action="store_true", help="run nothing; the table of every version's last run"
    )
    parser.add_argument("--list", action="store_true", help="print the versions chosen, and stop")
    arguments = parser.parse_args()

    listing = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"],
        capture_output=True,
        text=True,
        check=False,
    )
    served = served_versions(listing.stdout + listing.stderr)
    minors = supported_minors()
    wanted = arguments.versions or [*minors, "newest"]
    chosen = []
    for name in wanted:
        if name == "newest":
            chosen.append(served[0])
        else:
            chosen += [name] if name in served else choose(served, [name])
    chosen = list(dict.fromkeys(chosen))
    print(f"versions: {', '.join(chosen)}", flush=True)
    if arguments.list:
        return 0
    rows = []
    for version in chosen:
        row = saved(version) if arguments.report else None
        if arguments.report and row is None:
            parser.error(f"torch {version} has not been run")
        if row is None:
            row = Version(
                version,
                supported=minor(version) in minors,
                jobs=arguments.jobs,
                conformance=arguments.conformance,
            ).go()
            save(row)
        rows.append(row)
    text = table(rows)
    print(f"\n{text}")
    if arguments.write is not None:
        write_table(arguments.write, text)
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
