# SPDX-License-Identifier: Apache-2.0
"""Models that compute their own loss, in several processes: each of its own batch, as if it were alone.

The losses of detectors divide by the number of objects. In several processes they ask the others for theirs and divide
by the mean, each family in its own way, so that nobody could weigh the parts of a step. Here processes do not see each
other while a loss is computed: it is what it would be in one process, and the step weighs it by its objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fewbit.data.kinds import comes_from
from fewbit.errors import UsageError
from fewbit.modules.huggingface import is_pretrained


def refuse_unknown(model: nn.Module, task: Any, world: int) -> None:
    """Refuse a loss of which nobody knows what it is divided by.

    Args:
        model: that is to be trained.
        task: what it learns.
        world: how many processes there are.

    Raises:
        UsageError: there are several, the model computes its loss, and not where those of transformers do.
    """
    if world > 1 and _is_models(task) and _owner(model) is None:
        raise UsageError(
            f"a {type(model).__name__} in {world} processes: what the loss it computes is divided by is not known",
            where="task",
            expected="a model of transformers' with a loss_function, or one process",
            try_="accumulation=… for large batches",
        )


@contextmanager
def computed_alone(model: nn.Module, task: Any, world: int) -> Iterator[None]:
    """Within the block the loss that a model computes itself is that of its own batch, whatever other processes have.

    Args:
        model: as it was before processes shared it.
        task: what it learns; one with a loss of its own is left as it is.
        world: how many processes there are.
    """
    owner = _owner(model) if world > 1 and _is_models(task) else None
    if owner is None:
        yield
        return
    before = vars(owner).get("_loss_function")
    owner.loss_function = _Alone(owner.loss_function)
    try:
        yield
    finally:
        if before is None:
            del owner._loss_function
        else:
            owner._loss_function = before


class _Alone:
    """A loss that sees no other process."""

    def __init__(self, loss: Callable[..., Any]):
        self._loss = loss

    def __call__(self, *args: Any, **named: Any) -> Any:
        with _unseen():
            return self._loss(*args, **named)


@contextmanager
def _unseen() -> Iterator[None]:
    """Within the block PyTorch and accelerate say that there is one process."""
    from accelerate import PartialState

    asked, state = torch.distributed.is_initialized, PartialState._shared_state
    torch.distributed.is_initialized = lambda: False
    PartialState._shared_state = {}
    try:
        yield
    finally:
        torch.distributed.is_initialized = asked
        PartialState._shared_state = state


def _is_models(task: Any) -> bool:
    """Whether models are given the answers, and compute the loss."""
    return not getattr(task, "ANSWERS", ("labels",))


def _owner(model: nn.Module) -> Any:
    """The model of transformers' that this is, or has adapters around it, and that calls its loss by name.

    One somewhere inside says nothing: what is around it may have a loss of its own.
    """
    found: Any = model.get_base_model() if comes_from(model, "peft.peft_model.PeftModel") else model  # type: ignore[operator]
    return found if is_pretrained(found) and hasattr(type(found), "loss_function") else None
