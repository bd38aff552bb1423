# SPDX-License-Identifier: Apache-2.0
"""Constants of a graph: read as arrays, replaced by new ones, never changed: other nodes may use the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


def constant(value: ir.Value | None) -> NDArray[np.generic] | None:
    """The array of an initializer; none for anything that a run computes or a caller may give."""
    if value is None or value.is_graph_input() or value.const_value is None:
        return None
    return value.const_value.numpy()


def new_constant(graph: ir.Graph, like: ir.Value, array: NDArray[np.generic], name: str | None = None) -> ir.Value:
    """A new initializer of the graph.

    Args:
        graph: where it shall live.
        like: the initializer it replaces; its name is continued.
        array: the values.
        name: what to call it; made unique.
    """
    base = name or f"{like.name}.folded"
    unique, count = base, 1
    while unique in graph.initializers:
        unique, count = f"{base}.{count}", count + 1
    tensor = ir.tensor(np.asarray(array, order="C"), name=unique)
    value = ir.Value(name=unique, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value
