# SPDX-License-Identifier: Apache-2.0
"""Zeros that are put around a picture before a convolution, as the convolution's own padding.

Zero is on every grid, so that rounding may come before or after them; between the layer that gives codes and the one
that reads them they would be in the way.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import layer_of
from fewbit.model.ops import CONV


def fold_padding(graph: ir.Graph) -> None:
    """Let convolutions pad what a Pad of zeros padded for them, in place; a Pad that others read stays for those."""
    for node in list(graph):
        layer = layer_of(node)
        if layer is None or layer.op is not CONV or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
            continue
        value = node.inputs[layer.reads]
        pad = None if value is None else value.producer()
        around = None if pad is None else _around(pad)
        if pad is None or around is None or len(around) != 2 * len(layer.axes):
            continue
        before, after = np.split(np.array(around), 2)
        if min(around) < 0 or any((*before[:2], *after[:2])):
            continue
        own = node.attributes.get_ints("pads", [0] * 2 * (len(before) - 2))
        more = [int(side) for side in (*before[2:], *after[2:])]
        node.attributes["pads"] = ir.AttrInt64s("pads", [a + b for a, b in zip(own, more)])
        node.replace_input_with(layer.reads, pad.inputs[0])


def _around(pad: ir.Node) -> list[int] | None:
    """How much a Pad puts before and after each axis, if it puts zeros there; all of them."""
    if pad.op_type != "Pad" or pad.domain or pad.attributes.get_string("mode", "constant") != "constant":
        return None
    given = [constant(value) for value in pad.inputs[1:]]
    absent = [value is None for value in pad.inputs[1:]]
    if not given or given[0] is None or (len(given) > 2 and not absent[2]):
        return None
    if len(given) > 1 and not absent[1] and (given[1] is None or np.any(given[1])):
        return None
    return [int(side) for side in given[0].reshape(-1)]
