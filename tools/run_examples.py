"""Run the examples of the documentation, in the order of the files named.

    ```python               runs here; the blocks of one file share a namespace
    ```python file=NAME     is written to that file
    ```shell run            runs in bash, which stops at the first command that fails

All of them are in a folder of their own, which is removed afterwards. An example that raises fails
the run; what it should print is said with `assert`.

usage: python tools/run_examples.py README.md docs/*.md
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import torch  # noqa: F401  (autoload brings the device, as in a user's program)

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^```(?:python(?: file=(?P<file>[\w.]+))?|(?P<shell>shell run))\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def run_shell(commands: str) -> None:
    """With this interpreter's programs, and the package of this tree."""
    folders = {"PATH": Path(sys.executable).parent, "PYTHONPATH": ROOT}
    env = {
        name: os.pathsep.join(filter(None, [str(folder), os.environ.get(name)]))
        for name, folder in folders.items()
    }
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={**os.environ, **env},
        check=True,
        timeout=300,
    )


def run(path: Path) -> int:
    """Run the blocks of one file; returns how many. The line numbers of errors are the file's."""
    text = path.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for match in BLOCK.finditer(text):
        if match["shell"]:
            run_shell(match["code"])
        elif match["file"]:
            Path(match["file"]).write_text(match["code"])
        else:
            first_line = text.count("\n", 0, match.start("code"))
            exec(compile("\n" * first_line + match["code"], str(path), "exec"), namespace)
        count += 1
    return count


def main() -> int:
    files = [Path(name).resolve() for name in sys.argv[1:]]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
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
