"""tools/conformance.py and tools/operators.py: what they read, count and write."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from . import config

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(config.DEVICE == "cpu", reason="about the hologram device")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def line(name: str, status: str, **more: object) -> str:
    unit = {"database": "ops", "name": name, "dtype": "float32", "phase": "forward"}
    return json.dumps({**unit, "status": status, **more})


def test_summary_counts_and_finds_crashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = load("conformance")
    path = tmp_path / "results.jsonl"
    path.write_text(
        "\n".join(
            [
                line("add", "started"),
                line("add", "passed", exact=True),
                line("mul", "started"),
                line("mul", "failed", error="wrong"),
                line("sub", "started"),
            ]
        )
    )
    lines = tool.read(path)
    (row,) = tool.count(lines).values()
    assert tool.judged(row) == 3
    assert (row["passed"], row["exact"], row["failed"], row["crashed"]) == (1, 1, 1, 1)
    tool.print_summary(lines)
    printed = capsys.readouterr().out
    assert "failed ops:mul:float32:forward wrong" in printed
    assert "crashed ops:sub:float32:forward" in printed


def test_record_keeps_how_operators_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load("conformance")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results.json")
    path = tmp_path / "results.jsonl"
    path.write_text(
        "\n".join(
            [
                line("add", "passed", operators=[["aten::add.Tensor", "native"]]),
                line("sum", "passed", operators=[["aten::add.Tensor", "delegated"]]),
            ]
        )
    )
    tool.write(tool.read(path))
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["operators"] == {"aten::add.Tensor": ["delegated", "native"]}
    assert [(row["judged"], row["passed"]) for row in written["units"]] == [(2, 2)]


def test_operators_are_classified_by_the_dispatcher() -> None:
    tool = load("operators")
    every = {operator.name: operator for operator in tool.operators({"operators": {}})}
    assert every["empty.memory_format"].kind == "native"
    assert every["mm"].kind == "delegated"
    assert every["relu6"].kind == "composite"
    assert every["cudnn_batch_norm"].kind == "unsupported"
    assert "sparse" in every["_indices"].layouts
    assert not every["mm"].tested
    seen = {"operators": {"aten::mm": ["copied"]}}
    copied = next(operator for operator in tool.operators(seen) if operator.name == "mm")
    assert (copied.kind, copied.tested) == ("copied", True)


def test_page_check_notices_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = load("operators")
    recorded = json.loads((ROOT / "test" / "conformance" / "results.json").read_text())
    recorded["torch"] = ".".join(torch.__version__.split(".")[:2])
    (tmp_path / "results.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PAGE", tmp_path / "operators.md")
    functions = tmp_path / "custom-operators.md"
    functions.write_text(tool.FUNCTIONS_PAGE.read_text())
    monkeypatch.setattr(tool, "FUNCTIONS_PAGE", functions)
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results.json")

    def main(*arguments: str) -> int:
        monkeypatch.setattr(tool.sys, "argv", ["operators.py", *arguments])
        return tool.main()

    assert main("--check") == 1
    assert main() == 0
    assert main("--check") == 0
    page = tmp_path / "operators.md"
    page.write_text(page.read_text().replace("| `mm` | delegated |", "| `mm` | native |"))
    assert main("--check") == 1
    assert "out of date" in capsys.readouterr().err


def test_committed_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load("operators")
    monkeypatch.setattr(tool.sys, "argv", ["operators.py", "--check"])
    assert tool.main() == 0
