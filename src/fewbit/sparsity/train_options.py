# SPDX-License-Identifier: Apache-2.0
"""What a user says about training, put into the recipe: it is complete, and makes the same model again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from fewbit.errors import UsageError
from fewbit.sparsity.recipe import Recipe

_STAGE = "train"


def with_training(recipe: Recipe, training: Mapping[str, Any], teacher: Any = None) -> Recipe:
    """The recipe with settings of training, and with or without a teacher.

    Args:
        recipe: as it was written, or as a level means it.
        training: settings of `finetune` by name.
        teacher: False or `"off"` for none; a model where the recipe has none.

    Raises:
        UsageError: settings of training and nothing that trains, or that the stage does not take.

    >>> recipe = Recipe.from_dict({"stages": [{"train": {"final": 0.5}}]})
    >>> changed = with_training(recipe, {"lr": 0.1, "warmup": 5}).stages[0][1]
    >>> changed.lr, changed.options
    (0.1, {'warmup': 5})
    """
    if not recipe.stages:  # of a level that leaves the model as it is
        return recipe
    if training and all(name != _STAGE for name, _ in recipe.stages):
        raise UsageError(
            f"{', '.join(training)}: nothing in the recipe trains",
            where="options",
            expected=f"a recipe with a stage {_STAGE}, or an optim_level above 0",
        )
    changes: dict[str, Any] = dict(training)
    if teacher is not None:
        changes["distill"] = teacher not in (False, "off")
    if not changes:
        return recipe
    stages = [(name, _changed(each, changes) if name == _STAGE else each) for name, each in recipe.stages]
    return replace(recipe, stages=tuple(stages))


def _changed(settings: Any, changes: Mapping[str, Any]) -> Any:
    own = {each.name for each in fields(settings)} - {"options"}
    further = {name: value for name, value in changes.items() if name not in own}
    said = {name: value for name, value in changes.items() if name in own}
    steps = {"max_steps": "epochs", "epochs": "max_steps"}  # one of the two
    said |= {other: None for name, other in steps.items() if said.get(name) is not None}
    return replace(settings, **said, options={**settings.options, **further})
