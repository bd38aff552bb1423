# SPDX-License-Identifier: Apache-2.0
"""What the processor's int8 kernels compute, found by running one: tests must pass with and without VNNI."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

_DEPTH = 64


@cache
def saturates() -> bool:
    """Whether ONNX Runtime adds pairs of u8·s8 products in saturating int16 here, as x86 processors without VNNI do."""
    names = {"x": (TensorProto.UINT8, [4, _DEPTH]), "w": (TensorProto.INT8, [_DEPTH, 8])}
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in names.items()]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, [4, 8])
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "sums", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x, w = np.full((4, _DEPTH), 255, np.uint8), np.full((_DEPTH, 8), 127, np.int8)
    return bool((session.run(None, {"x": x, "w": w})[0] != 255 * 127 * _DEPTH).any())


def exact_sums(test):
    """Skip a test that needs the exact sums of integer kernels where they saturate."""
    reason = "needs exact u8·s8 sums; on this processor (no VNNI) ONNX Runtime adds pairs of products with saturation"
    return pytest.mark.skipif(saturates(), reason=reason)(test)
