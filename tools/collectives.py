"""Write the table of docs/distributed.md: what collectives do on tensors of the CPU and the device.

Two processes make every call of test/collectives.py on both, with Gloo as the engine.

usage: python tools/collectives.py            write it
       python tools/collectives.py --check    exit with 1 if the page is not what would be written
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test"))

from ranks import run_ranks  # type: ignore[import-not-found]  # noqa: E402

PAGE = ROOT / "docs" / "distributed.md"
BEGIN, END = "<!-- begin: tools/collectives.py -->\n", "<!-- end: tools/collectives.py -->\n"


def some_of(dtypes: list[str], every: list[str]) -> str:
    """Which those are, in few words."""
    left_out = [dtype for dtype in every if dtype not in dtypes]
    if not left_out:
        return "all"
    names = ", ".join(f"`{dtype}`" for dtype in (left_out if len(left_out) < 4 else dtypes))
    return f"all but {names}" if len(left_out) < 4 else names


def table(rows: list[list]) -> str:
    """A line for the calls and operations that do alike, and what is said of all else."""
    every = list(dict.fromkeys(row[2] for row in rows))
    done: dict[tuple[str, str], list[list[str]]] = defaultdict(lambda: [[], []])
    said: dict[str, dict[str, None]] = defaultdict(dict)
    for name, operation, dtype, *both in rows:
        for i in range(2):
            if not both[i][0]:
                done[name, operation][i].append(dtype)
        if both[1][0]:
            said[both[1][0]][f"`{dtype}`"] = None
    operations: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (name, operation), (there, here) in done.items():
        operations[name, some_of(there, every), some_of(here, every)].append(operation)
    names: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (name, cpu, device), its in operations.items():
        names[", ".join(its), cpu, device].append(f"`{name}`")
    lines = ["| calls | operations | on the CPU | on the device |", "| --- | --- | --- | --- |"]
    for (applied, cpu, device), which in names.items():
        lines.append(f"| {', '.join(which)} | {applied} | {cpu} | {device} |")
    lines += ["", "| what the others say, on both | dtypes |", "| --- | --- |"]
    lines += [f"| {error} | {', '.join(dtypes)} |" for error, dtypes in said.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    if "--help" in sys.argv[1:] or "-h" in sys.argv[1:]:
        print(__doc__)
        return
    first, _ = run_ranks(ROOT / "test" / "collectives.py", timeout=300)
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = before + BEGIN + table(json.loads(first.stdout)) + END + after
    if "--check" in sys.argv[1:]:
        if text != wanted:
            sys.exit(f"{PAGE.relative_to(ROOT)} is not what python tools/collectives.py writes")
        return
    PAGE.write_text(wanted)
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
