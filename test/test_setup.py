"""What setup.py would compile on macOS, asked on Linux: nothing is compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

# Runs setup.py up to the call of setup(), as another platform would.
PROGRAM = """
import json, os, runpy, sys, sysconfig
import setuptools, torchgen, torch.utils.cpp_extension
sysconfig.get_config_vars()  # of this platform: there are no others

def setup(**arguments):
    (extension,) = arguments["ext_modules"]
    names = ("MACOSX_DEPLOYMENT_TARGET", "ARCHFLAGS", "_PYTHON_HOST_PLATFORM")
    print(json.dumps({
        "sources": extension.sources, "include": extension.include_dirs,
        "compile": extension.extra_compile_args, "link": extension.extra_link_args,
        "environment": {name: os.environ.get(name) for name in names},
    }))

setuptools.setup = setup
sys.platform = sys.argv[1]
sys.argv = ["setup.py", "build_ext"]
runpy.run_path("setup.py")
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """setup.py writes files beside itself: those of the checkout are of its own platform."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("csrc", "setup.py", "pyproject.toml", "tools", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "torch_hologram").mkdir()
    (folder / "torch_hologram" / "_version_check.py").symlink_to(
        ROOT / "torch_hologram" / "_version_check.py"
    )
    # Found by its name: Path(__file__).resolve() would follow a link.
    (folder / "setup.py").unlink()
    (folder / "setup.py").write_text((ROOT / "setup.py").read_text())
    return folder


def ask(tree: Path, platform: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, platform],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def answer(tree: Path, platform: str, **variables: str) -> Any:
    done = ask(tree, platform, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def all_sources(tree: Path, sources: list[str]) -> str:
    """Their names, and of those that setup.py has written the text."""
    generated = [path for path in sources if path.startswith("build/generated/")]
    return "\n".join([*sources, *((tree / path).read_text() for path in generated)])


def compiler(folder: Path, name: str, version: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return str(path)


def test_macos_has_metal_and_no_cuda(tree: Path, tmp_path: Path) -> None:
    apple = compiler(tmp_path, "c++", "Apple clang version 15.0.0 (clang-1500.3.9.4)")
    its = answer(tree, "darwin", CXX=apple)
    sources = all_sources(tree, its["sources"])
    assert "csrc/metal/runtime.cpp" in sources and "cuda/" not in sources
    assert str(tree / "build/metal/include") in its["include"]
    frameworks = ("Metal", "Foundation", "QuartzCore")
    assert its["link"] == [flag for name in frameworks for flag in ("-framework", name)]
    assert "-fblocks" in its["compile"] and "-ffp-contract=off" in its["compile"]
    assert not any(flag.startswith("--param") for flag in its["compile"])
    assert its["environment"] == {
        "MACOSX_DEPLOYMENT_TARGET": "14.0",
        "ARCHFLAGS": "-arch arm64",
        "_PYTHON_HOST_PLATFORM": "macosx-14.0-arm64",
    }


def test_macos_has_to_be_new_enough(tree: Path) -> None:
    done = ask(tree, "darwin", MACOSX_DEPLOYMENT_TARGET="13.3")
    assert done.returncode != 0
    assert "needs macOS 14; MACOSX_DEPLOYMENT_TARGET is 13.3" in done.stderr
    done = ask(tree, "darwin", HOLOGRAM_BUILD_CUDA="1")
    assert done.returncode != 0 and "NVIDIA GPUs are not supported on macOS" in done.stderr


def test_linux_has_cuda_and_no_metal(tree: Path, tmp_path: Path) -> None:
    its = answer(tree, "linux", CXX=compiler(tmp_path, "g++", "g++ (Debian 12.2.0-14) 12.2.0"))
    sources = all_sources(tree, its["sources"])
    assert '"cuda/backend.cpp"' in sources and "metal/" not in sources
    assert "--param=ggc-min-heapsize=1000000" in its["compile"]
    assert "-l:libstdc++.so.6" in its["link"]
    clang = answer(tree, "linux", CXX=compiler(tmp_path, "cxx", "Debian clang version 19.1.4"))
    assert clang["compile"] == [flag for flag in its["compile"] if not flag.startswith("--param")]


def test_a_source_distribution_needs_no_compiler(tree: Path) -> None:
    assert answer(tree, "linux", CXX="/nowhere/c++")["sources"]
