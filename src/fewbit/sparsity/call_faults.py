# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a call of `sparsify`, as far as it can be told before data is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewbit import registry
from fewbit.data.keys import is_count
from fewbit.data.near_paths import near_paths
from fewbit.data.preparing.origin import find_origin
from fewbit.errors import UsageError
from fewbit.modules.opening import refuse_missing
from fewbit.sparsity.modes import TRAINED
from fewbit.sparsity.opening import Network
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.use_cases._base import UseCase


def trains(recipe: Recipe) -> bool:
    """Whether a recipe has a stage that trains."""
    return any(name == "train" for name, _ in recipe.stages)


def check_samples(samples: Any) -> None:
    """Refuse what is no number of samples."""
    if not is_count(samples):
        raise UsageError(f"samples={samples!r}", where="samples", expected="a whole number from 1 up")


def check_teacher(given: bool, recipe: Recipe) -> None:
    """Refuse a teacher where nothing learns."""
    if given and recipe.stages and not trains(recipe):
        raise UsageError(
            "a teacher, and nothing in the recipe trains",
            where="teacher",
            expected=f"{' or '.join(TRAINED)}, or a recipe with a stage train",
            try_="without teacher",
        )


def check_trainable(model: Any, recipe: Recipe) -> None:
    """Refuse an ONNX model for a recipe that trains, before its data is looked at."""
    is_path = isinstance(model, str | Path)
    graph = str(model).lower().endswith(".onnx") if is_path else not isinstance(model, nn.Module)
    if graph and trains(recipe):
        raise UsageError(
            f"{str(model)!r} cannot be trained: an ONNX model has no gradients"
            if is_path
            else f"a {type(model).__name__} cannot be trained: it has no gradients",
            where="model",
            expected="a torch.nn.Module, a Hugging Face folder or 'file.py:function'",
            try_="the PyTorch model that it was exported from, or mode one-shot, which takes ONNX",
        )


def check_device(device: str | None, network: Network, recipe: Recipe) -> None:
    """What trains goes to the device that is said; all else runs where the model is."""
    if device is None or trains(recipe):
        return
    places = [each.device for each in network.model.parameters()] if not network.is_graph else []
    found = places[0] if places else torch.device("cpu")
    if device not in (str(found), found.type):
        raise UsageError(
            f"device={device!r}, and the model is on {found}",
            where="device",
            expected="nothing trains: everything runs where the model is",
            try_="an ONNX model runs on the CPU" if network.is_graph else f"the module itself, on {device}",
        )


def check_model(model: Any) -> None:
    """Refuse a path at which there is nothing."""
    if isinstance(model, str | Path) and not registry.is_reference(model):
        refuse_missing(model)


def check_task(case: UseCase, recipe: Recipe) -> None:
    """Refuse a use case without a task for a recipe that trains; one of the user's own may leave it to the model."""
    if case.task is None and trains(recipe) and not registry.is_reference(case.name):
        cases = [name for name in registry.names("use_cases") if getattr(registry.get("use_cases", name), "TASK", None)]
        raise UsageError(
            f"nothing says what the model learns: {case.name} is for one-shot alone",
            where="use_case",
            expected=f"one of {', '.join(cases)}, or 'file.py:function' with a TASK",
            try_="use_case='…', for what the model is to do; or mode one-shot",
        )


def check_data_place(data: Any, name: str = "data") -> None:
    """Refuse a name of data that is neither a path nor a dataset's."""
    if not isinstance(data, str | Path) or registry.is_reference(data):
        return
    try:
        find_origin(data)
    except UsageError as error:
        sets = ", ".join(name for name in registry.names("presets") if name != "custom_dataset")
        raise UsageError(
            f"no data at {str(data)!r}: there is no such file or folder",
            where=name,
            expected=f"a file, a folder, 'file.py:function', or one of {sets}",
            try_=near_paths(data),
        ) from error
