# SPDX-License-Identifier: Apache-2.0
"""The patterns that units are made of, each asked of one node."""

from __future__ import annotations

import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.nodes import only_reader, real
from fewbit.backends.graph.one_number import line_of
from fewbit.backends.graph.shapes import rank
from fewbit.model.ops import LINEAR

# What moves values about or picks some of them: codes can take the same way, with the scale they have.
PASSES = (
    "MaxPool", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Gather", "DepthToSpace", "Expand", "Flatten",
    "Split",
)  # fmt: skip
_SMALLEST = 1e-9  # factors that a scale in float32 takes


def moves(node: ir.Node) -> bool:
    """Whether all that a node gives is some of what its first input holds."""
    nearest = node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") == "nearest"
    return nearest or node.op_type in PASSES


def is_plain(layer: Layer) -> bool:
    """Whether a layer is `x * weight + bias` with a constant bias, a number for each output channel."""
    node = layer.node
    if node.op_type == "Gemm" and (real(node, "alpha", 1.0) != 1.0 or real(node, "beta", 1.0) != 1.0):
        return False
    bias = node.inputs[layer.bias] if layer.bias is not None and len(node.inputs) > layer.bias else None
    if bias is None:
        return True
    value = constant(bias)
    return value is not None and (value.size == 1 or layer.op is not LINEAR or value.shape[-1:] == (value.size,))


def bias_add(node: ir.Node) -> ir.Node | None:
    """The Add of a constant `[out]` that alone reads a MatMul."""
    after = only_reader(node)
    if after is None or after.domain or after.op_type != "Add":
        return None
    other = next((x for x in after.inputs if x is not node.outputs[0]), None)
    value = constant(other)
    weight = node.inputs[1]
    shape = None if weight is None or weight.const_value is None else weight.const_value.shape
    if value is None or shape is None or value.ndim > (rank(node.outputs[0]) or 1):
        return None
    fits = value.size == int(str(shape[-1])) and value.shape[-1:] == (value.size,)
    return after if fits else None


def hard_swish(node: ir.Node) -> tuple[list[ir.Node], float, float] | None:
    """The nodes of x · clip(αx + β, 0, 1), with α and β."""
    if node.op_type == "HardSwish":
        return [node], 1 / 6, 0.5
    if node.op_type != "HardSigmoid":
        return None
    after, alpha = only_reader(node), real(node, "alpha", 0.2)
    if (
        after is None
        or after.op_type != "Mul"
        or alpha <= 0
        or node.inputs[0] not in after.inputs
        or node.outputs[0] not in after.inputs
    ):
        return None
    return [node, after], alpha, real(node, "beta", 0.5)


def gelu(node: ir.Node) -> tuple[list[ir.Node], list[ir.Value]] | None:
    """The nodes of x · (1 + erf(x / √2)) / 2, in any order of its factors, and what they read.

    Runtimes compute it as one in float; its sum and its product on codes would each take longer than all of it.
    """
    line, erf = affine(node), only_reader(node)
    if line is None or erf is None or erf.domain or erf.op_type != "Erf":
        return None
    x, nodes = line[0], [node, erf]
    while (after := only_reader(nodes[-1])) is not None and affine(after) is not None:
        nodes.append(after)
    other = None if after is None else next((v for v in after.inputs if v is not nodes[-1].outputs[0]), None)
    if after is None or after.domain or after.op_type != "Mul" or other is None or not _follows(other, x):
        return None
    nodes.append(after)
    if (half := only_reader(after)) is not None and (last := affine(half)) is not None and last[1:] == (0.5, 0.0):
        nodes.append(half)
    return nodes, [x] if other is x else [x, other]


def _follows(value: ir.Value, x: ir.Value) -> bool:
    """Whether a value is another, or that times a number."""
    maker = value.producer()
    line = None if maker is None else affine(maker)
    return value is x or (line is not None and line[0] is x)


def affine(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """What a node reads, multiplies with and adds, where the same codes can be read as that."""
    found = line_of(node)
    return found if found is not None and _SMALLEST < found[1] < 1 / _SMALLEST else None


def activations(node: ir.Node) -> list[ir.Value]:
    """What a node reads that is not constant, each once; of what its branches read nothing is said."""
    found = [value for value in node.inputs if value is not None and constant(value) is None]
    return list(dict.fromkeys(found))
