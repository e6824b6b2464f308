"""The tools that build in a copy of the tree, and the division of the tests into shards."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from common import ROOT

sys.path.append(str(ROOT / "tools"))  # after test/, which has a package of the same name as one
import build_kernels
import index_readme
import mirror
import test_matrix as matrix
from conftest import parse_shard, shard_of

from torch_hologram._version_check import SUPPORTED

LISTING = """torch (2.15.0)
Available versions: 2.15.0, 2.14.1, 2.13.0+cpu, 2.13.0, 2.12.1, 2.12.0, 2.11.0, 2.16.0rc1, 2.9.1
  INSTALLED: 2.13.0+cpu
"""


def test_kernels_are_built_for_the_gpus_that_are_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    every = list(build_kernels.NUMBERS)
    assert build_kernels.native() == every  # nobody to ask
    asked = tmp_path / "nvidia-smi"
    for said, numbers in (("8.6\n9.0\n8.9\n", [80, 90]), ("10.3\n", [100]), ("7.0\n", every),
                          ("No devices were found\n", every)):  # fmt: skip
        asked.write_text(f"#!/bin/sh\nprintf '%s' '{said}'\n")
        asked.chmod(0o755)
        assert build_kernels.native() == numbers, said


def test_served_versions_are_releases_newest_first() -> None:
    served = matrix.served_versions(LISTING)
    assert served == ["2.15.0", "2.14.1", "2.13.0", "2.12.1", "2.12.0", "2.11.0", "2.9.1"]
    with pytest.raises(RuntimeError, match="no versions"):
        matrix.served_versions("ERROR: No matching distribution found for torch")


def test_the_newest_patch_release_is_chosen() -> None:
    served = matrix.served_versions(LISTING)
    assert matrix.choose(served, ["2.11", "2.12"]) == ["2.11.0", "2.12.1"]
    with pytest.raises(RuntimeError, match=r"no torch 2\.10"):
        matrix.choose(served, ["2.10"])


def test_supported_minors_are_the_package_s() -> None:
    assert matrix.supported_minors() == SUPPORTED
    assert matrix.minor("2.13.0+cpu") == "2.13"


def test_constraints_pin_another_torch_and_keep_the_rest() -> None:
    ours = (ROOT / "constraints.txt").read_text().splitlines()
    changed = [
        (old, new)
        for old, new in zip(
            ours, matrix.constraints("2.12.1", pinned=True).splitlines(), strict=True
        )
        if old != new
    ]
    assert [new for _, new in changed] == ["setuptools==81.0.0", "torch==2.12.1"]
    assert "setuptools==81" not in matrix.constraints("2.13.0", pinned=True)
    assert "nvidia-cuda-nvrtc==13.0" in matrix.constraints("2.14.1", pinned=True)
    assert "nvidia-cuda-nvrtc>=13.0" in matrix.constraints("2.15.0", pinned=True)
    assert matrix.constraints("2.15.0", pinned=False) == "torch==2.15.0\n"


def test_requirements_are_what_tests_need() -> None:
    names = [line for line in matrix.requirements().splitlines() if line and line[0] != "#"]
    assert {"torch", "pytest", "ninja", "transformers", "scikit-learn"} <= set(names)
    assert "mypy" not in names
    assert not any(name.startswith("-") for name in names)


def installed_by(target: str, venv: Path) -> list[str]:
    """The sets of requirements that a target of the Makefile installs into a new environment."""
    command = ["make", "-n", target, f"VENV={venv}", f"PYTHON={sys.executable}"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return re.findall(r"-r requirements/([a-z]+)\.txt", output)


def test_targets_install_what_they_need(tmp_path: Path) -> None:
    assert installed_by("build", tmp_path) == ["build"]
    assert installed_by("demo", tmp_path) == ["build", "demo"]
    everything = {"build", "demo", "test", "integrations", "lint"}
    assert set(installed_by("test", tmp_path)) == everything
    assert set(installed_by("test-full", tmp_path)) == {*everything, "full"}
    assert "models" in installed_by("bench-models", tmp_path)
    files = {path.stem for path in (ROOT / "requirements").iterdir()}
    assert files == {*everything, "run", "full", "models", "metal"}


def test_only_the_tests_need_the_compiler_of_gpu_kernels(tmp_path: Path) -> None:
    for tool in ("bash", "make", "g++", "as", "find", "xargs", "echo"):
        found = shutil.which(tool)
        assert found is not None, tool
        (tmp_path / tool).symlink_to(found)
    environment = {**os.environ, "PATH": str(tmp_path)}

    def missing(*kind: str) -> list[str]:
        command = ["bash", ROOT / "tools" / "system_packages.sh", sys.executable, *kind]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    common = missing()
    assert missing("test") == [*common, "clang-19"]
    other_processors = ["libc++abi-19-dev", "g++-aarch64-linux-gnu", "qemu-user"]
    assert missing("full") == [*common, "clang-19", "libclang-rt-19-dev", *other_processors]
    # In one line, before anything is built.
    command = ["make", "test", f"PYTHON={sys.executable}", "VENV=/nowhere"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and done.stdout == ""
    wanted = " ".join([*common, "clang-19"])
    said = f"make: missing on this machine: {wanted} (Debian: apt-get install {wanted})"
    assert said in done.stderr.splitlines()


def test_every_requirement_is_pinned() -> None:
    def name(line: str) -> str:
        return re.split(r"[=; ]", line)[0].lower().replace("_", "-")

    pinned = {name(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for path in (ROOT / "requirements").iterdir():
        for line in path.read_text().splitlines():
            if line and line[0] not in "#-":
                assert name(line) in pinned, (path.name, line)


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://git.example/owner/name.git", "https://git.example/owner/name"),
        ("https://user:secret@git.example/owner/name", "https://git.example/owner/name"),
        ("git@git.example:owner/name.git", "https://git.example/owner/name"),
        ("ssh://git@git.example/owner/name.git", "https://git.example/owner/name"),
        ("/srv/git/name.git", None),
        ("../name", None),
        ("", None),
    ],
)
def test_address_of_the_repository(remote: str, address: str | None) -> None:
    assert index_readme.web_address(remote) == address


def test_readme_on_a_package_index() -> None:
    text = "[a `[x]` b](docs/a.md#c), [d](#e), [f](https://f.example)\n\n![p](b/p.png)\n"
    linked = index_readme.for_index(text, "https://git.example/o/n", "v1")
    assert linked == (
        "[a `[x]` b](https://git.example/o/n/blob/v1/docs/a.md#c), [d](#e), [f](https://f.example)"
        "\n\n![p](https://git.example/o/n/raw/v1/b/p.png)\n"
    )
    unlinked = index_readme.for_index(text, None, "v1")
    assert unlinked == "a `[x]` b, [d](#e), [f](https://f.example)\n\n\n"
    for address in ("https://git.example/o/n", None):
        page = index_readme.for_index((ROOT / "README.md").read_text(), address, "v1")
        targets = re.findall(r"\]\(([^)]+)\)", page)
        assert all(target.startswith(("https://", "#")) for target in targets), targets


def test_metadata_names_the_torch_of_the_build(tmp_path: Path) -> None:
    """A wheel's the minor version it was compiled for, the source distribution's all supported."""
    source = tmp_path / "source"
    mirror.mirror(source)
    (source / "torch_hologram" / "_build_info.py").write_text("stale = True\n")
    for command, first, last in (
        ("egg_info", matrix.minor(torch.__version__), matrix.minor(torch.__version__)),
        ("sdist", SUPPORTED[0], SUPPORTED[-1]),
    ):
        process = subprocess.run(
            [sys.executable, "setup.py", "-q", command],
            cwd=source,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        metadata = (source / "torch_hologram.egg-info" / "PKG-INFO").read_text()
        wanted = re.search(r"^Requires-Dist: torch(.+)$", metadata, re.M)
        assert wanted is not None, metadata
        after = f"2.{int(last.split('.')[1]) + 1}"
        assert sorted(wanted[1].split(",")) == [f"<{after}", f">={first}"]
        assert "](docs/" not in metadata
    (archive,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"setup.py", "requirements/run.txt", "CHANGELOG.md", "SECURITY.md"} <= names
    assert "torch_hologram/_build_info.py" not in names


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("2 failed, 1766 passed, 9 deselected in 513.36s (0:08:33)", {"failed": 2, "passed": 1766}),
        ("== 3 passed, 1 xfailed in 0.51s ==", {"passed": 3, "xfailed": 1}),
        ("2 skipped, 1 warning in 0.51s", {"skipped": 2}),
        ("1 passed, 2 errors in 3.00s", {"passed": 1, "failed": 2}),
        ("collected 3 passed items", {}),
    ],
)
def test_outcomes_are_those_of_the_closing_line(line: str, counts: dict[str, int]) -> None:
    assert matrix.count_outcomes(f"7 passed in 1.0s\n{line}" if counts else line) == counts


def test_errors_are_summarised_once() -> None:
    output = """
