"""Imports timm without torchvision, which no model of the benchmark computes with.

timm's models are made of torch alone. The package around them also imports torchvision, for what
the benchmark does not do: reading data sets and transforming images, and `FrozenBatchNorm2d`, a
layer that timm asks for with isinstance() when it freezes a model. While timm is imported, empty
classes stand for those; to make an object of one raises ImportError. Where torchvision is
installed, it is used.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch

# The modules of torchvision that timm imports without a fallback of its own.
MODULES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
)


class InterpolationMode(enum.Enum):
    """As torchvision names them: timm has a table of them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "InterpolationMode":
            return InterpolationMode

        def refuse(self: object, *args: Any, **kwargs: Any) -> None:
            raise ImportError(f"torchvision is not installed: {full} is not there")

        full = f"{self.__name__}.{name}"
        made = type(name, (torch.nn.Module,), {"__init__": refuse, "__doc__": f"For {full}."})
        setattr(self, name, made)
        return made


def import_timm() -> ModuleType:
    """timm, with the real torchvision where there is one."""
    if "timm" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module("timm")
    for name in MODULES:
        module = sys.modules[name] = _StandIn(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    try:
        return importlib.import_module("timm")
    finally:
        for name in MODULES:  # other packages look whether torchvision is there
            del sys.modules[name]
