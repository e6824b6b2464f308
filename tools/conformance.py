"""Run, summarise and record the conformance suite.

usage: python tools/conformance.py run [pytest arguments]      run it, print the summary
       python tools/conformance.py summary FILE                print the summary of recorded lines
       python tools/conformance.py record [pytest arguments]   run all of it, write results.json
       python tools/conformance.py record --from FILE          write it from recorded lines

FILE holds the JSON lines that the suite writes to HOLOGRAM_CONFORMANCE_JSON. results.json, beside
the suite, is the compact form that is committed and that docs/operators.md is generated from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "test" / "conformance" / "results.json"

Line = dict[str, Any]
# One row of the summary: database, phase, dtype.
Row = tuple[str, str, str]


def read(path: Path) -> list[Line]:
    """One line per unit and phase, the last one written; a unit that never ended has "crashed"."""
    latest: dict[tuple[str, ...], Line] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        key = tuple(line[name] for name in ("database", "name", "dtype", "phase"))
        if line["status"] == "started":
            line = {**line, "status": "crashed"}
        latest[key] = line
    return list(latest.values())


def count(lines: Iterable[Line]) -> dict[Row, Counter[str]]:
    """For each row how many units ended in each status, and how many were equal bit for bit."""
    rows: dict[Row, Counter[str]] = defaultdict(Counter)
    for line in lines:
        row = rows[line["database"], line["phase"], line["dtype"]]
        row[line["status"]] += 1
        row["exact"] += bool(line.get("exact"))
    return dict(sorted(rows.items()))


def judged(row: Counter[str]) -> int:
    """Units of a row that say something about the device."""
    return sum(row[name] for name in ("passed", "failed", "crashed", "expected_failure"))


def print_summary(lines: list[Line]) -> None:
    """One row per database, phase and dtype, and the sum; then every unit that is not right."""
    rows = count(lines)
    head = f"{'database':9} {'phase':18} {'dtype':10} {'judged':>6} {'passed':>6} {'exact':>6}"
    print(f"{head} {'failed':>6} {'crashed':>7} {'expected':>8} {'unjudged':>8}")
    total: Counter[str] = Counter()
    for (database, phase, dtype), row in rows.items():
        _print_row(f"{database:9} {phase:18} {dtype:10}", row)
        total += row
    _print_row(f"{'all':39}", total)
    for line in lines:
        if line["status"] in ("failed", "crashed"):
            unit = ":".join(line[name] for name in ("database", "name", "dtype", "phase"))
            print(f"{line['status']} {unit} {line.get('error', '')}")


def _print_row(name: str, row: Counter[str]) -> None:
    print(
        f"{name} {judged(row):6} {row['passed']:6} {row['exact']:6} {row['failed']:6} "
        f"{row['crashed']:7} {row['expected_failure']:8} {row['unjudged']:8}"
    )


def run(arguments: list[str], *, full: bool = False) -> list[Line]:
    """Run the suite with two processes, or as `arguments` say; the recorded lines.

    `full`: in every dtype and with every sample, about ten minutes on two cores.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        path.touch()
        environment = {**os.environ, "HOLOGRAM_CONFORMANCE_JSON": str(path)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        if full:
            environment["HOLOGRAM_TEST_FULL"] = "1"
        command = [sys.executable, "-m", "pytest", "test/conformance", "-q", "-n", "2"]
        subprocess.run(
            [*command, "--dist", "worksteal", *arguments], cwd=ROOT, env=environment, check=False
        )
        return read(path)


def write(lines: list[Line]) -> None:
    """Write results.json: units per row, and the ways each operator ran in passing units."""
    operators: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        for operator, kind in line.get("operators", []):
            operators[operator].add(kind)
    rows = [
        {
            "database": database,
            "phase": phase,
            "dtype": dtype,
            "judged": judged(row),
            "passed": row["passed"],
            "exact": row["exact"],
            "unjudged": row["unjudged"],
        }
        for (database, phase, dtype), row in count(lines).items()
    ]
    parts = [
        f' "torch": {json.dumps(torch_minor())}',
        ' "units": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]",
        ' "operators": {\n  '
        + ",\n  ".join(
            f"{json.dumps(name)}: {json.dumps(sorted(kinds))}"
            for name, kinds in sorted(operators.items())
        )
        + "\n }",
    ]
    RESULTS.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"wrote {RESULTS.relative_to(ROOT)}: {len(rows)} rows, {len(operators)} operators")


def torch_minor() -> str:
    """For example "2.13"."""
    return ".".join(torch.__version__.split(".")[:2])


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        print_summary(run(arguments[1:]))
    elif arguments[:1] == ["summary"] and len(arguments) == 2:
        print_summary(read(Path(arguments[1])))
    elif arguments[:2] == ["record", "--from"] and len(arguments) == 3:
        write(read(Path(arguments[2])))
    elif arguments[:1] == ["record"]:
        lines = run(arguments[1:], full=True)
        print_summary(lines)
        write(lines)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
