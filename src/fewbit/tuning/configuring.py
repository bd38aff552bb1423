# SPDX-License-Identifier: Apache-2.0
"""Whatever a user gives as data, as a configuration where that is what prepares it: paths, names, rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isfunction
from pathlib import Path
from typing import Any

from torch import nn

from fewbit import registry
from fewbit.data.config import DatasetConfig, generate_dataset_config
from fewbit.data.dataset import Dataset
from fewbit.data.formats.huggingface import is_huggingface
from fewbit.data.presets.custom_dataset import are_numbers
from fewbit.data.text.tokenizer import has_tokenizer, home_of
from fewbit.errors import FewbitError
from fewbit.tuning.choosing import tasks_of
from fewbit.tuning.picture_step import with_picture_step


@dataclass(frozen=True)
class AsSaid:
    """Data with what somebody says of it apart, which `as_config` makes a configuration of.

    Args:
        data: a path, a name.
        steps: what is done to rows, if anybody says.
        custom_config: further options.
    """

    data: Any
    steps: Sequence[str] | None = None
    custom_config: Mapping[str, Any] = field(default_factory=dict)


def as_config(
    data: Any, model: Any, steps: Sequence[str] | None = None, custom_config: Mapping[str, Any] | None = None
) -> Any:
    """A path or a dataset's name as its configuration, with the tokenizer of the model; everything else as it is.

    Args:
        data: what the user gave; a `.yaml` or `.json` file may be a configuration, `"file.py:function"` returns what
            else may be given; of lists and Hugging Face datasets, those with texts or pictures have to be prepared.
        model: the model, or where it was opened from.
        steps: what is done to rows, if anybody says.
        custom_config: further options, if anybody says any.
    """
    if isinstance(data, AsSaid):
        return as_config(data.data, model, data.steps or None, data.custom_config or None)
    if _have_to_be_prepared(data):
        return generate_dataset_config(data, steps, _with_tokenizer(model, dict(custom_config or {})))
    if not isinstance(data, str | Path):
        return data
    if registry.is_reference(data):
        found = registry.load_reference(str(data))
        return as_config(found() if isfunction(found) else found, model, steps, custom_config)
    more = dict(custom_config or {})
    place = Path(data).expanduser()
    if steps is None and place.exists() and _is_numbers(place):
        return generate_dataset_config(str(data), (), more)
    config = _written(place)
    if config is not None:
        return config.replace(**more, **({} if steps is None else {"steps": steps})) if more or steps else config
    return generate_dataset_config(str(data), steps, _with_tokenizer(model, more))


def for_model(data: Any, task: str | None, model: nn.Module) -> Any:
    """A configuration with what the model says of it: what samples are for, and how its pictures are made.

    Args:
        data: a configuration; anything else stays as it is.
        task: the user's word, if there is one.
        model: whose class is for a task, if it is one of transformers'.
    """
    if not isinstance(data, DatasetConfig):
        return data
    if data.task is None:
        task = task or next(iter(tasks_of(model)), None)
        data = data if task is None else data.replace(task=task)
    return with_picture_step(data, model)


def _with_tokenizer(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    home = home_of(model)
    return {"tokenizer": str(home), **options} if home is not None and has_tokenizer(home) else options


def _have_to_be_prepared(data: Any) -> bool:
    """Whether an object is rows with texts or pictures: a list of dicts, or a Hugging Face dataset."""
    if not is_huggingface(data) and not (isinstance(data, list) and data and isinstance(data[0], Mapping)):
        return False
    row = data[0] if isinstance(data, list) else next(iter(Dataset(data)), None)
    if not isinstance(row, Mapping) or "input_ids" in row:
        return False
    return "image" in row or any(map(_is_said, row.values()))


def _is_said(value: Any) -> bool:
    """Whether a value is a text, words, or messages."""
    first = next(iter(value), None) if isinstance(value, list | tuple) else value
    return isinstance(first, str | Mapping)


def _is_numbers(place: Path) -> bool:
    """Whether the rows of a dataset are numbers and arrays of them, and nothing that has to be prepared."""
    try:
        row = next(iter(Dataset(place)), None)
    except FewbitError:  # what is wrong with it is told when it is opened as what it is
        return False
    if not isinstance(row, Mapping) or "image" in row:  # of which a configuration knows what to do
        return False
    return are_numbers(row)


def _written(place: Path) -> DatasetConfig | None:
    """The configuration that a file is; none if it is rows, or no file."""
    if place.suffix not in (".yaml", ".yml", ".json") or not place.is_file():
        return None
    with place.open(encoding="utf-8", errors="replace") as file:
        if "dataset_name" not in file.read(4096):
            return None
    read = DatasetConfig.from_json if place.suffix == ".json" else DatasetConfig.from_yaml
    return read(place.read_bytes())
