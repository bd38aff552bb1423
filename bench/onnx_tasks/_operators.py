# SPDX-License-Identifier: Apache-2.0
"""Which operators ONNX Runtime is left with after its own optimizations: those are the ones it runs."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

INTEGER = {
    "QLinearConv",
    "ConvInteger",
    "QLinearMatMul",
    "QGemm",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QAttention",
    "DynamicQuantizeLSTM",
}
FLOAT = {
    "Conv",
    "FusedConv",
    "NhwcFusedConv",
    "ConvTranspose",
    "Gemm",
    "FusedGemm",
    "MatMul",
    "FusedMatMul",
    "Attention",
    "MultiHeadAttention",
    "LSTM",
    "GRU",
}


def executed(path: Path) -> dict[str, Any]:
    """Compute operators in integers and in float, and all of them by type."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(options.optimized_model_filepath).graph
    types = Counter(node.op_type for node in _nodes(graph))
    count = {kind: sum(types[name] for name in names) for kind, names in (("integer", INTEGER), ("float", FLOAT))}
    return {**count, "types": dict(types.most_common())}


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)
