# SPDX-License-Identifier: Apache-2.0
"""Which task a model is for, which method trains it, what is minimized."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from fewbit import registry
from fewbit.errors import UsageError, nearest
from fewbit.modules.huggingface import is_pretrained
from fewbit.tuning.calling import run
from fewbit.tuning.methods._base import Objective
from fewbit.tuning.tasks._base import Batch


def find_task(named: str | None, of_data: str | None, model: nn.Module) -> tuple[str, Any]:
    """The task's name and its module: the one named, the data's, or the one that models of this class do.

    Raises:
        UsageError: there is none of that name, or nothing says which.
    """
    if named is not None:
        check_task(named)
    for_class = tasks_of(model)
    name = named or of_data or next(iter(for_class), None)
    if name is None:
        raise UsageError(
            f"nothing says what a {type(model).__name__} is trained to do",
            where="task",
            expected=", ".join(registry.names("tasks")),
            try_="task=NAME (--task NAME), one of these",
        )
    task = registry.get("tasks", name)
    if for_class and name not in for_class:
        place = getattr(model, "name_or_path", "") or "folder"
        raise UsageError(
            f"a {type(model).__name__} is for {' or '.join(for_class)}, and not for {name}",
            where="task",
            expected=f"a model of transformers.{task.MODEL}, or task={for_class[0]!r} (--task {for_class[0]})",
            try_=f"transformers.{task.MODEL}.from_pretrained({place!r}, num_labels=…) as the model, or "
            "'file.py:function' that returns it; its head starts anew and is learned",
        )
    return name, task


def check_task(name: str) -> None:
    """Whether there is a task of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in registry.names("tasks"):
        raise UsageError(f"there is no task {name!r}", where="task", expected=nearest(name, registry.names("tasks")))


def find_method(name: str, teacher: Any) -> Any:
    """The method's module.

    Raises:
        UsageError: there is none of that name, or it needs a teacher.
    """
    if name not in registry.names("methods"):
        raise UsageError(
            f"there is no method {name!r}", where="method", expected=nearest(name, registry.names("methods"))
        )
    method = registry.get("methods", name)
    if method.NEEDS_TEACHER and teacher is None:
        raise UsageError(
            f"method {name!r} without a teacher",
            where="teacher",
            expected="a model of the same outputs, such as the one that was compressed",
            try_="teacher=model (--teacher PATH)",
        )
    return method


class TaskLoss:
    """The task's own loss.

    Args:
        task: its module.
    """

    def __init__(self, task: Any):
        self._loss, self._answers = task.loss, getattr(task, "ANSWERS", ("labels",))

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Run the model and compare."""
        found: tuple[Tensor, Tensor] = self._loss(run(model, batch, self._answers), batch)
        return found


def find_objective(method: Any, task: Any, teacher: nn.Module | None, options: Any) -> Objective:
    """What is minimized: the method's own, the distillation of a teacher, or the task's loss."""
    own = getattr(method, "objective", None)
    if own is None and teacher is not None:
        own = registry.get("methods", "distill").objective
    if own is None:
        return TaskLoss(task)
    made: Objective = own(task, teacher, options)
    return made


def tasks_of(model: nn.Module) -> list[str]:
    """The tasks that transformers has this model's class for."""
    if not is_pretrained(model):
        return []
    transformers: Any = sys.modules["transformers"]
    found = []
    for name in registry.names("tasks"):
        auto = getattr(transformers, registry.get("tasks", name).MODEL, None)
        if auto is not None and type(model).__name__ in _class_names(auto):
            found.append(name)
    return found


def _class_names(auto: Any) -> set[str]:
    def flat(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        else:
            for each in value or ():
                yield from flat(each)

    return set(flat(list(auto._model_mapping._model_mapping.values())))
