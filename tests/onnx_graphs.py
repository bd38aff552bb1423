# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models, and what the runtime makes of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

FLOAT = onnx.TensorProto.FLOAT


def model(nodes, inputs, outputs, constants, opset=13):
    """A model from nodes; inputs and outputs as names with shapes, constants as arrays by name."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made)


def run(proto, **feeds):
    """The outputs of a model in ONNX Runtime, without its optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    content = proto.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def random(*shape, seed=0):
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
