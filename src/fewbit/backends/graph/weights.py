# SPDX-License-Identifier: Apache-2.0
"""A layer's weight, between the layout of its node and fewbit's, `[stack…, out, in, kernel…]`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.writing import Writer, drop_if_unused
from fewbit.modules.layout import inverse, to_ours, to_own


def read_weight(layer: Layer) -> Tensor:
    """The weight in fewbit's layout and its own dtype; not to be changed."""
    tensor = layer.weight_value.const_value
    assert tensor is not None
    array = np.ascontiguousarray(tensor.numpy())
    if tensor.dtype == ir.DataType.BFLOAT16:  # torch takes no other library's types, but knows the bits
        own = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    else:
        own = torch.from_numpy(array if array.flags.writeable else array.copy())
    return to_ours(own, inverse(layer.axes), layer.groups if layer.split else 1)


def write_weight(graph: ir.Graph, layer: Layer, tensor: Tensor) -> ir.Value:
    """Replace a weight by another, given in fewbit's layout, for every node that reads it.

    Returns:
        The new initializer, in the type of the old one.
    """
    old = layer.weight_value
    assert old.dtype is not None
    own = to_node(layer, tensor).float().contiguous().numpy().astype(old.dtype.numpy())
    value = Writer(graph).constant(f"{old.name}.written", own, old.graph)
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    drop_if_unused(old)
    return value


def to_node(layer: Layer, ours: Tensor) -> Tensor:
    """A tensor laid out like the weight, or with one entry for each block of it, in the layout of the node."""
    return to_own(ours, inverse(layer.axes), layer.groups if layer.split else 1)


def shape_of(layer: Layer) -> tuple[int, ...]:
    """The shape of the weight in fewbit's layout."""
    tensor = layer.weight_value.const_value
    assert tensor is not None
    own = torch.empty([int(str(side)) for side in tensor.shape], device="meta")
    return tuple(to_ours(own, inverse(layer.axes), layer.groups if layer.split else 1).shape)
