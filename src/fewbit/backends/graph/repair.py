# SPDX-License-Identifier: Apache-2.0
"""Repairs before quantization: the same function in fewer nodes, so that what a runtime fuses can be seen.

repair(model)
  fold_constants        what follows from initializers alone becomes one
  drop_idle             Identity, and Dropout as it is at inference
  drop_transposes       Transposes that undo one another
  name_hard_swish       clip(x + 3, 0, 6) / 6, spelled out, as HardSigmoid; x times that as HardSigmoid and Mul
  fold_affine           a batch norm, or a product or sum with constants, into the convolution or Gemm before it
  fold_input_scale      a product or sum with constants into the convolution after it
  name_global_pooling   the mean over all positions as GlobalAveragePool
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.affine import fold_affine
from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.folding import fold_constants
from fewbit.backends.graph.hard_swish import name_hard_swish
from fewbit.backends.graph.input_scale import fold_input_scale
from fewbit.backends.graph.nodes import replace_value
from fewbit.backends.graph.pooling import name_global_pooling
from fewbit.backends.graph.shapes import infer_shapes
from fewbit.backends.graph.transposes import drop_transposes


def repair(model: ir.Model) -> list[tuple[str, str]]:
    """Repair a graph in place.

    Returns:
        What was done, as `(node, what)`.
    """
    notes: list[tuple[str, str]] = []
    for graph in model.graphs():
        notes += fold_constants(graph, model.opset_imports)
        notes += drop_idle(graph)
        notes += drop_transposes(graph)
    infer_shapes(model)
    for graph in model.graphs():
        # The gates first: where its sum is folded into the layer before, a gate is not to be seen any more.
        notes += name_hard_swish(graph)
        notes += fold_affine(graph)
        notes += fold_input_scale(graph)
        notes += name_global_pooling(graph)
    passes.RemoveUnusedNodesPass()(model)
    return notes


def drop_idle(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Take out nodes that pass their input on."""
    for node in list(graph):
        idle = node.op_type == "Identity" or (node.op_type == "Dropout" and _is_inference(node))
        if node.domain or not idle or node.inputs[0] is None:
            continue
        if replace_value(graph, node.outputs[0], node.inputs[0]):
            graph.remove(node, safe=True)
            yield node.name or "", f"{node.op_type} passes its input on"


def _is_inference(node: ir.Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    used = any(out.uses() or out.is_graph_output() for out in node.outputs[1:])
    return not used and (training is None or (constant(training) is not None and not bool(constant(training))))
