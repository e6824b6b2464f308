"""Run the Python examples of the documentation: every ```python block of the files named.

The blocks of one file share a namespace and run in order, in a folder of their own that is removed
afterwards. An example that raises fails the run; what it should print is said with `assert`.

usage: python tools/run_examples.py README.md docs/*.md
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from pathlib import Path

import torch  # noqa: F401  (autoload brings the device, as in a user's program)

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run(path: Path) -> int:
    """Run the blocks of one file; returns how many. The line numbers of errors are the file's."""
    text = path.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for match in BLOCK.finditer(text):
        first_line = text.count("\n", 0, match.start(1))
        code = compile("\n" * first_line + match[1], str(path), "exec")
        exec(code, namespace)
        count += 1
    return count


def main() -> int:
    files = [Path(name).resolve() for name in sys.argv[1:]]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for path in files:
            try:
                print(f"{path.name}: {run(path)} examples")
            except Exception:
                traceback.print_exc()
                print(f"{path.name}: FAILED")
                failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
