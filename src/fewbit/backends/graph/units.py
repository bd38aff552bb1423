# SPDX-License-Identifier: Apache-2.0
"""Units: the nodes that a runtime computes as one, each with what it reads and gives.

units(graph)
  a layer, with the Add that is its bias and the Relu or Clip that follows
  hard-swish, x · clip(αx + β, 0, 1), whose two nodes only make sense together
  a product or a sum with one number, which codes take for free: only their scale and zero point change
  every other node by itself
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.nodes import only_reader, real
from fewbit.model.ops import CONV, CONV_TRANSPOSE, EMBEDDING

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

# What moves values about or picks some of them: codes can take the same way, with the scale they have.
PASSES = (
    "MaxPool", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Gather", "DepthToSpace", "SpaceToDepth",
    "Expand", "Flatten",
)  # fmt: skip
_ENDS = ("Relu", "Clip")
_SAID = {
    "Sigmoid": "sigmoid", "LeakyRelu": "leaky_relu", "GlobalAveragePool": "global_average_pool", "Concat": "concat",
    "HardSigmoid": "hard_sigmoid", "Softmax": "softmax", "AveragePool": "average_pool",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Unit:
    """One thing that is computed in integers or in float, as a whole.

    Args:
        kind: `conv`, `linear`, `add` …, `pass` for what moves values, or `other`.
        nodes: its nodes, in order.
        reads: the activations it reads.
        layer: its layer, where it has one.
        bias: of a linear layer, the Add that is its bias.
        factor: of `affine`, the number it multiplies with; of `hard_sigmoid` and `hard_swish` its α.
        offset: of `affine`, the number it adds then; of `hard_sigmoid` and `hard_swish` its β.
    """

    kind: str
    nodes: tuple[ir.Node, ...]
    reads: tuple[ir.Value, ...]
    layer: Layer | None = None
    bias: ir.Node | None = None
    factor: float = 1.0
    offset: float = 0.0

    @property
    def name(self) -> str:
        """The name of its first node."""
        return self.nodes[0].name or ""

    @property
    def out(self) -> ir.Value:
        """What it gives."""
        return self.nodes[-1].outputs[0]

    @property
    def gives(self) -> tuple[ir.Value, ...]:
        """Everything it gives: a Split has several."""
        return tuple(self.nodes[-1].outputs)


@dataclass
class _Builder:
    taken: set[ir.Node] = field(default_factory=set)

    def unit(self, kind: str, nodes: list[ir.Node], reads: list[ir.Value], **more: object) -> Unit:
        self.taken.update(nodes)
        return Unit(kind, tuple(nodes), tuple(reads), **more)  # type: ignore[arg-type]


def units(graph: ir.Graph) -> list[Unit]:
    """Every node of a graph in one unit, in order; those of branches and loops stay inside the node that holds them."""
    return list(_units(graph, _Builder()))


def _units(graph: ir.Graph, build: _Builder) -> Iterator[Unit]:
    for node in graph:
        if node not in build.taken:
            yield _unit(node, build)


def _unit(node: ir.Node, build: _Builder) -> Unit:
    if node.domain not in ("", "ai.onnx") or not node.outputs:
        return build.unit("other", [node], _activations(node))
    layer = layer_of(node)
    if layer is not None and layer.op is not EMBEDDING and layer.stack == 0 and layer.features in (1, -1):
        return _layer_unit(node, layer, build)
    swish = _hard_swish(node)
    if swish is not None:
        nodes, alpha, beta = swish
        x = node.inputs[0]
        assert x is not None
        return build.unit("hard_swish", nodes, [x], factor=alpha, offset=beta)
    affine = _affine(node)
    if affine is not None:
        x, factor, offset = affine
        nodes = [node]
        # A chain of them, read by nobody in between, is one.
        while (after := only_reader(nodes[-1])) is not None and (more := _affine(after)) is not None:
            factor, offset = factor * more[1], offset * more[1] + more[2]
            nodes.append(after)
        return build.unit("affine", nodes, [x], factor=factor, offset=offset)
    reads = _activations(node)
    if node.op_type in PASSES or (
        node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") == "nearest"
    ):
        return build.unit("pass", [node], reads[:1])
    if node.op_type in ("Add", "Mul") and len(reads) == 2:
        return build.unit(node.op_type.lower(), _with_end([node]), reads)
    if node.op_type == "MatMul" and len(reads) == 2:
        return build.unit("product", [node], reads)
    if node.op_type == "HardSigmoid":
        return build.unit(
            "hard_sigmoid", [node], reads, factor=real(node, "alpha", 0.2), offset=real(node, "beta", 0.5)
        )
    if node.op_type in _SAID and len(reads) == len(node.inputs):
        return build.unit(_SAID[node.op_type], [node], reads)
    return build.unit("other", [node], reads)


def _layer_unit(node: ir.Node, layer: Layer, build: _Builder) -> Unit:
    nodes, bias = [node], None
    x = node.inputs[layer.reads]
    assert x is not None
    if layer.op not in (CONV, CONV_TRANSPOSE) and node.op_type == "MatMul":
        bias = _bias_add(node)
        nodes += [bias] if bias is not None else []
    kind = {CONV: "conv", CONV_TRANSPOSE: "conv_transpose"}.get(layer.op, "linear")
    if node.op_type == "Gemm" and (real(node, "alpha", 1.0) != 1.0 or real(node, "beta", 1.0) != 1.0):
        kind = "other"
    return build.unit(kind, _with_end(nodes), [x], layer=layer, bias=bias)


def _with_end(nodes: list[ir.Node]) -> list[ir.Node]:
    """The nodes, and the Relu or Clip that alone reads what they give: codes clip for free."""
    after = only_reader(nodes[-1])
    if after is None or after.op_type not in _ENDS or after.inputs[0] is not nodes[-1].outputs[0]:
        return nodes
    if after.op_type == "Clip" and any(value is not None and constant(value) is None for value in after.inputs[1:]):
        return nodes
    return [*nodes, after]


def _bias_add(node: ir.Node) -> ir.Node | None:
    """The Add of a constant `[out]` that alone reads a MatMul."""
    after = only_reader(node)
    if after is None or after.op_type != "Add":
        return None
    other = next((x for x in after.inputs if x is not node.outputs[0]), None)
    value = None if other is None else constant(other)
    weight = node.inputs[1]
    shape = None if weight is None or weight.const_value is None else weight.const_value.shape
    if value is None or shape is None:
        return None
    fits = value.size == int(str(shape[-1])) and value.shape[-1:] == (value.size,)
    return after if fits else None


def _hard_swish(node: ir.Node) -> tuple[list[ir.Node], float, float] | None:
    if node.op_type == "HardSwish":
        return [node], 1 / 6, 0.5
    if node.op_type != "HardSigmoid":
        return None
    after = only_reader(node)
    if (
        after is None
        or after.op_type != "Mul"
        or node.inputs[0] not in after.inputs
        or node.outputs[0] not in after.inputs
    ):
        return None
    return [node, after], real(node, "alpha", 0.2), real(node, "beta", 0.5)


def _affine(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """What a node reads, multiplies with and adds, where both are one number for the whole tensor."""
    if node.op_type not in ("Mul", "Add", "Sub", "Div") or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    if constant(left) is not None:
        left, right, turned = right, left, True
    else:
        turned = False
    value = constant(right)
    if value is None or value.size != 1 or value.ndim > 1 or constant(left) is not None:
        return None
    number = float(np.asarray(value, np.float64).reshape(-1)[0])
    if not np.isfinite(number) or (turned and node.op_type in ("Sub", "Div")):
        return None
    if node.op_type in ("Mul", "Div"):
        if number <= 0:
            return None
        return left, number if node.op_type == "Mul" else 1 / number, 0.0
    return left, 1.0, number if node.op_type == "Add" else -number


def _activations(node: ir.Node) -> list[ir.Value]:
    """What a node reads that is not constant, each once; of what its branches read nothing is said."""
    found = [value for value in node.inputs if value is not None and constant(value) is None]
    return list(dict.fromkeys(found))