/x/csrc/aten/guard.cpp:12:5: error: 'foo' was not declared
/x/csrc/aten/guard.cpp:12:5: error: 'foo' was not declared
/x/csrc/aten/guard.cpp:13:5: warning: unused
/x/csrc/aten/a.h:1:2: fatal error: ATen/gone.h: No such file or directory
ld: block.cpp: undefined reference to `c10::gone()'
"""
    assert matrix.summarise_errors(output, Path("/x")) == [
        "csrc/aten/guard.cpp:12: 'foo' was not declared",
        "csrc/aten/a.h:1: ATen/gone.h: No such file or directory",
        "ld: block.cpp: undefined reference to `c10::gone()'",
    ]


def test_table_and_its_place_in_a_document(tmp_path: Path) -> None:
    row = matrix.Row("2.12.1", True, "2.12.1+cpu", "yes", "yes", Counter(passed=5, failed=1), 3.2)
    row.notes.append("FAILED test/test_x.py")
    text = matrix.table([row])
    assert "| 2.12.1 | 2.12.1+cpu | yes " in text
    assert text.endswith("torch 2.12.1:\n\n- `FAILED test/test_x.py`")
    path = tmp_path / "versions.md"
    path.write_text(f"before\n{matrix.BEGIN}\nold\n{matrix.END}\nafter\n")
    matrix.write_table(path, text)
    matrix.write_table(path, text)
    assert path.read_text() == f"before\n{matrix.BEGIN}\n\n{text}\n\n{matrix.END}\nafter\n"


