# SPDX-License-Identifier: Apache-2.0
"""Which use case it is: the one that somebody names, or the one that model and data look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from fewbit import registry
from fewbit.errors import UsageError, nearest
from fewbit.sparsity.use_cases._base import UseCase, read
from fewbit.tuning.choosing import tasks_of

_AREAS = ("nlp_", "cv_")
"""What people put before the name of a use case."""
_BY_FORMAT = {"image_folder": "image_classification", "yolo": "object_detection"}
_BY_COLUMNS = (
    ({"question", "context"}, "question_answering"),
    ({"words", "tags"}, "token_classification"),
    ({"tokens", "ner_tags"}, "token_classification"),
    ({"text", "label"}, "text_classification"),
    ({"text"}, "text_generation"),
    ({"prompt"}, "text_generation"),
    ({"messages"}, "text_generation"),
    ({"instruction"}, "text_generation"),
)
"""The first whose columns are all there."""


def find_use_case(said: str) -> UseCase:
    """The use case of a name, an alias, or the user's own as `"file.py:function"`.

    Raises:
        UsageError: there is none, or a plug-in that is not one.

    >>> find_use_case("nlp-question_answering").name, find_use_case("ic").task
    ('question_answering', 'image_classification')
    """
    if registry.is_reference(said):
        return read(said, registry.load_reference(said))
    names = _names()
    plain = str(said).strip().lower().replace("-", "_").replace(" ", "_")
    area = next((area for area in _AREAS if plain.startswith(area)), "")
    name = names.get(plain) or names.get(plain.removeprefix(area))
    if name is None:
        raise UsageError(
            f"there is no use case {said!r}",
            where="use_case",
            expected=_nearest(plain, names),
            try_="`fewbit list use_cases`, or one of your own as 'file.py:function'",
        )
    return read(name, registry.get("use_cases", name))


def _nearest(said: str, names: Mapping[str, str]) -> str:
    """Names and aliases like it, and all there are by name alone: aliases are many."""
    near = nearest(said, names).partition("Known: ")[0]
    return f"{near}Known: {', '.join(registry.names('use_cases'))}"


def use_case_for(model: Any, format: str | None, row: Any, task: str | None) -> tuple[UseCase, str]:
    """The use case that a model and data look like, and why.

    Args:
        model: an `nn.Module`, or another kind of model, which says nothing.
        format: of the data, if it was read from files.
        row: the first of the data, if there is any.
        task: what the data says it is for.
    """
    name, why = _found(model, format, row, task)
    return read(name, registry.get("use_cases", name)), why


def _found(model: Any, format: str | None, row: Any, task: str | None) -> tuple[str, str]:
    cases = [read(name, registry.get("use_cases", name)) for name in _own()]
    of_task = {case.task: case.name for case in cases if case.task is not None}
    tasks = tasks_of(model) if isinstance(model, nn.Module) else []
    kind = type(model).__name__
    if tasks:
        return of_task[tasks[0]], f"the model is a {kind}"
    if kind.endswith("ForMaskedLM"):
        return "masked_language_modeling", f"the model is a {kind}"
    if task in of_task:
        return of_task[task], f"the data is for {task}"
    if format == "yolo" and isinstance(row, Mapping) and any(each is not None for each in row.get("polygons") or ()):
        return "segmentation", "the data has outlines as YOLO has them"
    if format in _BY_FORMAT:
        return _BY_FORMAT[format], f"the data is a folder in the format {format}"
    if isinstance(row, Mapping):
        columns = {str(name).lower() for name in row}
        for needed, name in _BY_COLUMNS:
            if needed <= columns and any(isinstance(value, str | list) for value in row.values()):
                return name, f"the rows have the columns {', '.join(sorted(needed))}"
        if "label" in columns and any(_is_picture(value) for value in row.values()):
            return "image_classification", "the samples are arrays of pictures with a label"
    return "custom", "neither the model nor the data says what it is for: samples are taken as the model's inputs"


def _is_picture(value: Any) -> bool:
    shape: tuple[int, ...] = np.shape(value) if hasattr(value, "shape") else ()
    return len(shape) == 3 and bool({shape[0], shape[-1]} & {1, 3, 4})


def _own() -> list[str]:
    return [name for name in registry.names("use_cases") if registry.is_built_in("use_cases", name)]


def _names() -> dict[str, str]:
    """Every name and alias, with the member it means; a name goes before an alias."""
    found: dict[str, str] = {}
    for name in registry.names("use_cases"):
        for alias in getattr(registry.get("use_cases", name), "ALIASES", ()):
            found.setdefault(alias, name)
    return found | {name: name for name in registry.names("use_cases")}
