# SPDX-License-Identifier: Apache-2.0
"""What multiplies and shifts the channels that a convolution reads, folded into it: computed in float64.

An export that normalises its pictures, (x - mean) / std, then reads them as they are, on the grid they came on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.backends.graph.constants import constant, new_constant
from fewbit.backends.graph.nodes import only_reader
from fewbit.backends.graph.shapes import sides

Array = NDArray[np.float64]


def fold_input_scale(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Fold products and sums with constants into the convolution that alone reads them.

    A sum is folded only where the convolution pads nothing: the zeros around a picture would not be shifted with it.
    """
    for node in list(graph):
        if node.domain or node.op_type != "Conv" or not node.inputs[0]:
            continue
        while (before := node.inputs[0].producer()) is not None and only_reader(before) is node:  # type: ignore[union-attr]
            found = _affine(before, node)
            if found is None or not _apply(graph, node, *found[1:]):
                break
            node.replace_input_with(0, found[0])
            graph.remove(before, safe=True)
            yield node.name or "", f"{before.op_type} {before.name}, which it alone reads, folded in"


def _affine(node: ir.Node, conv: ir.Node) -> tuple[ir.Value, Array, Array] | None:
    """What a node reads, and the factor and shift it gives each channel of that."""
    weight = constant(conv.inputs[1])
    if weight is None or node.domain or node.op_type not in ("Add", "Sub", "Mul", "Div"):
        return None
    other = 1 if constant(node.inputs[0]) is None else 0
    x, value = node.inputs[1 - other], constant(node.inputs[other])
    channels = weight.shape[1] * conv.attributes.get_int("group", 1)
    if x is None or value is None or (node.op_type == "Div" and other == 0):
        return None
    by_channel = _by_channel(np.asarray(value, np.float64), channels, x, weight.ndim)
    if by_channel is None:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    if node.op_type in ("Mul", "Div"):
        with np.errstate(divide="ignore"):
            return x, by_channel if node.op_type == "Mul" else 1 / by_channel, zero
    if node.op_type == "Add":
        return x, one, by_channel
    return (x, one, -by_channel) if other == 1 else (x, -one, by_channel)


def _by_channel(value: Array, channels: int, x: ir.Value, count: int) -> Array | None:
    """A constant that is the same at every position and adds nothing to the shape of `x`, as `[channels]`."""
    known = sides(x)
    if known is None or len(known) != count or value.ndim > count:
        return None
    shape = (*(1 for _ in range(count - value.ndim)), *value.shape)
    if any(side != 1 for axis, side in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(value.reshape(-1), channels) if known[1] == channels else None


def _apply(graph: ir.Graph, conv: ir.Node, factor: Array, shift: Array) -> bool:
    """Put factor and shift into weight and bias; false where the result would not be the same."""
    weight_value, weight = conv.inputs[1], constant(conv.inputs[1])
    bias_value = conv.inputs[2] if len(conv.inputs) > 2 else None
    bias = constant(bias_value)
    if weight_value is None or weight is None or (bias_value is not None and bias is None):
        return False
    if not np.all(np.isfinite(factor)) or (np.any(shift) and _pads(conv)):
        return False
    groups, outs = conv.attributes.get_int("group", 1), weight.shape[0]
    own = (
        np.repeat(part.reshape(groups, -1), outs // groups, axis=0) for part in (factor, shift)
    )  # [out, in / groups]
    each, added = (part.reshape(*part.shape, *(1 for _ in weight.shape[2:])) for part in own)
    wide = np.asarray(weight, np.float64)
    with np.errstate(over="ignore"):
        made = (wide * each).astype(weight.dtype)
        offset = (wide * added).sum(axis=tuple(range(1, wide.ndim))) + (0 if bias is None else bias)
        moved = offset.astype(weight.dtype)
    if not (np.all(np.isfinite(made)) and np.all(np.isfinite(moved))):
        return False
    if np.any(factor != 1):
        conv.replace_input_with(1, new_constant(graph, weight_value, made))
    if np.any(shift):
        if len(conv.inputs) < 3:
            conv.resize_inputs(3)
        conv.replace_input_with(2, new_constant(graph, bias_value or weight_value, moved, f"{conv.name}.bias"))
    return True


def _pads(conv: ir.Node) -> bool:
    auto = conv.attributes.get_string("auto_pad", "NOTSET")
    pads = conv.attributes["pads"].as_ints() if "pads" in conv.attributes else []
    return auto not in ("NOTSET", "VALID") or (auto == "NOTSET" and any(pads))
