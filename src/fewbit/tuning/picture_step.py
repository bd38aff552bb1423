# SPDX-License-Identifier: Apache-2.0
"""Pictures for a model that has an image processor: as that one makes them, where nobody says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fewbit.data.config import DatasetConfig
from fewbit.data.dataset import Dataset
from fewbit.data.loaders.loader import Loader
from fewbit.data.steps._image_processor import has_image_processor
from fewbit.modules.huggingface import is_pretrained
from fewbit.registry import is_reference

TASKS = ("image_classification", "object_detection", "segmentation")
_STEPS = ("rescaling", "processing")


def with_picture_step(config: DatasetConfig, model: nn.Module) -> DatasetConfig:
    """A configuration of pictures with the step `processing` of the model's folder, if nobody names a step for them.

    Args:
        config: as the user gave it.
        model: that is to see the pictures; one of transformers' knows the folder it was opened from.
    """
    home = _home(model)
    if home is None or not is_without_step(config) or not has_image_processor(home):
        return config
    return config.replace(steps=[*config.steps, "processing"], processor=str(home))


def is_without_step(config: Any) -> bool:
    """Whether a configuration is of pictures, and no step of it makes numbers for a model of them."""
    if not isinstance(config, DatasetConfig) or config.task not in TASKS:
        return False
    return not any(step in _STEPS or is_reference(step) for step in config.steps)


def remark(data: Any, model: nn.Module) -> str | None:
    """What is to be said of pictures that a Hugging Face model gets as they are; nothing for all others.

    Args:
        data: what is read, configurations with the step if there is one.
        model: that sees the pictures.
    """
    if not is_pretrained(model) or not (is_without_step(data) or _has_pictures(data)):
        return None
    home = _home(model)
    if home is None:
        why = "the model was not opened from a folder, where preprocessor_config.json would be"
    elif has_image_processor(home):
        why = f"a {type(data).__name__} is taken as it is, and not prepared as {home} says"
    else:
        why = f"{home} has no image processor (preprocessor_config.json)"
    return (
        f"pictures are numbers from 0 to 1 in their own size: {why}; the steps 'rescaling' and 'processing' (--step) "
        "of a configuration make what a model was trained on"
    )


def _has_pictures(data: Any) -> bool:
    """Whether somebody gives samples with pictures that no step has touched."""
    dataset = data.dataset if isinstance(data, Loader) else data
    if not isinstance(dataset, Dataset) or dataset.batched:
        return False
    row = next(iter(dataset), None)
    return isinstance(row, Mapping) and "image" in row


def _home(model: nn.Module) -> Path | None:
    named = getattr(model, "name_or_path", None) if is_pretrained(model) else None
    return Path(str(named)).expanduser() if named and Path(str(named)).expanduser().is_dir() else None
