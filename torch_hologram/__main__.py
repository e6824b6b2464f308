"""``python -m torch_hologram info``: versions, devices, instruction sets, settings."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable

import torch

from torch_hologram import _build_info, _version_check
from torch_hologram.settings import SETTINGS, unknown_settings
from torch_hologram.tables import text_table


def versions() -> list[tuple[str, str]]:
    """Returns what runs here, and what the package is made for."""
    supported = ", ".join(_version_check.SUPPORTED)
    return [
        ("torch_hologram", f"{_build_info.VERSION}, in {os.path.dirname(__file__)}"),
        ("torch", f"{torch.__version__} (supported: {supported})"),
        ("built for torch", f"{_build_info.TORCH_MINOR}, with {_build_info.TORCH_VERSION}"),
        ("Python", f"{platform.python_version()}, {platform.platform()}"),
    ]


def devices() -> list[tuple[str, str]]:
    """Returns the devices, one or more rows each. Makes all of them."""
    from torch_hologram import _C
    from torch_hologram.devices import device_count, get_device_properties

    rows = []
    for index in range(device_count()):
        properties = get_device_properties(index)
        instructions = f"instructions: {properties.isa}"
        if properties.isa in _C.instruction_sets():
            instructions += f" (available: {', '.join(_C.instruction_sets())})"
        rows += [
            (f"hologram:{index}", f"{properties.backend}, {properties.name}"),
            ("", f"{properties.multi_processor_count} processors"),
            ("", f"{properties.total_memory / 2**30:.1f} GiB"),
            ("", instructions),
        ]
        if properties.products:
            rows.append(("", f"matrix products: {properties.products}"))
    if rows and _C.environment_warning():
        rows.append(("not as asked for", _C.environment_warning()))
    if rows and _C.absent_backends():
        rows.append(("not here", _C.absent_backends()))
    if not rows:
        rows.append(("devices", f"none: {_C.environment_error() or 'HOLOGRAM_BACKENDS is empty'}"))
    return rows


def settings() -> Iterable[tuple[str, ...]]:
    """Yields the settings, as they are and by default."""
    for setting in SETTINGS:
        value = os.environ.get(setting.name)
        shown = "not set" if value is None else repr(value)
        yield setting.name, shown, setting.default, setting.meaning


def info() -> int:
    """Prints all of it. Returns 1 where there is no device or a variable is unknown, else 0."""
    print(text_table((), versions()))
    failed = False
    print()
    try:
        rows = devices()
        failed = rows[0][0] == "devices"
        print(text_table((), rows))
    except Exception as error:
        failed = True
        print(f"no device can be used: {type(error).__name__}: {error}")
    print()
    print(text_table(("setting", "value", "default", "meaning"), settings()))
    unknown = unknown_settings()
    for setting in unknown:
        print(f"unknown setting: {setting}")
    return int(failed or bool(unknown))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_hologram", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser(
        "info",
        help="print versions, devices, instruction sets and settings",
        description="Prints versions, devices, instruction sets and settings. The exit status is 1 "
        "where there is no device or a variable HOLOGRAM_... is unknown.",
    )
    parser.parse_args(arguments)
    return info()


if __name__ == "__main__":
    sys.exit(main())
