# SPDX-License-Identifier: Apache-2.0
"""Classes of channels taken out of a graph, and the same graph with these channels at zero."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.constants import constant, new_constant
from fewbit.backends.graph.shapes import infer_shapes
from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_walk import Walk


def cut(model: ir.Model, walk: Walk, gone: set[int]) -> None:
    """Take classes out of the graph that was walked through, in place."""
    out = np.array(sorted(gone), np.int64)

    def stays(labels: Labels) -> Labels:
        return np.flatnonzero(~np.isin(walk.classes.roots(labels), out))

    for value, held in walk.labels.items():
        array = constant(value)
        if array is None:
            continue
        for axis, labels in enumerate(held):
            if labels is not None and len(left := stays(labels)) < len(labels):
                array = array.take(left, axis)
        if array.shape != walk.shape(value):
            value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
            value.shape = ir.Shape(array.shape)
    for fix in walk.fixes:
        fix(lambda labels: len(stays(labels)))
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    passes.RemoveUnusedNodesPass()(model)
    infer_shapes(model)


def masked(model: ir.Model, walk: Walk, gone: set[int]) -> None:
    """Multiply by zero what goes, where it is summed over, in a copy of the graph that was walked through, in place."""
    out = np.array(sorted(gone), np.int64)
    named = {node.name: node for node in model.graph}
    for place, read in enumerate(walk.reads):
        stays = ~np.isin(walk.classes.roots(read.labels), out)
        if stays.all():
            continue
        node = named[read.node.name]
        value = node.inputs[read.index]
        assert value is not None
        shape, dtype = walk.form(value)
        sides = [1] * len(shape)
        sides[read.axis] = len(stays)
        mask = new_constant(model.graph, value, stays.reshape(sides).astype(dtype), f"fewbit.mask.{place}")
        product = ir.node("Mul", [value, mask], name=f"fewbit.masked.{place}")
        product.outputs[0].name = f"fewbit.masked.{place}.out"
        model.graph.insert_before(node, product)
        node.replace_input_with(read.index, product.outputs[0])
