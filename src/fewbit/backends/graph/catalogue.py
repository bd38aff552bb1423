# SPDX-License-Identifier: Apache-2.0
"""The layers of a graph under their names, and the points they offer."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer, layers
from fewbit.backends.graph.units import FLOATS
from fewbit.backends.graph.weights import shape_of
from fewbit.model.ops import EMBEDDING, Op
from fewbit.model.points import Point, Role

_DTYPES = {
    ir.DataType.FLOAT: "float32", ir.DataType.FLOAT16: "float16", ir.DataType.DOUBLE: "float64",
    ir.DataType.BFLOAT16: "bfloat16",
}  # fmt: skip
_RECURRENT = ("LSTM", "GRU", "RNN")
WEIGHT = "weight"


@dataclass(frozen=True)
class Catalogue:
    """What a graph holds.

    Args:
        layers: by name, in order; those in branches and loops too.
        points: weights and inputs of the layers.
        skipped: nodes with matrices that are no layers, with the reason.
    """

    layers: dict[str, Layer]
    points: list[Point]
    skipped: list[tuple[str, str]]


def catalogue(model: ir.Model) -> Catalogue:
    """Look a graph through."""
    found = {layer.name: layer for layer in layers(model.graph)}
    users: dict[ir.Value, list[str]] = {}
    for name, layer in found.items():
        users.setdefault(layer.weight_value, []).append(f"{name}.{WEIGHT}")
    points = []
    for name, layer in found.items():
        weight = layer.weight_value
        dtype = _DTYPES.get(weight.dtype or ir.DataType.FLOAT, "")
        points.append(
            Point(
                name,
                Role.weight,
                layer.op,
                WEIGHT,
                shape_of(layer),
                dtype,
                layer.stack,
                layer.groups,
                tuple(users[weight]),
            )
        )
        if layer.op is not EMBEDDING:
            points.append(Point(name, Role.input, layer.op, dtype=dtype, feeds=(WEIGHT,)))
    skipped = [(node.name or "", why) for node in model.graph.all_nodes() if (why := _skipped(node, found))]
    return Catalogue(found, points, skipped)


def output_point(node_or_input: str, kind: str, dtype: str = "float32") -> Point:
    """The point of what a node gives, or of an input of the graph."""
    return Point(node_or_input, Role.output, Op(kind), dtype=dtype)


def _skipped(node: ir.Node, found: dict[str, Layer]) -> str | None:
    if (node.name or "") in found:
        return None
    if node.op_type in _RECURRENT:
        return f"{node.op_type}: the weights of recurrent layers stay in float in ONNX models"
    if node.domain not in ("", "ai.onnx"):
        matrices = [v for v in node.inputs if v is not None and _is_matrix(v)]
        return f"an operator of the domain {node.domain}: left alone" if matrices else None
    if node.op_type in ("Gemm", "MatMul", "Conv", "ConvTranspose") and not any(
        constant(value) is not None for value in node.inputs if value is not None
    ):
        return None  # a product of activations has no weight
    if node.op_type in ("Gemm", "MatMul", "Conv", "ConvTranspose", "Einsum"):
        return f"{node.op_type} with a weight in a place that has no integer kernel"
    return None


def _is_matrix(value: ir.Value) -> bool:
    return value.const_value is not None and len(value.const_value.shape) > 1 and value.dtype in FLOATS
