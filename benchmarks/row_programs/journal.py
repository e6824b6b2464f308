"""The cells that have been measured: a run that is cut off can go on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from row_programs.cell import Cell


class Journal:
    """A file of lines for each process in a folder. Nothing tells with which build the cells were
    measured: a run that does not go on with an earlier one clears it."""

    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._file = folder / f"{process}.jsonl"

    def clear(self) -> None:
        for file in self._folder.glob("*.jsonl"):
            file.unlink()

    def add(self, cell: Cell) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as lines:
            lines.write(json.dumps(asdict(cell)) + "\n")

    def cells(self) -> dict[tuple[str, str], Cell]:
        """By group and name, of all processes. A line that was cut off counts for nothing."""
        found = {}
        for file in sorted(self._folder.glob("*.jsonl")):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    cell = Cell(**json.loads(line))
                    found[cell.group, cell.name] = cell
        return found