def test_a_row_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "MATRIX", tmp_path)
    (tmp_path / "2.12.1").mkdir()
    row = matrix.Row("2.12.1", True, tests=Counter(passed=5))
    matrix.save(row)
    assert matrix.saved("2.12.1") == row
    assert matrix.saved("2.11.0") is None


def test_mirror_follows_the_sources_and_keeps_what_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = tmp_path / "build" / "root", tmp_path / "build" / "copy"
    for name in ("pkg/a.py", "pkg/b.py", "pkg/_C.so", "build/x.o", ".venv/y.py", "setup.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.setattr(mirror, "ROOT", root)

    def copied() -> set[str]:
        return {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}

    mirror.mirror(copy)
    assert copied() == {"pkg/a.py", "pkg/b.py", "setup.py"}

    (copy / "pkg" / "_C.so").write_text("built in the copy")
    before = (copy / "pkg" / "a.py").stat()
    (root / "pkg" / "b.py").unlink()
    (root / "setup.py").write_text("changed")
    mirror.mirror(copy)
    assert copied() == {"pkg/a.py", "pkg/_C.so", "setup.py"}
    assert (copy / "pkg" / "_C.so").read_text() == "built in the copy"
    assert (copy / "setup.py").read_text() == "changed"
    assert (copy / "pkg" / "a.py").stat().st_ino == before.st_ino


def test_setup_refuses_another_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch\ntorch.__version__ = '2.10.1'\n")
    process = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert f"supports torch {SUPPORTED[0]} to {SUPPORTED[-1]}, found 2.10.1" in process.stderr


def test_every_test_is_in_one_shard_and_always_the_same() -> None:
    ids = [f"test/test_{name}.py::TestX::test_{i}" for name in "abc" for i in range(1000)]
    shards = [[name for name in ids if shard_of(name, 5) == shard] for shard in range(1, 6)]
    assert sorted(name for shard in shards for name in shard) == sorted(ids)
    assert all(400 <= len(shard) <= 800 for shard in shards)
    # The split is the same in every process and on every machine.
    assert shard_of("test/test_a.py::TestX::test_0", 5) == 1


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "", "a/b", "1/0", "-1/4"])
def test_a_wrong_shard_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected i/n"):
        parse_shard(text)


def test_a_full_run_covers_every_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance import config, units

    supported = {torch.float32, torch.int16, torch.complex128, torch.quint8}
    monkeypatch.setattr(config, "FULL", True)
    assert set(units.wanted_dtypes("some.op", supported)) == supported
    monkeypatch.setattr(config, "FULL", False)
    assert units.wanted_dtypes("some.op", supported) == [torch.float32]


def test_examples_of_pages(tmp_path) -> None:
    """Python runs, files are written, commands run with both, and what fails is counted."""
    good = tmp_path / "good.md"
    good.write_text(
        "```python file=part.py\nnumber = 7\n```\n"
        "```python\nimport part\nassert part.number == 7\nopen('new', 'w').close()\n```\n"
        "```shell run\ntest -e new\npython -c 'import part, torch_hologram as it; it'\n```\n"
        "```sh\nexit 3\n```\n"
    )
    bad = tmp_path / "bad.md"
    bad.write_text("```shell run\nfalse\ntrue\n```\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "run_examples.py"), str(good), str(bad)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-2:] == ["good.md: 3 examples", "bad.md: FAILED"], done.stdout
