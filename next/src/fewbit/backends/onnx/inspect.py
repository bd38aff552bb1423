# SPDX-License-Identifier: Apache-2.0
"""The header of an ONNX model: inputs, outputs, labels and metadata, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.errors import ModelError, require
from fewbit.model_info import Dim, ModelInfo, TensorInfo


def inspect_onnx(source: Any) -> ModelInfo:
    """Read what an ONNX model takes and gives."""
    onnx = require("onnx", extra="onnx", purpose="ONNX models")
    proto, size = source, None
    if isinstance(source, str | Path):
        size = Path(source).stat().st_size
        try:
            proto = onnx.load(str(source), load_external_data=False)
        except Exception as error:  # protobuf's errors have no common class
            raise ModelError(
                f"{source} is no ONNX model: {type(error).__name__}", code="model-unreadable", where=str(source),
                expected="a file that onnx.load reads", hint="export the model again",
            ) from error  # fmt: skip
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(_tensor(onnx, value) for value in proto.graph.input if value.name not in constants)
    return ModelInfo(
        source=str(source) if isinstance(source, str | Path) else "ModelProto",
        kind="ONNX",
        backend="onnx",
        size=size if size is not None else proto.ByteSize(),
        inputs=inputs,
        outputs=tuple(_tensor(onnx, value) for value in proto.graph.output),
        facts={"opset": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}},
    )


def _tensor(onnx: Any, value: Any) -> TensorInfo:
    kind = value.type.tensor_type
    dtype = None
    if kind.elem_type:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape: tuple[Dim, ...] | None = None
    if kind.HasField("shape"):
        shape = tuple(_size(dim) for dim in kind.shape.dim)
    return TensorInfo(value.name, dtype, shape, batch_axis=0 if shape else None)


def _size(dim: Any) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.dim_param and dim.dim_param != "?" else None
