"""Fetch Apple's metal-cpp headers into a folder, unless they are there.

usage: python tools/metal_cpp.py [--wheel FILE] FOLDER

They are part of a wheel for macOS, which any platform can download; requirements/metal.txt says
which one, and its hash. The licence of the headers (Apache-2.0) comes with them. --wheel: the file
that pip would download, for a machine without a network.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements" / "metal.txt"
PLATFORM = "macosx_14_0_arm64"
INSIDE = PurePosixPath("mlx/include/metal_cpp")
STAMP = ".version"  # the file of the folder that says what is in it


def pinned() -> tuple[str, str]:
    """The package, as `name==version`, and the SHA-256 of its wheel."""
    line = re.search(r"^(\S+==\S+) --hash=sha256:([0-9a-f]{64})$", REQUIREMENTS.read_text(), re.M)
    if line is None:
        sys.exit(f"metal_cpp: {REQUIREMENTS} pins no package with its hash")
    return line[1], line[2]


def download(package: str, folder: str) -> Path:
    """The wheel, in a folder that is empty before."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--platform", PLATFORM]
    command += ["--dest", folder, "--requirement", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = list(Path(folder).glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        why = said[-1].removeprefix("ERROR: ") if said else f"exit status {done.returncode}"
        sys.exit(f"metal_cpp: pip cannot download {package} (the headers of metal-cpp): {why}")
    return found[0]


def extract(wheel: Path, folder: Path, package: str) -> None:
    """Makes the folder anew. What is there without a stamp is of a run that was stopped."""
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]
        headers = [name for name in names if name.is_relative_to(INSIDE)]
        if not headers:
            sys.exit(f"metal_cpp: {wheel.name} has no {INSIDE}")
        for name in headers:
            path = folder / name.relative_to(INSIDE)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(str(name)))
    (folder / STAMP).write_text(f"{package}\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--wheel", metavar="FILE", type=Path)
    options = parser.parse_args()
    package, expected = pinned()
    stamp = options.folder / STAMP
    if stamp.exists() and stamp.read_text().strip() == package:
        return
    with tempfile.TemporaryDirectory() as temporary:
        wheel = options.wheel or download(package, temporary)
        if not wheel.is_file():
            sys.exit(f"metal_cpp: there is no file {wheel}")
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != expected:
            sys.exit(f"metal_cpp: {wheel} is not {package}: it has another hash")
        extract(wheel, options.folder, package)


if __name__ == "__main__":
    main()
