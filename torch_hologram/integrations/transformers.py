"""Hugging Face transformers: ``Trainer`` and devices by number.

``model.to("hologram")``, ``from_pretrained(..., device_map="hologram")`` and
``pipeline(..., device="hologram")`` need nothing. ``Trainer`` and ``pipeline(..., device=0)`` do,
and :func:`enable` changes:

- the device that accelerate chooses, which is ``TrainingArguments.device`` too
  (:mod:`torch_hologram.integrations.accelerate`);
- ``Pipeline.__init__``, which looks for a device of a fixed list when it is given a number or none;
- ``transformers.training_args.is_torch_bf16_gpu_available``, which says what ``bf16=True`` is
  checked against: it knows some devices and answers no for any other;
- ``Trainer._save_rng_state`` and ``Trainer._load_rng_state``, which know the generators of some
  devices: those of this one are saved beside them, in ``hologram_rng_state.pth``, of several
  processes in one for each, ``hologram_rng_state_<rank>.pth``, so that training that resumes from a
  checkpoint draws the numbers it would have drawn.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from torch_hologram import random
from torch_hologram._device import DEVICE_TYPE
from torch_hologram.integrations import Changes, accelerate, require_attribute

__all__ = ["disable", "enable"]

_changes = Changes()
_device = torch.device(DEVICE_TYPE)  # the one that enable() was given
_enabled_accelerate = False  # by enable(), so that it is disable()'s to put back


def enable(device: torch.device | str = DEVICE_TYPE) -> None:
    """Makes the device the one that ``TrainingArguments`` choose, except with ``use_cpu=True``.

    It is then also the one of pipelines that are given no device, and a number from 0 on counts the
    devices of hologram. Call it before making ``TrainingArguments``. May be called again.

    Args:
        device: ``"hologram"``, or one with an index.

    Raises:
        ImportError: transformers or accelerate is not installed.
        ValueError: ``device`` is no device of hologram.
        RuntimeError: there is no such device; accelerate has already chosen another device; or
            transformers is of a version that cannot be opened. The message says what it lacks.
    """
    arguments = import_module("transformers.training_args")
    trainer = import_module("transformers.trainer")
    need = functools.partial(require_attribute, package="transformers", tested="5.20 to 5.23")
    trainer_class = need(trainer, "Trainer")
    pipeline_class = need(import_module("transformers.pipelines.base"), "Pipeline")
    originals = (
        need(pipeline_class, "__init__"),
        need(arguments, "is_torch_bf16_gpu_available"),
        need(trainer_class, "_save_rng_state"),
        need(trainer_class, "_load_rng_state"),
        need(need(arguments, "TrainingArguments"), "_setup_devices").func,
    )
    global _enabled_accelerate
    _enabled_accelerate = _enabled_accelerate or not accelerate.is_enabled()
    accelerate.enable(device)
    global _device
    _device = torch.device(device)
    if _changes:
        return
    pipeline_init, bf16_available, save_rng_state, load_rng_state, setup_devices = originals
    signature = inspect.signature(pipeline_init)

    @functools.wraps(pipeline_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs)
        chosen = call.arguments.get("device")
        if isinstance(chosen, int) and chosen >= 0:
            call.arguments["device"] = torch.device(DEVICE_TYPE, chosen)
        elif chosen is None and getattr(call.arguments["model"], "hf_device_map", None) is None:
            call.arguments["device"] = _device
        pipeline_init(*call.args, **call.kwargs)

    @functools.wraps(bf16_available)
    def is_torch_bf16_gpu_available() -> bool:
        return True  # on the chosen device, whatever the others can do

    @functools.wraps(save_rng_state)
    def _save_rng_state(self: Any, output_dir: str) -> None:
        save_rng_state(self, output_dir)
        torch.save(random.get_rng_state_all(), rng_path(self, output_dir))

    @functools.wraps(load_rng_state)
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        load_rng_state(self, checkpoint)
        path = None if checkpoint is None else rng_path(self, checkpoint)
        if path is not None and path.is_file():
            random.set_rng_state_all(torch.load(path, weights_only=True))

    def rng_path(self: Any, folder: str) -> Path:
        several = self.args.world_size > 1
        return Path(folder, f"hologram_rng_state{f'_{self.args.process_index}' * several}.pth")

    @functools.wraps(setup_devices)
    def _setup_devices(self: Any) -> torch.device:
        found: torch.device = setup_devices(self)
        if found.type != "cuda":
            return found
        self._n_gpu = 1  # CUDA's devices, where it is available, come before accelerate's choice
        return _device

    cached = functools.cached_property(_setup_devices)
    cached.__set_name__(arguments.TrainingArguments, "_setup_devices")
    _changes.set(arguments.TrainingArguments, "_setup_devices", cached)
    _changes.set(pipeline_class, "__init__", __init__)
    _changes.set(arguments, "is_torch_bf16_gpu_available", is_torch_bf16_gpu_available)
    _changes.set(trainer_class, "_save_rng_state", _save_rng_state)
    _changes.set(trainer_class, "_load_rng_state", _load_rng_state)


def disable() -> None:
    """Undoes :func:`enable`; does nothing where that was not called.

    accelerate is put back too, unless its own ``enable()`` was called before. What was made before
    keeps its device; ``TrainingArguments`` that are made afterwards choose anew.
    """
    global _enabled_accelerate
    _changes.undo()
    if _enabled_accelerate:
        accelerate.disable()
        _enabled_accelerate = False
