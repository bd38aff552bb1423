# SPDX-License-Identifier: Apache-2.0
"""What operators do to labels that compute element by element, or mix what lies along some axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fewbit.sparsity.shrinking.flow import Flow, Matrix, narrowed, nothing


def couple(flow: Flow, tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The labels of what is computed element by element from tensors that broadcast to a shape."""
    carried = [tensor for tensor in tensors if tensor.numel() > 1]
    matrices = [flow.values[tensor] for tensor in carried if _is_wide(flow, tensor)]
    found: Tensor | None = None
    for tensor in carried:
        if not _is_wide(flow, tensor):
            found = flow.labels(tensor) if found is None else _pair(flow, found, flow.labels(tensor), shape)
    if found is None:
        for value in matrices:
            flow.keep(value, "computed from parameters alone")
        return nothing(shape)
    found = found.expand(*shape)
    for value in matrices:
        found = _beside(flow, found, value)
    return found


def _is_wide(flow: Flow, tensor: Tensor) -> bool:
    value = flow.values.get(tensor)
    return isinstance(value, Matrix) and sum(len(labels) > 1 and flow.is_live(labels) for labels in value.axes) > 1


def _pair(flow: Flow, a: Tensor, b: Tensor, shape: Sequence[int]) -> Tensor:
    """What meets element by element goes together; one value for several channels is no channel's."""
    a, b = (labels.reshape(*(1,) * (len(shape) - labels.ndim), *labels.shape) for labels in (a, b))
    out = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    shared_a, shared_b = _is_shared(flow, a, b, out), _is_shared(flow, b, a, out)
    for labels, shared in ((a, shared_a), (b, shared_b)):
        if shared:
            flow.stays(labels, "one value for several channels")
    if shared_a and shared_b:
        return nothing(out)
    if shared_a or shared_b:
        return (b if shared_a else a).expand(out)
    flow.join(a.expand(out), b.expand(out))
    finer = max((a, b), key=lambda labels: (bool(labels.any()), narrowed(labels).numel()))
    return finer.expand(out)


def _is_shared(flow: Flow, one: Tensor, other: Tensor, out: Sequence[int]) -> bool:
    """Whether an element of one tensor meets several channels of the other."""
    spread = {axis for axis, side in enumerate(out) if one.shape[axis] == 1 and side > 1}
    return bool(spread & set(flow.varies(other)))


def _beside(flow: Flow, labels: Tensor, value: Matrix) -> Tensor:
    """A parameter with several axes, element by element with labels: the axis along which these change is theirs."""
    first = labels.ndim - len(value.axes)
    varying = [axis - first for axis in flow.varies(labels) if axis >= first and len(value.axes[axis - first]) > 1]
    if len(varying) > 1:  # the widest is of channels; along another, several sources were joined one after the other
        roots = narrowed(flow.roots(labels))
        varying.sort(key=lambda axis: -roots.unique(dim=axis + first).shape[axis + first])  # type: ignore[no-untyped-call]
        flow.merge(labels, [axis + first for axis in varying[1:]])
    for axis, own in enumerate(value.axes):
        if varying and axis == varying[0]:
            flow.join(own, flow.channel(labels, axis + first))
        else:
            flow.stays(own, "one value for several channels")
    if not varying and not flow.varies(labels):
        flow.stays(labels, "joined with a parameter of several axes")
    return labels


def mix(flow: Flow, labels: Tensor, axes: Sequence[int], outs: Sequence[Tensor]) -> list[Tensor]:
    """What is computed from everything along some axes, which are kept, shortened or gone in what comes out."""
    merged = flow.merge(labels, axes or range(labels.ndim))
    found = []
    for out in outs:
        if out.shape == labels.shape:
            found.append(labels)
        else:
            found.append(merged.expand(out.shape) if out.ndim == merged.ndim else narrowed_to(merged, axes, out))
    return found


def narrowed_to(merged: Tensor, axes: Sequence[int], out: Tensor) -> Tensor:
    """Labels without the axes that were summed over."""
    gone = {axis % merged.ndim for axis in axes or range(merged.ndim)}
    for axis in sorted(gone, reverse=True):
        merged = merged.squeeze(axis)
    return merged.expand(out.shape)
