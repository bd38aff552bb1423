# SPDX-License-Identifier: Apache-2.0
"""What this processor does with 8-bit integers."""

from __future__ import annotations

from functools import cache

_DEPTH = 64


@cache
def saturates() -> bool | None:
    """Whether sums of products u8 · s8 saturate in ONNX Runtime's kernels on this processor.

    Without VNNI an x86 processor adds pairs of products in 16 bits with saturation. A small product is computed once to
    find out. `None` if ONNX Runtime is not installed or does not run it.
    """
    try:
        import numpy as np
        import onnxruntime
        from onnx import TensorProto, helper

        inputs = [
            helper.make_tensor_value_info("x", TensorProto.UINT8, [4, _DEPTH]),
            helper.make_tensor_value_info("w", TensorProto.INT8, [_DEPTH, 8]),
        ]
        output = helper.make_tensor_value_info("y", TensorProto.INT32, [4, 8])
        graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "sums", inputs, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        x, w = np.full((4, _DEPTH), 255, np.uint8), np.full((_DEPTH, 8), 127, np.int8)
        return bool((session.run(None, {"x": x, "w": w})[0] != 255 * 127 * _DEPTH).any())
    except Exception:  # the runtime's errors have no common class but this
        return None
