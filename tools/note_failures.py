"""A plugin of pytest's: each failure at once, a line in the file HOLOGRAM_TEST_FAILURES."""

from __future__ import annotations

import os
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    if not report.failed or "HOLOGRAM_TEST_FAILURES" not in os.environ:
        return
    text = str(report.longrepr)
    reasons = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    reason = " | ".join(reasons[:3]) or text[-300:].replace("\n", " ")
    with open(os.environ["HOLOGRAM_TEST_FAILURES"], "a") as file:
        file.write(f"{report.nodeid} [{report.when}] {reason[:400]}\n")
