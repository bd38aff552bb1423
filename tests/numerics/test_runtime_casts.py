# SPDX-License-Identifier: Apache-2.0
"""Codes and values against ONNX Runtime's own QuantizeLinear and DequantizeLinear."""

import numpy as np
import pytest
import torch

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import dequantize, quantize

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

SHAPE = (6, 48)
TYPES = {
    Dtype.int8: "INT8",
    Dtype.uint8: "UINT8",
    Dtype.int16: "INT16",
    Dtype.uint16: "UINT16",
    Dtype.int4: "INT4",
    Dtype.uint4: "UINT4",
    Dtype.int2: "INT2",
    Dtype.uint2: "UINT2",
    Dtype.fp8_e4m3: "FLOAT8E4M3FN",
    Dtype.fp8_e5m2: "FLOAT8E5M2",
}
# Our block shape, their shape of scales, their axis, their block size.
GRANULARITIES = {
    "tensor": (SHAPE, (), 1, 0),
    "rows": ((1, 48), (6,), 0, 0),
    "columns": ((6, 1), (48,), 1, 0),
    "blocks": ((1, 16), (6, 3), 1, 16),
    "blocks down": ((3, 1), (2, 48), 0, 3),
}


def run(x, scale, zero, kind, axis, block):
    """Codes (as floats) and values of the runtime."""
    helper, types = onnx.helper, onnx.TensorProto
    size = {"block_size": block} if block else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"], axis=axis, **size),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["values"], axis=axis, **size),
        helper.make_node("Cast", ["codes"], ["plain"], to=types.FLOAT),
    ]
    constants = [
        helper.make_tensor("scale", types.FLOAT, scale.shape, scale.flatten().tolist()),
        helper.make_tensor("zero", getattr(types, kind), zero.shape, zero.flatten().tolist()),
    ]
    outputs = [helper.make_tensor_value_info(name, types.FLOAT, x.shape) for name in ("plain", "values")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", types.FLOAT, x.shape)], outputs, constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_codes_and_values_are_those_of_onnx_runtime(dtype, granularity):
    block, theirs, axis, size = GRANULARITIES[granularity]
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(4)) * torch.logspace(-3, 2, 48)
    blocks = Blocks(SHAPE, block)
    rows = blocks.rows(x) * 0.9  # a little too narrow, so that something is clipped
    low, high = rows.amin(1).reshape(blocks.counts), rows.amax(1).reshape(blocks.counts)
    for symmetric in (True, False):
        qparams = from_range(low, high, Grid(dtype, symmetric=symmetric), block)
        zero = torch.zeros_like(qparams.scale) if qparams.zero_point is None else qparams.zero_point
        zeros = zero.reshape(theirs).numpy() if not dtype.is_integer else zero.reshape(theirs).numpy().astype(int)
        codes, values = run(x.numpy(), qparams.scale.reshape(theirs).numpy(), zeros, TYPES[dtype], axis, size)
        ours = quantize(x, qparams)
        assert np.array_equal(ours.float().numpy(), codes)
        assert np.array_equal(dequantize(ours, qparams).numpy(), values)
