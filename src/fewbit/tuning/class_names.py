# SPDX-License-Identifier: Apache-2.0
"""The names of the classes: those of the data held against the model's, and written into its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fewbit.data.dataset import Dataset
from fewbit.errors import UsageError
from fewbit.tuning.tasks._base import classes_of

TASKS = (
    "sequence_classification", "token_classification", "image_classification", "object_detection", "segmentation",
)  # fmt: skip
BACKGROUND = "background"
"""Of pictures with outlines, what is class 0: all that no object covers."""


def check_classes(model: nn.Module, classes: list[str] | None, task: str) -> None:
    """Hold the classes of data against those of a model.

    Args:
        model: that is to learn them.
        classes: of the data, in the order of their numbers; none if it does not say.
        task: what is learned.

    Raises:
        UsageError: the model has fewer, or has them in another order.
    """
    if not classes or task not in TASKS:
        return
    refuse_fewer(model, classes, classes_of(model))
    own = own_names(model)
    if own is not None and own[: len(classes)] != classes and set(classes) <= set(own):
        raise UsageError(
            f"the data numbers its classes {_shown(classes)}, the model {', '.join(own[:12])}",
            where=f"{type(model).__name__}.config.id2label",
            expected="the same order: what is learned is the number",
            try_=f"custom_config={{'classes': {own}}}" if len(set(own)) == len(own) else "a model with a new head",
        )


def refuse_fewer(model: nn.Module, classes: list[str] | None, count: int | None) -> None:
    """Refuse a model that tells fewer classes apart than the data has.

    Args:
        model: that is to learn them.
        classes: of the data; none if it does not say.
        count: how many the model tells apart; none if nobody knows.

    Raises:
        UsageError: it has fewer.
    """
    if not classes or count is None or len(classes) <= count:
        return
    advice = f"a last layer with {len(classes)} outputs"
    if classes_of(model) is not None:
        advice = (
            f"from_pretrained(folder, num_labels={len(classes)}, ignore_mismatched_sizes=True), whose head starts "
            "anew, as the model, or 'file.py:function' that returns it"
        )
    raise UsageError(
        f"the data has {len(classes)} classes ({_shown(classes)}), the model tells {count} apart",
        where=type(model).__name__,
        expected=f"a model for {len(classes)} classes",
        try_=advice,
    )


def _shown(classes: list[str]) -> str:
    return ", ".join(classes[:12]) + (" …" if len(classes) > 12 else "")


def classes_of_data(dataset: Dataset, task: str | None) -> list[str] | None:
    """The names of what is learned from a dataset, in the order of their numbers; none if it does not say.

    Args:
        dataset: as it is read.
        task: what is learned.
    """
    classes = dataset.classes
    if classes and task == "segmentation" and "polygons" in dataset.source.targets:
        return [BACKGROUND, *classes]
    return classes


def own_names(model: nn.Module) -> list[str] | None:
    """The names of a model's classes in the order of their numbers; none if it only numbers them."""
    return read_names(getattr(getattr(model, "config", None), "id2label", None))


def read_names(names: Any) -> list[str] | None:
    """Label names from a mapping like `id2label`, sorted by index; `None` if it is not one, or names are generic.

    >>> read_names({"1": "dog", "0": "cat"}), read_names({0: "LABEL_0", 1: "LABEL_1"}), read_names({0: "a", 2: "b"})
    (['cat', 'dog'], None, None)
    """
    if not isinstance(names, Mapping) or not names:
        return None
    try:
        found = {int(number): str(name) for number, name in names.items()}
    except (TypeError, ValueError):
        return None
    if sorted(found) != list(range(len(found))) or all(name == f"LABEL_{n}" for n, name in found.items()):
        return None
    return [found[number] for number in range(len(found))]


def name_classes(model: nn.Module, classes: list[str] | None, task: str) -> bool:
    """Write the names of the data's classes into a model's configuration, if it has one and as many classes.

    Args:
        model: it is changed.
        classes: in the order of their numbers.
        task: what was learned.

    Returns:
        Whether the names are there now, or there is nothing to be named.
    """
    config: Any = getattr(model, "config", None)
    if not classes or task not in TASKS or classes_of(model) is None:
        return True
    if classes_of(model) != len(classes):
        return False
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: number for number, name in enumerate(classes)}
    return True
