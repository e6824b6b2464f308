"""docs/add-an-operator.md, done: what it says is put where it says, in a copy of the tree.

The expressions are compiled and compared with torch's operators in every run. A full run builds
the extension twice, with the row of two operands and the composite, then with the other row as
well, and prints how long the second build takes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from common import ROOT
from torch.testing._internal.common_utils import TestCase, run_tests

PAGE = (ROOT / "docs/add-an-operator.md").read_text()
TABLE, COMPOSITES = "csrc/atlas/op_table.h", "csrc/aten/composites.cpp"
# Before what each example goes into its file.
PLACES = {TABLE: "  X(fma, 3,", COMPOSITES: "}  // namespace\n\nvoid register_composites"}
# What `make docs` writes.
GENERATED = {"docs/operators.md", "docs/custom-operators.md"}

# Two numbers a line in, and what the row makes of them out, as a double or an int64.
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "atlas/op_table.h"
#include "interpret.h"
using namespace hologram;
using namespace hologram::cpu;
int main(int, char** arguments) {
  const bool integers = std::strcmp(arguments[1], "int64") == 0;
  for (const OpInfo& info : kOpTable) {
    if (std::strcmp(info.name, arguments[2]) != 0) continue;
    const auto op = static_cast<Op>(&info - kOpTable);
    char a[64], b[64];
    while (std::scanf("%63s %63s", a, b) == 2) {
      if (integers) {
        const int64_t x = std::atoll(a), y = std::atoll(b);
        std::printf("%lld\\n", static_cast<long long>(interpret_op<int64_t>(op, x, y, 0)));
      } else {
        std::printf("%a\\n", interpret_op<double>(op, std::atof(a), std::atof(b), 0));
      }
    }
    return 0;
  }
  return 1;
}
"""


def code_blocks(section: str) -> Iterator[tuple[str, str]]:
    """The C++ of a section, each with the file that is linked last before it."""
    for block in re.finditer(r"^```cpp\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        files = re.findall(r"\(\.\./(csrc/[^)]+)\)", section[: block.start()])
        yield files[-1], block.group(1)


def examples() -> dict[str, list[tuple[str, str]]]:
    """By the name of an operator, the (file, code) that its section of the page gives."""
    found: dict[str, list[tuple[str, str]]] = {}
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title, body = section.split("\n", 1)
        if ": " in title:
            found[title.rsplit(": ", 1)[1]] = list(code_blocks(body))
    return found


def put(tree: Path, file: str, code: str) -> None:
    """Puts an example into a file of the tree."""
    path, place = tree / file, PLACES[file]
    text = path.read_text()
    if text.count(place) != 1:
        raise AssertionError(f"{file} has {text.count(place)} times {place!r}")
    end = "\n" if file == COMPOSITES else ""
    path.write_text(text.replace(place, code + end + place))


def copied_tree(folder: str) -> Path:
    """A copy of the files that are tracked, or would be."""
    tree = Path(folder) / "tree"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def run(tree: Path, *command: str, **variables: str) -> str:
    """Runs Python in the tree, with its own extension."""
    process = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise AssertionError(f"{command}: {process.stdout[-3000:]}\n{process.stderr[-3000:]}")
    return process.stdout


