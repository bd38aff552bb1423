# SPDX-License-Identifier: Apache-2.0
"""Marks out of an exported graph: which node is which layer, with the codes of its weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.affine import fold_affine
from fewbit.backends.graph.folding import fold_constants
from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.layers import layer_of
from fewbit.backends.graph.nodes import replace_value
from fewbit.backends.graph.placing import scale_of
from fewbit.backends.graph.repair import drop_idle
from fewbit.backends.graph.shapes import infer_shapes
from fewbit.backends.graph.unit_patterns import moves
from fewbit.errors import UsageError
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.sparsity.deploying.folded_codes import refitted, shield
from fewbit.sparsity.deploying.folded_padding import fold_padding
from fewbit.sparsity.deploying.marking import DOMAIN, INPUT, Trained

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather")


@dataclass(frozen=True)
class Known:
    """What a node was.

    Args:
        module: the layer's name.
        codes: of its weight, in fewbit's layout; none if it has none, and only what it reads is rounded.
        reads: how what it reads is rounded; none if it is not.
    """

    module: str
    codes: QTensor | None
    reads: CodeScale | None


def unmark(model: ir.Model, trained: Mapping[str, Trained]) -> dict[str, Known]:
    """Take the marks out of a graph, in place, and fold batch norms and padding into its layers.

    Args:
        model: what the exporter made of a marked module.
        trained: its layers.

    Returns:
        By the name of a node, which layer it was.

    Raises:
        UsageError: a layer whose weight or quantizer is used otherwise than by a product.
    """
    marks = [node for node in model.graph.all_nodes() if node.domain == DOMAIN]
    found = _found(marks, trained)
    for node in marks:
        assert isinstance(node.graph, ir.Graph) and node.inputs[0] is not None
        if not replace_value(node.graph, node.outputs[0], node.inputs[0]):
            raise UsageError("it gives what it reads", where=_said(node)[0], expected="a layer that computes")
        node.graph.remove(node, safe=True)
    model.graph.opset_imports.pop(DOMAIN, None)
    for graph in model.graphs():
        list(fold_constants(graph, model.opset_imports))
        list(drop_idle(graph))
    infer_shapes(model)
    for node, (layer, weight) in found.items():
        if weight is not None:
            shield(node, trained[layer].codes[weight])
    for graph in model.graphs():
        list(fold_affine(graph))
        fold_padding(graph)
    passes.RemoveUnusedNodesPass()(model)
    return {node.name or "": _known(node, layer, weight, trained[layer]) for node, (layer, weight) in found.items()}


def _found(marks: list[ir.Node], trained: Mapping[str, Trained]) -> dict[ir.Node, tuple[str, str | None]]:
    """The nodes that read marked weights or inputs, each with its layer and the weight's name, if that has codes."""
    found: dict[ir.Node, tuple[str, str | None]] = {}
    inputs = [mark for mark in marks if _said(mark)[1] == INPUT]
    for mark in marks:
        layer, weight = _said(mark)
        for reader in _readers(mark.outputs[0]) if weight != INPUT else ():
            own = [each for each in inputs if _said(each)[0] == layer]
            unread = trained[layer].quantizer is not None and not any(_comes_from(reader, each) for each in own)
            if reader.op_type not in _LAYERS or reader in found or unread:
                raise _otherwise(layer, reader)
            found[reader] = layer, weight
    for mark in inputs:
        for product in _products(mark.outputs[0]):
            if product.op_type not in _LAYERS:
                raise _otherwise(_said(mark)[0], product)
            found.setdefault(product, (_said(mark)[0], None))
    return found


def _products(value: ir.Value) -> Iterator[ir.Node]:
    """Who computes with what a mark gives, moved or padded at most."""
    for use in value.uses():
        if use.idx == 0 and (moves(use.node) or use.node.op_type in ("Pad", "Identity")):
            for moved in use.node.outputs:
                yield from _products(moved)
        elif use.node.op_type != "Shape":
            yield use.node


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Who reads a weight, through what turns it."""
    for use in value.uses():
        if use.node.op_type in ("Transpose", "Identity"):
            yield from _readers(use.node.outputs[0])
        else:
            yield use.node


def _comes_from(node: ir.Node, mark: ir.Node) -> bool:
    """Whether a node reads what a mark gives, moved or padded at most."""
    for value in node.inputs:
        maker = None if value is None else value.producer()
        while maker is not None and maker is not mark and (moves(maker) or maker.op_type == "Pad"):
            before = maker.inputs[0]
            maker = None if before is None else before.producer()
        if maker is mark:
            return True
    return False


def _said(mark: ir.Node) -> tuple[str, str]:
    return mark.attributes.get_string("layer", "") or "", mark.attributes.get_string("part", "") or ""


def _otherwise(layer: str, node: ir.Node) -> UsageError:
    return UsageError(
        f"a {node.op_type} reads its weight or its input in a way that codes cannot be put into",
        where=layer,
        expected="a convolution, a linear layer or a table",
    )


def _known(node: ir.Node, name: str, weight: str | None, own: Trained) -> Known:
    layer = layer_of(node)
    if layer is None:
        raise _otherwise(name, node)
    quantizer, reads = own.quantizer, None
    if quantizer is not None and quantizer.scale is not None:
        reads = scale_of(QParams(quantizer.grid, (1,), quantizer.scale, quantizer.zero_point))
    return Known(name, None if weight is None else refitted(layer, own.codes[weight], name), reads)
