# SPDX-License-Identifier: Apache-2.0
"""Giving a node another constant, without changing what other nodes read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.backends.graph.constants import new_constant
from fewbit.errors import UsageError


def put_constant(node: ir.Node, index: int, array: NDArray[np.generic]) -> None:
    """Replace a constant input of a node; an initializer that others read too stays as it is, and a new one is made."""
    value = node.inputs[index]
    assert value is not None and value.graph is not None
    if len(value.uses()) > 1 or value.is_graph_output():
        assert isinstance(value.graph, ir.Graph)
        node.replace_input_with(index, new_constant(value.graph, value, array, f"{value.name}.{node.name}"))
        return
    value.const_value = ir.tensor(np.asarray(array, order="C"), name=value.name)
    value.shape = ir.Shape(array.shape)


def narrowed(wide: NDArray[np.float64], dtype: np.dtype[Any], where: str) -> NDArray[np.generic]:
    """Numbers in the type they are kept in.

    Raises:
        UsageError: one of them is too large for it.
    """
    with np.errstate(over="ignore"):
        made: NDArray[np.generic] = wide.astype(dtype)
    if not np.array_equal(np.isfinite(np.asarray(made, np.float64)), np.isfinite(wide)):
        raise UsageError(
            f"a result of {np.abs(wide[np.isfinite(wide)]).max():.3g} does not fit {dtype}",
            where=where,
            expected="amounts that leave the layer's numbers within its type",
        )
    return made
