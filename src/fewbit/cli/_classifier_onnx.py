# SPDX-License-Identifier: Apache-2.0
"""The demo's network as an ONNX file, quantized from its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fewbit.errors import require

_PRESETS = ("w8a8", "w8a8_dynamic", "w4a16")


def write(network: Any, path: Path) -> Path:
    """The network as an ONNX file, which takes `pixels` and gives `scores`."""
    onnx = require("onnx", extra="onnx", purpose="the demo's ONNX file")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Reshape", ["pixels", "sides"], ["image"], name="reshape"),
        helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["features"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["features"], ["lit"], name="conv.relu"),
        helper.make_node("MaxPool", ["lit"], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "hidden.weight", "hidden.bias"], ["inner"], name="hidden", transB=1),
        helper.make_node("Relu", ["inner"], ["active"], name="hidden.relu"),
        helper.make_node("Gemm", ["active", "scores.weight", "scores.bias"], ["scores"], name="scores", transB=1),
    ]
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    tensors["sides"] = np.array([-1, 1, 8, 8], np.int64)
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("pixels", kind, ["batch", 64])],
        [helper.make_tensor_value_info("scores", kind, ["batch", 10])],
        [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def quantized(path: Path, data: Path, pixels: Any, labels: Any) -> list[dict[str, Any]]:
    """The file under a few presets: bytes, accuracy on held-out digits, how often it agrees with the float one."""
    onnxruntime = require("onnxruntime", extra="onnx", purpose="running the demo's ONNX file")
    from fewbit.engine.verbs import quantize

    def answers(model: Path) -> Any:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        return session.run(None, {"pixels": pixels})[0].argmax(1)

    files = {"float32": path}
    for preset in _PRESETS:
        files[preset] = quantize(path, data, preset=preset, output=path.with_name(f"model-{preset}.onnx"))
    reference = answers(path)
    return [
        {
            "preset": name,
            "bytes": file.stat().st_size,
            "accuracy": round(float((answers(file) == labels).mean()), 4),
            "agreement": round(float((answers(file) == reference).mean()), 4),
        }
        for name, file in files.items()
    ]
