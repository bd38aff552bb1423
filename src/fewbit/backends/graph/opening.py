# SPDX-License-Identifier: Apache-2.0
"""Any ONNX model as a graph that can be worked on; what was given is not changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.external_data import refuse_lost_weights
from fewbit.errors import DataError, UsageError

QUANTIZED = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "MatMulNBits",
)  # fmt: skip
_SINCE = 7


def open_graph(source: Any) -> ir.Model:
    """A model of its own, each node behind those it reads, with a name, and constants as initializers.

    Args:
        source: a path, an `onnx.ModelProto`, or a model of onnx-ir.

    Raises:
        DataError: a file that is no ONNX model, whose weights are missing or cut short, or whose nodes form a circle.
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
    refuse_lost_weights(model, _where(source))
    _sort(model, source)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _own_names(model)
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
        return _copied(source)
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


def _copied(model: ir.Model) -> ir.Model:
    try:
        return model.clone(deep_copy=False)
    except RuntimeError as error:  # onnx-ir copies sorted graphs only, and the given one is not ours to sort
        raise UsageError(
            "the nodes of the model are not in order, or read values that nothing gives",
            where=model.graph.name or "ir.Model",
            expected="each node behind those it reads",
            try_="model.graph.sort() first",
        ) from error


def _sort(model: ir.Model, source: Any) -> None:
    """Put each node behind those it reads: runtimes take files in any order, and some converters write them so."""
    try:
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            graph.sort()
    except ValueError as error:
        raise _unreadable(_where(source), error) from error


def _own_names(model: ir.Model) -> None:
    """Give lifted constants tensors of their own: onnx-ir would write new names into the user's Constant nodes."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.name != value.name and tensor.dtype != ir.DataType.STRING:
                value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)


def _from_proto(proto: Any) -> ir.Model:
    if type(proto).__name__ != "ModelProto":
        raise UsageError(f"a {type(proto).__name__}", expected="a path to an .onnx file, or an onnx.ModelProto")
    try:
        found = ir.from_proto(proto)
    except Exception as error:
        raise _unreadable("ModelProto", error) from error
    assert isinstance(found, ir.Model)
    return found


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
