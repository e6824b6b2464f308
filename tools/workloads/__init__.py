"""Programs that call operators as users do: small models of public libraries, and habits.

`tools/record_calls.py` runs them. Every model is a small random configuration: nothing is
downloaded, and the sizes are chosen for time, not for sense. What a model calls depends on its
code and on its configuration, hardly on its sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

# Builds the model and its data on a device, and returns what to record.
Prepare = Callable[[torch.device], Callable[[], None]]


@dataclass(frozen=True)
class Workload:
    """One model. `source`: "transformers", "timm" or "torch", the package whose code it runs."""

    source: str
    name: str
    prepare: Prepare


def missing_packages() -> list[str]:
    """The packages that are needed and not installed."""
    return [name for name in ("transformers", "timm") if find_spec(name) is None]


def workloads() -> list[Workload]:
    """Every workload, in the order of the three sources. Imports the libraries: takes seconds."""
    from workloads import programs, timm_models, transformers_models

    return [
        *transformers_models.workloads(),
        *timm_models.workloads(),
        *programs.workloads(),
    ]
