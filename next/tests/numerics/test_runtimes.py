# SPDX-License-Identifier: Apache-2.0
"""Integers and values against QuantizeLinear and DequantizeLinear of ONNX Runtime."""

import numpy as np
import pytest

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import QParams, dequantize, qparams_from_min_max, quantize
from numerics_reference import host, normal

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

SHAPE = (6, 48)
TYPES = {
    Dtype.int8: "INT8", Dtype.uint8: "UINT8", Dtype.int16: "INT16", Dtype.uint16: "UINT16", Dtype.int4: "INT4",
    Dtype.uint4: "UINT4", Dtype.int2: "INT2", Dtype.uint2: "UINT2", Dtype.fp8_e4m3: "FLOAT8E4M3FN",
    Dtype.fp8_e5m2: "FLOAT8E5M2",
}  # fmt: skip
# Our block shape, their shape of scales, their axis, their block size.
GRANULARITIES = {
    "tensor": (SHAPE, (), 1, 0),
    "rows": ((1, 48), (6,), 0, 0),
    "columns": ((6, 1), (48,), 1, 0),
    "blocks": ((1, 16), (6, 3), 1, 16),
    "blocks down": ((3, 1), (2, 48), 0, 3),
}


def run(x, scale, zero, kind, axis, block):
    """Quantized values (as floats) and values of the runtime."""
    helper, types = onnx.helper, onnx.TensorProto
    size = {"block_size": block} if block else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], axis=axis, **size),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["values"], axis=axis, **size),
        helper.make_node("Cast", ["q"], ["plain"], to=types.FLOAT),
    ]
    constants = [
        helper.make_tensor("scale", types.FLOAT, scale.shape, scale.flatten().tolist()),
        helper.make_tensor("zero", getattr(types, kind), zero.shape, zero.flatten().tolist()),
    ]
    outputs = [helper.make_tensor_value_info(name, types.FLOAT, x.shape) for name in ("plain", "values")]
    inputs = [helper.make_tensor_value_info("x", types.FLOAT, x.shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_integers_and_values_are_those_of_onnx_runtime(dtype, granularity, array):
    block, shape, axis, size = GRANULARITIES[granularity]
    x = normal(SHAPE, 4) * np.logspace(-3, 2, 48, dtype=np.float32)
    low, high = (side * np.float32(0.9) for side in BlockShape(SHAPE, block).extremes(x))  # so that some is clipped
    for symmetric in (True, False):
        grid = QuantizationGrid(dtype, symmetric=symmetric)
        qparams = qparams_from_min_max(array(low), array(high), grid, block)
        scale = host(qparams.scale)
        zero = np.zeros_like(scale) if qparams.zero_point is None else host(qparams.zero_point)
        zero = zero.astype(int) if dtype.is_integer else zero
        integers, values = run(x, scale.reshape(shape), zero.reshape(shape), TYPES[dtype], axis, size)
        ours = quantize(array(x), qparams)
        unscaled = QParams(grid, SHAPE, array(np.ones((1, 1), np.float32)))
        plain = host(ours) if dtype.is_integer else host(dequantize(ours, unscaled))
        assert np.array_equal(plain.astype(np.float32), integers)
        assert np.array_equal(host(dequantize(ours, qparams)), values)
