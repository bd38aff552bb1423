# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime really runs of a model: its own optimized graph, read back and counted.

executed(model)
  optimized       the graph after every fusion the runtime makes on this machine
  Origins         which node of the model a node of that graph was
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from fewbit.backends.graph.origins import Origins
from fewbit.backends.graph.saving import save
from fewbit.errors import DataError, require

INTEGER = frozenset((
    "QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm", "ConvInteger",
    "MatMulInteger", "QAttention", "DynamicQuantizeLSTM", "MatMulInteger16", "QLinearConvTranspose",
))  # fmt: skip
"""Operators that multiply integers."""

WEIGHT_ONLY = frozenset(("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized", "QMoE"))
"""Operators that read a weight as codes and compute in float."""

FLOATING = frozenset((
    "Conv", "FusedConv", "NhwcFusedConv", "ConvTranspose", "DeformConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul",
    "FusedMatMulActivation", "Einsum", "Attention", "MultiHeadAttention", "GroupQueryAttention", "LSTM", "GRU", "RNN",
    "MoE",
))  # fmt: skip
"""Operators that multiply floats."""

CONVERSIONS = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
"""Operators between floats and codes."""


@dataclass(frozen=True)
class Executed:
    """The operators of a model as they run, each with how often it is there; those in branches and loops too.

    Args:
        integer: that multiply integers.
        floating: that multiply floats.
        weight_only: that read codes of weights and multiply floats.
        elementwise: other operators on codes: sums, products, activations, pools.
        conversions: between floats and codes.
        float_nodes: the nodes of the model that multiply floats, with the operator they became.
    """

    integer: dict[str, int]
    floating: dict[str, int]
    weight_only: dict[str, int]
    elementwise: dict[str, int]
    conversions: dict[str, int]
    float_nodes: list[tuple[str, str]]

    def facts(self) -> dict[str, Any]:
        """All of it as plain data for JSON."""
        return {**asdict(self), "float_nodes": [list(pair) for pair in self.float_nodes]}


def executed(model: ir.Model) -> Executed:
    """Load a model in ONNX Runtime on the CPU and count what it runs.

    Args:
        model: the model; it is not changed, and may be larger than 2 GB.

    Raises:
        DataError: the runtime does not take the model.
    """
    with tempfile.TemporaryDirectory(prefix="fewbit-") as folder:
        kinds = {node: kind for node in optimized(model, Path(folder)).graph.all_nodes() if (kind := kind_of(node))}
    computing = [node for node, kind in kinds.items() if kind in ("integer", "floating", "weight_only")]
    names = Origins(model, INTEGER | FLOATING | WEIGHT_ONLY).names(computing)

    def count(kind: str) -> dict[str, int]:
        return dict(sorted(Counter(node.op_type for node, own in kinds.items() if own == kind).items()))

    return Executed(
        count("integer"),
        count("floating"),
        count("weight_only"),
        count("elementwise"),
        count("conversions"),
        [(name, node.op_type) for name, node in zip(names, computing) if kinds[node] == "floating"],
    )


def kind_of(node: ir.Node) -> str | None:
    """Which of the counts of `Executed` a node of the runtime belongs to, if to one."""
    if node.op_type in CONVERSIONS:
        return "conversions"
    if node.op_type in INTEGER:
        return "integer"
    if node.op_type in WEIGHT_ONLY:
        return "weight_only"
    if node.op_type in FLOATING:
        dtype = node.outputs[0].dtype  # shapes are multiplied by the same operators
        return "floating" if dtype is None or dtype.is_floating_point() else None
    return "elementwise" if node.op_type.startswith("QLinear") else None


def optimized(model: ir.Model, folder: Path) -> ir.Model:
    """The graph that the runtime makes of a model; its weights lie in the folder and are not read."""
    runtime = require("onnxruntime", extra="onnx", purpose="seeing what runs in integers")
    path = save(model, folder / "model.onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    # One file ends at 2 GB, and the weights are not looked at.
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimized.data")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    try:
        runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's errors have no common class but this
        raise DataError(
            f"ONNX Runtime does not take the model: {str(error)[:300]}",
            code="model-unreadable",
            expected="a model that onnxruntime.InferenceSession loads",
        ) from error
    return ir.load(folder / "optimized.onnx")
