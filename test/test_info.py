"""`python -m torch_hologram info`, and settings of the environment that nothing reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
from common import ROOT

import torch_hologram
from torch_hologram import _C, _version_check
from torch_hologram.__main__ import main
from torch_hologram.settings import SETTINGS, unknown_settings


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {name: x for name, x in os.environ.items() if not name.startswith("HOLOGRAM_")}
    return subprocess.run(
        [sys.executable, "-m", "torch_hologram", *arguments],
        env={**environment, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_info() -> None:
    process = run(
        "info", HOLOGRAM_BACKENDS="cpu", HOLOGRAM_CPU_DEVICES="2", HOLOGRAM_CPU_ISA="baseline"
    )
    assert process.returncode == 0, process.stderr
    text = process.stdout
    assert torch_hologram.__version__ in text and torch.__version__ in text
    assert f"supported: {', '.join(_version_check.SUPPORTED)}" in text
    assert re.search(r"hologram:0 +cpu, .*1 of 2 parts", text)
    assert re.search(r"hologram:1 +cpu, .*2 of 2 parts", text)
    assert f"instructions: baseline (available: {', '.join(_C.instruction_sets())})" in text
    assert re.search(r"HOLOGRAM_CPU_DEVICES +'2' +1 ", text)
    assert re.search(r"HOLOGRAM_MEMORY_LIMIT +not set ", text)
    assert "unknown" not in text


def test_unknown_settings_are_flagged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLOGRAM_CPU_DEVICE", "2")
    monkeypatch.setenv("HOLOGRAM_TEST_FULL", "0")
    monkeypatch.setenv("HOLOGRAM_X", "1")
    assert main(["info"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "unknown setting: HOLOGRAM_CPU_DEVICE is no setting of torch_hologram: "
        "did you mean HOLOGRAM_CPU_DEVICES?",
        "unknown setting: HOLOGRAM_X is no setting of torch_hologram",
    ]


def test_info_without_a_device() -> None:
    process = run("info", HOLOGRAM_BACKENDS="")
    assert process.returncode == 1
    assert "none: HOLOGRAM_BACKENDS is empty" in process.stdout


def test_info_where_the_device_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(index: int) -> None:
        raise RuntimeError("HOLOGRAM_CPU_ISA is 'sse9'")

    monkeypatch.setattr("torch_hologram.devices.get_device_properties", fail)
    assert main(["info"]) == 1
    assert "RuntimeError: HOLOGRAM_CPU_ISA is 'sse9'" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["info", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        assert "versions, devices, instruction sets" in capsys.readouterr().out
    for wrong, text in (([], "required: command"), (["infos"], "invalid choice")):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2
        assert text in capsys.readouterr().err


def test_unknown_settings() -> None:
    assert unknown_settings({"PATH": "", "HOLOGRAM_EAGER": "1", "HOLOGRAM_SANITIZE": ""}) == ()
    (found,) = unknown_settings({"HOLOGRAM_MEMORY_LIMITS": "1G"})
    assert (found.name, found.meant) == ("HOLOGRAM_MEMORY_LIMITS", "HOLOGRAM_MEMORY_LIMIT")
    assert unknown_settings({"HOLOGRAM_NONSENSE": "1"})[0].meant is None


def test_settings_are_the_documented_ones_and_are_read() -> None:
    page = (ROOT / "docs" / "debugging.md").read_text()
    documented = re.findall(r"^\| `(HOLOGRAM_\w+)`", page, re.M)
    assert documented == [setting.name for setting in SETTINGS]
    sources = [*(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "torch_hologram").glob("*.py")]
    text = "\n".join(path.read_text() for path in sources if path.name != "settings.py")
    reads = r'(?:(?:getenv|variable|environ\.get)\(|VendorLibrary \w+\{)\s*"(HOLOGRAM_[A-Z_]+)"'
    read = set(re.findall(reads, text))
    assert {name for name in read if "TEST" not in name} == set(documented)
