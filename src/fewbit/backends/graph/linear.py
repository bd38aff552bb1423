# SPDX-License-Identifier: Apache-2.0
"""What MatMul and Gemm have in common: `factor * x @ weight + bias`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.nodes import flag, real
from fewbit.errors import UsageError
from fewbit.model.ops import LINEAR


@dataclass(frozen=True)
class LinearTerms:
    """A product with a constant right side.

    Args:
        factor: of the product.
        bias: what is added, if anything is.
        bias_factor: of the bias.
    """

    factor: float
    bias: ir.Value | None
    bias_factor: float


def linear_terms(layer: Layer) -> LinearTerms:
    """The terms of a linear layer.

    Raises:
        UsageError: the constant is on the left, or a stack, or the activation is transposed.
    """
    node = layer.node
    if layer.op is not LINEAR or layer.weight != 1 or layer.stack or flag(node, "transA"):
        raise UsageError(
            f"a {node.op_type} that is no plain product with a constant matrix on the right",
            where=layer.name,
            expected="MatMul(x, W) or Gemm(x, W, b) without transA",
            try_="keep its weight behind DequantizeLinear",
        )
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
    return LinearTerms(real(node, "alpha", 1.0), bias, real(node, "beta", 1.0) if bias is not None else 1.0)


def bias_of(layer: Layer, terms: LinearTerms, rows: int) -> tuple[NDArray[np.float32] | None, ir.Value | None]:
    """The bias as one number a row of the weight, or, where it is no such constant, as the value to be added.

    Raises:
        UsageError: a bias that a run computes, with a factor.
    """
    values = constant(terms.bias)
    if values is not None and values.size in (1, rows) and values.shape in ((), (1,), (rows,), (1, 1), (1, rows)):
        flat = np.asarray(values, np.float32).reshape(-1) * np.float32(terms.bias_factor)
        return np.ascontiguousarray(np.broadcast_to(flat, (rows,))), None
    if terms.bias is not None and terms.bias_factor != 1.0:
        raise UsageError(
            f"a bias that is no row of constants, times beta={terms.bias_factor}",
            where=layer.name,
            expected="beta=1, or a constant bias",
        )
    return None, terms.bias
