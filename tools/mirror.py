"""A second copy of the source tree, in which a build leaves the developer's extension alone.

The extension is one file inside the package, so a build for another torch or with a sanitizer would
replace the one that is there. Such builds happen in a copy under build/, which is brought up to
date before every use: unchanged files keep their time stamps, so only what changed is compiled.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What builds and tests leave behind. Names starting with a dot are environments and caches.
PRODUCTS = ("build", "dist", "__pycache__", "*.egg-info", "*.so", "*.pyc", "_build_info.py")


def sources(folder: Path | None = None) -> Iterator[Path]:
    """Every file of the source tree, or of one folder of it, as a path relative to ROOT."""
    for path in sorted((folder or ROOT).iterdir()):
        if path.name.startswith(".") or _is_product(Path(path.name)):
            continue
        if path.is_dir():
            yield from sources(path)
        else:
            yield path.relative_to(ROOT)


def mirror(target: Path) -> None:
    """Make the sources under `target` those of the tree, leaving what was built there.

    Copies files that differ in size or time stamp, and removes sources that are no longer there.
    """
    wanted = set(sources())
    for path in wanted:
        source, copy = ROOT / path, target / path
        if not copy.exists() or _stamp(copy) != _stamp(source):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    for folder in {path.parts[0] for path in wanted if len(path.parts) > 1}:
        for copy in (target / folder).rglob("*"):
            path = copy.relative_to(target)
            if copy.is_file() and path not in wanted and not _is_product(path):
                copy.unlink()


def _is_product(path: Path) -> bool:
    return any(fnmatch(part, pattern) for part in path.parts for pattern in PRODUCTS)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
