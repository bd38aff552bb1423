# SPDX-License-Identifier: Apache-2.0
"""What the tests of writers share: one layer as a graph, its codes, and what ONNX Runtime executes."""

from dataclasses import replace

import onnx
import onnx_ir as ir
import onnxruntime

from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.weights import read_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.qtensor import QTensor
from numerics.pinning import pin
from onnx_graphs import model


def graph_of(node, inputs, outputs, constants, opset=13):
    """An opened model of one node, and its layer."""
    opened = open_graph(model([node], inputs, outputs, constants, opset=opset))
    return opened, next(layers(opened.graph))


def encode(layer, grid):
    """The codes of a layer's weight on a grid.

    int8 ones stay within ±64: two products with uint8 then fit in int16, so sums are exact on processors without VNNI.
    """
    weight = read_weight(layer).float()
    qparams = pin(weight, grid, grid.weight_block(tuple(weight.shape), layer.stack))
    if grid.dtype is Dtype.int8:
        qparams = replace(qparams, scale=2 * qparams.scale)
    return QTensor.encode(weight, qparams)


def executed(proto, tmp_path):
    """The operators that ONNX Runtime runs, after its optimizations, and a function that runs them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    return [node.op_type for node in nodes], lambda **feeds: session.run(None, feeds)


def checked(opened):
    """The model as onnx knows it, looked at by onnx itself where it knows all operators."""
    proto = ir.to_proto(opened)
    if all(entry.domain == "" for entry in proto.opset_import):
        onnx.checker.check_model(proto, full_check=True)
    names = [name for node in proto.graph.node for name in node.output] + [t.name for t in proto.graph.initializer]
    assert len(set(names)) == len(names)
    assert len({node.name for node in proto.graph.node}) == len(proto.graph.node)
    return proto
