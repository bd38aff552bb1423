# SPDX-License-Identifier: Apache-2.0
"""What layers do to labels: products with weights, products of activations, convolutions, norms, tables."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.sparsity.shrinking.flow import Flow, Matrix, narrowed, nothing


def product(flow: Flow, a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, of two axes or, with a leading one, of three."""
    left, right = flow.values.get(a), flow.values.get(b)
    if isinstance(right, Matrix) and len(right.axes) == 2 and not isinstance(left, Matrix):
        return _contracted(flow, flow.labels(a), right.axes[0], right.axes[1])
    if isinstance(left, Matrix) and len(left.axes) == 2 and not isinstance(right, Matrix):
        return _contracted(flow, flow.labels(b).mT, left.axes[1], left.axes[0]).mT
    return _met(flow, flow.labels(a), flow.labels(b))


def _contracted(flow: Flow, x: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """`[n, in]` times a weight: what comes in is read by its columns, what goes out has the labels of its rows."""
    if narrowed(x).shape[-1] == 1 < x.shape[-1] and flow.varies(x):  # positions are mixed here, and channels pass by
        for labels in (columns, rows):
            flow.stays(labels, "a weight over positions")
        return x[..., :1].expand(*x.shape[:-1], len(rows))
    flow.join(columns, flow.channel(x, -1))
    flow.read.append(columns)
    flow.made.append(rows)
    return rows.expand(*x.shape[:-1], len(rows))


def _met(flow: Flow, a: Tensor, b: Tensor) -> Tensor:
    """Two activations: of each leading place (a head) everything goes together."""
    shape = (*a.shape[:-1], b.shape[-1])
    a, b = flow.merge(a, [-1]), flow.merge(b, [-2])
    for one, other in ((a, b), (b, a)):
        if not bool(one.any()) and not {axis for axis in flow.varies(other) if axis < other.ndim - 2}:
            return other.expand(shape)
    a, b = flow.merge(a, [-2]), flow.merge(b, [-1])
    flow.join(a, b)
    flow.met.append(a.reshape(-1))
    return torch.maximum(a, b).expand(shape)


def convolution(flow: Flow, x: Tensor, weight: Tensor, *, transposed: bool, groups: int, out: Tensor) -> Tensor:
    """A convolution; channels of a grouped one go group by group, with all that come in and go out."""
    spatial = weight.ndim - 2
    labels, value = flow.labels(x), flow.values.get(weight)
    if not isinstance(value, Matrix) or len(value.axes) != weight.ndim:
        flow.stays(labels, "a convolution with a weight that is computed")
        return nothing(out.shape)
    come = flow.channel(labels, -1 - spatial)
    first, second = value.axes[:2]
    for taps in value.axes[2:]:
        flow.stays(taps, "places of a kernel")
    if groups == 1:
        columns, rows = (first, second) if transposed else (second, first)
        flow.join(columns, come)
        flow.read.append(columns)
        flow.made.append(rows)
    else:
        flow.stays(second, "channels within a group")
        whole = flow.merge(first.view(groups, -1), [1]) if first.numel() > groups else first.view(groups, 1)
        flow.join(flow.merge(come.view(groups, -1), [1]), whole)
        each = out.shape[-1 - spatial] // groups
        rows = whole.expand(groups, each).reshape(-1) if transposed else first
    along = (len(rows), *(1,) * spatial)
    return rows.view(along).expand(out.shape)


def by_channel(flow: Flow, labels: Tensor, axis: int, parameters: list[Tensor | None]) -> None:
    """Vectors with one value for each channel go with it."""
    for parameter in parameters:
        value = None if parameter is None else flow.values.get(parameter)
        if value is not None:
            flow.join(value.axes[0] if isinstance(value, Matrix) else value, flow.channel(labels, axis))


def group_norm(flow: Flow, x: Tensor, groups: int, parameters: list[Tensor | None]) -> Tensor:
    """A norm over groups of channels, each of which goes as a whole."""
    come = flow.channel(flow.labels(x), 1)
    whole = flow.merge(come.view(groups, -1), [1]).expand(groups, len(come) // groups).reshape(-1)
    labels = whole.view(-1, *(1,) * (x.ndim - 2)).expand(x.shape)
    by_channel(flow, labels, 1, parameters)
    return labels


def table(flow: Flow, weight: Tensor, out: Tensor) -> Tensor:
    """Rows of a table that are looked up: the channels are its columns."""
    value = flow.values.get(weight)
    if not isinstance(value, Matrix):
        return flow.labels(weight)[:1].expand(out.shape) if value is not None else nothing(out.shape)
    flow.stays(value.axes[0], "rows of a table")
    flow.made.append(value.axes[1])
    return value.axes[1].expand(out.shape)
