# SPDX-License-Identifier: Apache-2.0
"""Any ONNX model as a graph that can be worked on; what was given is not changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.errors import DataError, UsageError

QUANTIZED = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "MatMulNBits",
)  # fmt: skip
_SINCE = 7


def open_graph(source: Any) -> ir.Model:
    """A model of its own, with a name for every node and constants as initializers.

    Args:
        source: a path, an `onnx.ModelProto`, or a model of onnx-ir.

    Raises:
        DataError: a file that is no ONNX model, or whose weights are missing.
        UsageError: an operator set older than 7.
    """
    model = _read(source)
    version = model.graph.opset_imports.get("")
    if version is not None and version < _SINCE:
        raise UsageError(
            f"the model is of operator set {version}",
            where=_where(source),
            expected=f"{_SINCE} or later",
            try_="export it again from where it came from",
        )
    _refuse_lost_weights(model, source)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.RemoveInitializersFromInputsPass()(model)
    passes.NameFixPass()(model)
    return model


def quantized_nodes(model: ir.Model) -> list[str]:
    """The names of nodes that say the model is quantized already."""
    return [node.name or "" for node in model.graph.all_nodes() if is_integer_op(node.op_type)]


def is_integer_op(op_type: str) -> bool:
    """Whether an operator belongs to quantized models only."""
    return op_type in QUANTIZED or op_type.startswith("QLinear")


def _read(source: Any) -> ir.Model:
    if isinstance(source, ir.Model):
        return source.clone(deep_copy=False)
    if not isinstance(source, str | Path):
        return _from_proto(source)
    path = Path(source).expanduser()
    if not path.is_file():
        raise DataError("there is no such file", code="model-unreadable", where=path, expected="an .onnx file")
    try:
        model = ir.load(path)
    except Exception as error:  # whatever a damaged file makes protobuf raise
        raise _unreadable(path, error) from error
    if not len(model.graph) and not model.graph.outputs:
        raise _unreadable(path, ValueError("it holds no graph"))
    return model


def _from_proto(proto: Any) -> ir.Model:
    if type(proto).__name__ != "ModelProto":
        raise UsageError(f"a {type(proto).__name__}", expected="a path to an .onnx file, or an onnx.ModelProto")
    try:
        found = ir.from_proto(proto)
    except Exception as error:
        raise _unreadable("ModelProto", error) from error
    assert isinstance(found, ir.Model)
    return found


def _refuse_lost_weights(model: ir.Model, source: Any) -> None:
    lost = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and not Path(tensor.path).is_file():
            lost.append(f"{value.name} ({tensor.path})")
    if lost:
        raise DataError(
            f"{len(lost)} weights lie in files that are not there: {', '.join(lost[:3])}",
            code="model-unreadable",
            where=_where(source),
            expected="the external data files beside the model",
            try_="copy the .onnx file together with its data files; give the path, not a ModelProto",
        )


def _unreadable(where: Any, error: Exception) -> DataError:
    return DataError(
        f"the model cannot be read: {str(error)[:200] or type(error).__name__}",
        code="model-unreadable",
        where=where,
        expected="a whole ONNX file",
        try_="copy or export it again; `python -m onnx.checker FILE` says more",
    )


def _where(source: Any) -> Any:
    return source if isinstance(source, str | Path) else "ModelProto"
