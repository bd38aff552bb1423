# SPDX-License-Identifier: Apache-2.0
"""How a batch is handed to a model: by the names its forward has, without the answers."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.errors import DataError
from fewbit.tuning.tasks._base import Batch

ARGS = "args"
"""Inputs without names: what a loader of tuples gives, all but the last, which is the answers."""

_ANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PACKED = frozenset(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"))
"""What says where packed texts begin; transformers takes it without naming it."""


def as_batch(element: Any) -> dict[str, Any]:
    """What a loader gives, as a dict: `(x, y)` becomes `{"args": (x,), "labels": y}`.

    >>> sorted(as_batch((torch.zeros(2, 3), torch.zeros(2))))
    ['args', 'labels']

    Raises:
        DataError: neither a dict nor a tuple of inputs and answers.
    """
    if isinstance(element, Mapping):
        return dict(element)
    if isinstance(element, tuple | list) and len(element) >= 2:
        return {ARGS: tuple(element[:-1]), "labels": element[-1]}
    raise DataError(
        f"a batch is a {type(element).__name__}",
        code="batch",
        expected="a dict of tensors, or a tuple of inputs and, as the last, answers",
    )


def inputs_of(model: nn.Module, batch: Batch, answers: Collection[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model's forward is called with: everything of the batch that it takes, but for the answers.

    Floats are in the dtype of the model's parameters, as everywhere else that a model is fed.

    >>> inputs_of(nn.Linear(2, 2).bfloat16(), {"input": torch.ones(1, 2)}, ("labels",))[1]["input"].dtype
    torch.bfloat16
    """
    known, dtype = takes(model), _computes_in(model)
    batch = {name: _cast(value, dtype) if name not in answers else value for name, value in batch.items()}
    named = {name: value for name, value in batch.items() if name in known and name not in answers and name != ARGS}
    args = batch.get(ARGS, ())
    if not args and not named and len(known) == 1:  # which has a name of its own
        rest = [value for name, value in batch.items() if name not in answers]
        return tuple(rest[:1]), {}
    return tuple(args), named


def run(model: nn.Module, batch: Batch, answers: Collection[str] = ("labels",), **more: Any) -> Any:
    """The model's outputs for a batch.

    Args:
        model: as it is trained, wrapped or not.
        batch: on its device.
        answers: what it is not given.
        more: further arguments, such as `output_hidden_states=True`.
    """
    args, named = inputs_of(getattr(model, "module", model), batch, answers)
    return model(*args, **named, **more)


def _computes_in(model: nn.Module) -> torch.dtype | None:
    """The dtype of the first parameter of a dtype that inputs have; none if there is none."""
    return next((each.dtype for each in model.parameters() if each.dtype in _FLOATS), None)


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if dtype is not None and value.dtype in _FLOATS else value
    if type(value) in (tuple, list):
        return type(value)(_cast(each, dtype) for each in value)
    return value


@lru_cache(maxsize=64)
def _parameters(function: Any, bound: bool) -> frozenset[str]:
    # Of a method the first is the model itself, whatever it is called.
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    named = frozenset(each.name for each in parameters if each.kind not in _ANY)
    # Hugging Face models hand on what they do not name themselves.
    return named | _PACKED if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters) else named


def takes(model: nn.Module) -> frozenset[str]:
    """The names that a model's forward takes."""
    function = getattr(model.forward, "__func__", None)  # which the cache may keep, as it may not keep the model
    return _parameters(model.forward if function is None else function, function is not None)


def to_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """A batch with its tensors on a device; those that are there already stay as they are."""
    return {name: _moved(value, device) for name, value in batch.items()}


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        return tuple(_moved(each, device) for each in value)
    if isinstance(value, list):
        return [_moved(each, device) for each in value]
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    return value
