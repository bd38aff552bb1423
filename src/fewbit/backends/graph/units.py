# SPDX-License-Identifier: Apache-2.0
"""Units: the nodes that a runtime computes as one, each with what it reads and gives.

units(graph)
  a layer, a sum or a product, with the Add that is its bias and what clips it between two numbers
  hard-swish, x · clip(αx + β, 0, 1), and GELU, whose nodes only make sense together
  a product or a sum with one number, which codes take for free: only their scale and zero point change
  what moves values, parts them or clips them, which codes can do too
  every other node by itself
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.nodes import only_reader, real
from fewbit.backends.graph.one_number import clip_of
from fewbit.backends.graph.unit_patterns import activations, affine, bias_add, gelu, hard_swish, is_plain, moves
from fewbit.model.ops import CONV, CONV_TRANSPOSE, EMBEDDING

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

_SAID = {
    "Sigmoid": "sigmoid", "LeakyRelu": "leaky_relu", "GlobalAveragePool": "global_average_pool", "Concat": "concat",
    "Softmax": "softmax", "AveragePool": "average_pool",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Unit:
    """One thing that is computed in integers or in float, as a whole.

    Args:
        kind: `conv`, `linear`, `add` …, `pass` for what gives the values it reads, or some of them, or `other`.
        nodes: its nodes, in order.
        reads: the activations it reads.
        layer: its layer, where it has one.
        bias: of a linear layer, the Add that is its bias.
        factor: of `affine`, the number it multiplies with; of `hard_sigmoid` and `hard_swish` its α.
        offset: of `affine`, the number it adds then; of `hard_sigmoid` and `hard_swish` its β.
        ends: between what its last node clips, where it does.
        cut: whether what adds its bias or clips it is no part of it, because it is to stay in float.
    """

    kind: str
    nodes: tuple[ir.Node, ...]
    reads: tuple[ir.Value, ...]
    layer: Layer | None = None
    bias: ir.Node | None = None
    factor: float = 1.0
    offset: float = 0.0
    ends: tuple[float, float] | None = None
    cut: bool = False

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
        """Everything it gives; a Split has several."""
        return tuple(self.nodes[-1].outputs)


@dataclass
class _Builder:
    apart: frozenset[str]
    taken: set[ir.Node] = field(default_factory=set)

    def unit(self, kind: str, nodes: list[ir.Node], reads: list[ir.Value], **more: object) -> Unit:
        self.taken.update(nodes)
        return Unit(kind, tuple(nodes), tuple(reads), **more)  # type: ignore[arg-type]

    def clipped(self, kind: str, nodes: list[ir.Node], reads: list[ir.Value], **more: object) -> Unit:
        """A unit with what alone reads it and only clips it: codes do that for free, or almost."""
        after = only_reader(nodes[-1])
        found = None if after is None else clip_of(after)
        if after is None or found is None or found[0] is not nodes[-1].outputs[0]:
            return self.unit(kind, nodes, reads, **more)
        if after.name in self.apart:
            return self.unit(kind, nodes, reads, cut=True, **more)
        return self.unit(kind, [*nodes, after], reads, ends=found[1:], **more)


def units(graph: ir.Graph, apart: Collection[str] = ()) -> list[Unit]:
    """Every node of a graph in one unit, in order; those of branches and loops stay inside the node that holds them.

    Args:
        graph: the graph.
        apart: names of nodes that stay in float: what they would be the bias or the clipping of can do without them.
    """
    return list(_units(graph, _Builder(frozenset(apart))))


def _units(graph: ir.Graph, build: _Builder) -> Iterator[Unit]:
    for node in graph:
        if node not in build.taken:
            yield _unit(node, build)


def _unit(node: ir.Node, build: _Builder) -> Unit:
    if node.domain not in ("", "ai.onnx") or not node.outputs:
        return build.unit("other", [node], activations(node))
    layer = layer_of(node)
    if layer is not None and layer.op is not EMBEDDING and layer.stack == 0 and layer.features in (1, -1):
        return _layer_unit(node, layer, build)
    swish = hard_swish(node)
    if swish is not None:
        nodes, alpha, beta = swish
        x = node.inputs[0]
        assert x is not None
        return build.unit("hard_swish", nodes, [x], factor=alpha, offset=beta)
    gelus = gelu(node)
    if gelus is not None:
        return build.unit("gelu", *gelus)
    line = affine(node)
    if line is not None:
        x, factor, offset = line
        nodes = [node]
        # A chain of them, read by nobody in between, is one.
        while (after := only_reader(nodes[-1])) is not None and (more := affine(after)) is not None:
            factor, offset = factor * more[1], offset * more[1] + more[2]
            nodes.append(after)
        return build.unit("affine", nodes, [x], factor=factor, offset=offset)
    reads = activations(node)
    if reads and reads[0] is node.inputs[0] and moves(node):
        return build.unit("pass", [node], reads[:1])
    clip = clip_of(node)
    if clip is not None and reads:
        return build.unit("pass", [node], [clip[0]], ends=clip[1:])
    if node.op_type in ("Add", "Mul") and len(reads) == 2:
        return build.clipped(node.op_type.lower(), [node], reads)
    if node.op_type == "MatMul" and len(reads) == 2:
        return build.unit("product", [node], reads)
    if node.op_type == "HardSigmoid" and real(node, "alpha", 0.2) > 0:
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
    if node.op_type == "MatMul":
        bias = bias_add(node)
        if bias is not None and bias.name in build.apart:
            return build.unit("linear", nodes, [x], layer=layer, cut=True)
        nodes += [bias] if bias is not None else []
    kind = {CONV: "conv", CONV_TRANSPOSE: "conv_transpose"}.get(layer.op, "linear")
    if not is_plain(layer):
        return build.unit("other", [node], activations(node), layer=layer)
    return build.clipped(kind, nodes, [x], layer=layer, bias=bias)