class TestPage(TestCase):
    def test_one_place_each(self):
        places = {name: [file for file, _ in code] for name, code in examples().items()}
        self.assertEqual(places, {"frac": [TABLE], "fmax": [TABLE], "mish": [COMPOSITES]})

    def test_expressions(self):
        """Of the rows, as the unit tests' interpreter has them, against torch's operators."""
        numbers = [0.0, -0.0, 1.5, -2.5, 3.0, 1e300, float("inf"), float("-inf"), float("nan")]
        integers = [0, 1, -1, 7, -(2**63), 2**63 - 1]
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            for name in ("atlas", "cpu", "test"):
                shutil.copytree(ROOT / "csrc" / name, tree / "csrc" / name)
            for name in ("frac", "fmax"):
                put(tree, *examples()[name][0])
            (tree / "program.cpp").write_text(PROGRAM)
            own = ("atlas/op_table.cpp", "cpu/math.cpp", "test/interpret.cpp")
            sources = ["program.cpp", *(f"csrc/{name}" for name in own)]
            flags = ["-std=c++20", "-O0", "-ffp-contract=off", "-Icsrc", "-Icsrc/test"]
            compiler = os.environ.get("CXX", "g++").split()
            subprocess.run([*compiler, *flags, *sources, "-o", "program"], cwd=tree, check=True)
            for name, dtype, values in (
                ("frac", torch.float64, numbers),
                ("fmax", torch.float64, numbers),
                ("fmax", torch.int64, integers),
            ):
                pairs = [(x, y) for x in values for y in values]
                out = subprocess.run(
                    [str(tree / "program"), str(dtype).removeprefix("torch."), name],
                    input="".join(f"{x} {y}\n" for x, y in pairs),
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout.split()
                number = float.fromhex if dtype.is_floating_point else int
                mine = torch.tensor([number(text) for text in out], dtype=dtype)
                operands = torch.tensor(pairs, dtype=dtype).unbind(1)
                function = getattr(torch, name)
                wanted = function(*operands[: 1 if name == "frac" else 2])
                self.assertEqual(mine, wanted, rtol=0, atol=0)


CHECK = """
import torch
from torch_hologram import _C

OPERATORS = {"frac": 1, "fmax": 2, "mish": 1}
NAMES = __import__("sys").argv[1:]
torch.manual_seed(0)
for name in NAMES:
    function = getattr(torch.ops.aten, name)
    arity = OPERATORS[name]
    # exp, log1p and tanh are the device's own: torch's tolerances.
    tolerance = {} if name == "mish" else {"rtol": 0, "atol": 0}
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    if name == "fmax":
        dtypes += [torch.int64, torch.int32, torch.int16, torch.uint8]
    for dtype in dtypes:
        for shape in ((), (1,), (7, 33), (4096,)):
            operands = [
                torch.randn(shape).mul(9).nan_to_num().to(dtype)
                if dtype.is_floating_point
                else torch.randint(0, 100, shape, dtype=dtype)
                for _ in range(arity)
            ]
            mine = [operand.to("hologram") for operand in operands]
            wanted = function(*operands)
            got = function(*mine)
            torch.testing.assert_close(got.cpu(), wanted, **tolerance)
            out = torch.empty(shape, dtype=dtype, device="hologram")
            assert function(*mine, out=out) is out
            torch.testing.assert_close(out.cpu(), wanted, **tolerance)
    recorded = torch.float32 if name != "fmax" else torch.int64
    mine = [torch.ones(1000, dtype=recorded, device="hologram") for _ in range(arity)]
    explained = torch.hologram.explain(lambda: function(*[m + m for m in mine]) * 2)
    assert explained.passes == 1, explained
print("checked", *NAMES)
"""


@pytest.mark.full
class TestInTheExtension(TestCase):
    def test_build(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = copied_tree(folder)
            before = {
                path.relative_to(tree): path.read_bytes()
                for path in tree.rglob("*")
                if path.is_file()
            }
            build = ["setup.py", "-q", "build_ext", "--inplace"]
            put(tree, *examples()["fmax"][0])
            put(tree, *examples()["mish"][0])
            begin = time.perf_counter()
            run(tree, *build)
            whole = time.perf_counter() - begin
            put(tree, *examples()["frac"][0])
            begin = time.perf_counter()
            run(tree, *build)
            row = time.perf_counter() - begin
            print(f"\nfull build {whole:.0f} s, a row more {row:.0f} s")
            names = list(examples())
            self.assertIn("checked", run(tree, "-c", CHECK, *names))
            some = f"({' or '.join(names)}) and (float32 or bfloat16 or int64)"
            run(tree, "-m", "pytest", "-q", "test/conformance", "-k", some)
            run(tree, "tools/operators.py")
            lists = ["test/test_pointwise_native.py", "test/test_custom.py"]
            run(tree, "-m", "pytest", "-q", *lists, "-k", "Table or Docs")
            run(tree, "-m", "pytest", "-q", "test/test_composites.py")
            changed = {
                str(name)
                for name, content in before.items()
                if (tree / name).read_bytes() != content
            }
            self.assertEqual(changed, {TABLE, COMPOSITES} | GENERATED)


if __name__ == "__main__":
    run_tests()
