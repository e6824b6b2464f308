"""The rooms of the house: layers of the C++ code include each other downwards only."""

from __future__ import annotations

import re
from pathlib import Path

from common import HologramTestCase
from torch.testing._internal.common_utils import run_tests

ROOT = Path(__file__).resolve().parents[1]

# What a folder of csrc may include. A backend knows the core and itself; the core knows no backend,
# and neither knows torch.
LAYERS = {
    "atlas": {"atlas"},
    "cpu": {"atlas", "cpu"},
    "gpu": {"atlas", "gpu"},
    "cuda": {"atlas", "gpu", "cuda"},
    "metal": {"atlas", "gpu", "metal"},
    "aten": {"atlas", "aten"},
}
# The bindings say what machine the package runs on, give the build the kernels' texts, and hand
# torch's threads to the CPU's queues. Calls run on the host whatever the backend: with kernels of
# the CPU's where torch's are slower. What a GPU has no kernels for the CPU's code runs, on copies
# or where it lies.
EXCEPTIONS = {
    ("gpu/code.h", "cpu/compiled_group.h"),
    ("cuda/host_run.h", "cpu/compiled_group.h"),
    ("metal/queue.cpp", "cpu/compiled_group.h"),
    ("aten/bindings.cpp", "cpu/system.h"),
    ("aten/kernel_texts.cpp", "gpu/libraries.h"),
    ("aten/threads.cpp", "cpu/queue.h"),
    ("aten/convolutions.cpp", "cpu/copy_rows.h"),
    ("aten/convolutions.cpp", "cpu/depthwise.h"),
    ("aten/convolutions.cpp", "cpu/queue.h"),
}
# Patterns of several operations name them: a sum or a difference of products, a sum of one element.
PATTERNS = {("compile_operations.cpp", "Op::mul"), ("algebra.cpp", "Op::add")}
TORCH = re.compile(r'#include [<"](ATen|c10|torch|pybind11|Python\.h)')


def sources(layer: str) -> list[Path]:
    files = [p for p in (ROOT / "csrc" / layer).iterdir() if p.suffix in (".h", ".cpp", ".inc")]
    assert files, layer
    return sorted(files)


class TestLayers(HologramTestCase):
    def test_includes_point_down(self):
        seen = set()
        for layer, below in LAYERS.items():
            for path in sources(layer):
                for header in re.findall(r'#include "([a-z_]+/[a-z_0-9]+\.h)"', path.read_text()):
                    edge = (f"{layer}/{path.name}", header)
                    if edge in EXCEPTIONS:
                        seen.add(edge)
                    else:
                        self.assertIn(header.split("/")[0], below, f"{edge[0]} includes {header}")
        self.assertEqual(seen, EXCEPTIONS, "exceptions that are none any more")

    def test_the_core_and_the_backends_know_no_torch(self):
        for layer in ("atlas", "cpu", "gpu", "cuda", "metal"):
            for path in sources(layer):
                self.assertIsNone(TORCH.search(path.read_text()), path)

    def test_no_circle_of_headers(self):
        includes = {
            f"{layer}/{path.name}": re.findall(
                r'#include "([a-z_]+/[a-z_0-9]+\.h)"', path.read_text()
            )
            for layer in LAYERS
            for path in sources(layer)
            if path.suffix == ".h"
        }
        done: set[str] = set()

        def visit(header: str, path: tuple[str, ...]) -> None:
            self.assertNotIn(header, path, " -> ".join((*path, header)))
            if header not in done:
                for other in includes.get(header, ()):
                    visit(other, (*path, header))
                done.add(header)

        for header in includes:
            visit(header, ())

    def test_no_operation_is_named_outside_the_table(self):
        """What an operation is, its row says: no list of them, and no range, anywhere else."""
        pattern = re.compile(r"\b(op|kOp)\s*(==|!=|<=|>=|<|>)\s*Op::|case Op::")
        for layer in LAYERS:
            for path in sources(layer):
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if (path.name, *re.findall(r"Op::[a-z]+", line)) in PATTERNS:
                        continue
                    self.assertIsNone(pattern.search(line), f"{path.name}:{number}: {line}")


if __name__ == "__main__":
    run_tests()
