"""A plugin of pytest's: each failure at once, a line in the file HOLOGRAM_TEST_FAILURES.

HOLOGRAM_TEST_ONLY names a file with the tests that are run, a line each; all, where it is not set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    if "HOLOGRAM_TEST_ONLY" not in os.environ:
        return
    wanted = set(Path(os.environ["HOLOGRAM_TEST_ONLY"]).read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
    items[:] = [item for item in items if item.nodeid in wanted]


def pytest_runtest_logreport(report: Any) -> None:
    if not report.failed or "HOLOGRAM_TEST_FAILURES" not in os.environ:
        return
    text = str(report.longrepr)
    reasons = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    reason = " | ".join(reasons[:3]) or text[-300:].replace("\n", " ")
    with open(os.environ["HOLOGRAM_TEST_FAILURES"], "a") as file:
        file.write(f"{report.nodeid} [{report.when}] {reason[:400]}\n")
