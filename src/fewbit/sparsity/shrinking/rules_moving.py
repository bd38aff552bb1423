# SPDX-License-Identifier: Apache-2.0
"""What operators do to labels that only move elements: the very same as to the elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewbit.sparsity.shrinking.flow import Flow, Matrix, narrowed

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_INDEX = torch.ops.aten.index.Tensor


def move(flow: Flow, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor | Matrix | None]:
    """Labels moved as the first argument is, which may be a list of tensors; one value for each result."""
    first = args[0]
    if func in _VIEWS:  # labels lie in memory otherwise than values do
        func = torch.reshape
    if isinstance(first, Tensor) and isinstance(value := flow.values.get(first), Matrix):
        value = _looked_up(flow, func, value, args)
        return [_found(flow, value, parts) for parts in _by_result(func, value, first, args, kwargs)]
    given = [flow.labels(each) for each in first] if isinstance(first, list | tuple) else flow.labels(first)
    return list(_listed(func(given, *args[1:], **kwargs)))


def pad(flow: Flow, x: Tensor, widths: Sequence[int], out: Tensor) -> Tensor:
    """Zeros around: along an axis whose labels do not change they belong to the same channel."""
    labels = flow.labels(x)
    small = narrowed(labels)
    for number in range(len(widths) // 2):
        axis = labels.ndim - 1 - number
        if small.shape[axis] > 1:
            sides = list(small.shape)
            before, after = widths[2 * number], widths[2 * number + 1]
            small = small.narrow(axis, max(0, -before), sides[axis] + min(0, before) + min(0, after))
            zeros = [small.new_zeros(*sides[:axis], max(0, n), *sides[axis + 1 :]) for n in (before, after)]
            small = torch.cat([zeros[0], small, zeros[1]], axis)
    return small.expand(out.shape)


def _looked_up(flow: Flow, func: Any, value: Matrix, args: Sequence[Any]) -> Matrix:
    """Along an axis that is looked up, places are no channels."""
    axes = list(value.axes)
    if func is torch.ops.aten.index_select.default:
        along = [args[1] % len(axes)]
    else:
        along = [axis for axis, each in enumerate(args[1]) if each is not None] if func is _INDEX else []
    for axis in along:
        flow.stays(axes[axis], "rows of a table")
        axes[axis] = torch.zeros(1, dtype=torch.int64).expand(len(axes[axis]))
    return Matrix(tuple(axes))


def _by_result(func: Any, value: Matrix, tensor: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The labels of each axis spread over the whole matrix and moved: for each result one tensor for each axis."""
    moved = []
    for axis, labels in enumerate(value.axes):
        along = [-1 if axis == other else 1 for other in range(len(value.axes))]
        moved.append(_listed(func(labels.view(along).expand(tensor.shape), *args[1:], **kwargs)))
    return list(zip(*moved, strict=True))


def _found(flow: Flow, value: Matrix, parts: Sequence[Tensor]) -> Matrix | None:
    """The matrix again, if every axis of it is still along one axis; otherwise all of it is kept."""
    axes: list[Tensor | None] = [None] * parts[0].ndim
    for labels in parts:
        small = narrowed(labels)
        wide = [axis for axis, side in enumerate(small.shape) if side > 1]
        if len(wide) > 1 or (wide and axes[wide[0]] is not None):
            flow.keep(value, "a parameter that is reshaped")
            return None
        if wide:
            axes[wide[0]] = small.reshape(-1)
    zeros = torch.zeros(1, dtype=torch.int64)
    sides = parts[0].shape
    return Matrix(tuple(zeros.expand(side) if one is None else one for one, side in zip(axes, sides, strict=True)))


def _listed(result: Any) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)
