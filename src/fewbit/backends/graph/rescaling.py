# SPDX-License-Identifier: Apache-2.0
"""Scaling a node's output channels and scaling them back where they are read: the graph computes the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import Tensor

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.editing import narrowed, put_constant
from fewbit.backends.graph.flow import Flow, Places
from fewbit.backends.graph.opening import is_integer_op
from fewbit.backends.graph.sources import Edit, by_input, source_of
from fewbit.errors import UsageError, nearest

Array = NDArray[np.float64]


def rescale(
    model: ir.Model,
    producer: str,
    consumers: Sequence[str],
    channels: Sequence[int],
    factors: Tensor,
    places: Places | None = None,
) -> None:
    """Divide a producer's output channels by factors and multiply the consumers' inputs by them.

    Args:
        model: the graph, whose links `find_structure` has found.
        producer: of a link; so are the consumers and channels.
        consumers: all of the link's.
        channels: the link's.
        factors: one for each output channel of the producer, up to the last one linked; 1 where there is no link.
        places: of the model's nodes, if there are many links to scale.

    Raises:
        UsageError: a factor that is not a finite number above zero, a layer that is quantized already or is not linked
            like this, a result too large for the layer's type.
    """
    places = places or Places(model)
    source = source_of(_node(places, producer))
    if source is None:
        raise _not_scalable(places.named[producer])
    flow = Flow(source, places)
    _require_link(places, flow, producer, consumers, channels)
    by = _checked(producer, channels, factors)
    changed = [_scaled(edit, 1 / _spread(edit.channels, by)) for edit in (*source.edits, *flow.added)]
    numbers = np.asarray(channels)
    for layer in flow.readers:
        if layer.name in consumers:
            edit = Edit(layer.node, layer.weight, numbers[by_input(layer)])
            changed.append(_scaled(edit, _spread(edit.channels, by)))
    for edit, array in changed:
        put_constant(edit.node, edit.index, array)


def _spread(channels: NDArray[np.int64], factors: Array) -> Array:
    """The factor of each place, 1 where no channel of the producer's lies."""
    inside = (channels >= 0) & (channels < len(factors))
    return np.where(inside, factors[np.where(inside, channels, 0)], 1.0)


def _scaled(edit: Edit, by: Array) -> tuple[Edit, NDArray[np.generic]]:
    before = constant(edit.node.inputs[edit.index])
    assert before is not None
    while by.ndim > before.ndim and by.shape[0] == 1:
        by = by[0]
    return edit, narrowed(np.asarray(before, np.float64) * by, before.dtype, edit.node.name or "")


def _node(places: Places, name: str) -> ir.Node:
    if name not in places.named:
        raise UsageError(f"the graph has no node {name!r}", expected=nearest(name, places.named))
    return places.named[name]


def _not_scalable(node: ir.Node) -> UsageError:
    if _is_quantized(node):
        return UsageError(
            f"{node.name} is quantized already", where=node.name, expected="float weights", try_="rescale first"
        )
    return UsageError(
        f"{node.op_type} {node.name} has no constants that scale its output channels",
        where=node.name,
        expected="a producer of a link that find_structure found",
    )


def _is_quantized(node: ir.Node) -> bool:
    before = [value.producer() for value in node.inputs if value is not None]
    return any(is_integer_op(each.op_type) for each in (node, *before) if each is not None)


def _require_link(places: Places, flow: Flow, producer: str, consumers: Sequence[str], channels: Sequence[int]) -> None:
    for name in consumers:
        if _is_quantized(_node(places, name)):
            raise _not_scalable(places.named[name])
    for link in flow.links(producer):
        fits = len(link.channels) == len(channels) and all(a in (-1, b) for a, b in zip(channels, link.channels))
        if fits and set(link.consumers) == set(consumers):
            return
    raise UsageError(
        f"{producer} is not linked like this to {', '.join(consumers)}",
        where=producer,
        expected="a link as find_structure found it, with all of its consumers",
    )


def _checked(producer: str, channels: Sequence[int], factors: Tensor) -> Array:
    by = np.asarray(factors.detach().double().cpu().flatten().numpy(), np.float64)
    if len(by) <= max(channels):
        raise UsageError(f"{len(by)} factors for the {max(channels) + 1} output channels of {producer}", where=producer)
    bad = np.flatnonzero(~((by > 0) & np.isfinite(by))).tolist()
    if bad:
        raise UsageError(
            f"{len(bad)} of {len(by)} factors for {producer} are not finite numbers above zero",
            where=f"{producer}, channels {', '.join(map(str, bad[:8]))}{' …' if len(bad) > 8 else ''}",
            expected="factors from (0, inf); 1 for a channel that is dead and cannot be scaled",
        )
    linked = np.isin(np.arange(len(by)), np.asarray(channels))
    loose = np.flatnonzero((by != 1) & ~linked).tolist()
    if loose:
        raise UsageError(
            f"{len(loose)} channels of {producer} have a factor but no consumer that would undo it",
            where=f"{producer}, channels {', '.join(map(str, loose[:8]))}",
            expected="1 for every output channel that the link does not name",
        )
    return by
