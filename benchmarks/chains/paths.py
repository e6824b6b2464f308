"""Where the sources, what is built, and the results are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BUILD = ROOT / "build" / "benchmarks"
