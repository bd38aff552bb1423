# SPDX-License-Identifier: Apache-2.0
"""ONNX: a `.onnx` path, its bytes, a `ModelProto` or an ONNX Runtime session. Weights beside the file stay unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.data.signature import InputSpec, Signature
from fewbit.data.signatures._arrays import feed as feed
from fewbit.data.signatures._arrays import feed_item as feed_item
from fewbit.errors import DataError, require

_SESSION_TYPES = {"float": "float32", "double": "float64", "string": "str"}


def accepts(model: object) -> bool:
    """Whether this is an ONNX model, by its suffix or its type's name."""
    if isinstance(model, str | Path):
        return str(model).lower().endswith(".onnx")
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(model).__mro__}
    return isinstance(model, bytes) or bool(names & {"onnx.ModelProto", "onnxruntime.InferenceSession"})


def read(model: Any) -> Signature:
    """The graph's inputs that are no initializers (files before IR 4 list those as inputs too).

    Raises:
        DataError: the file is missing, cut short or no ONNX model.
    """
    if hasattr(model, "get_inputs"):
        return _of_session(model)
    source = str(model) if isinstance(model, str | Path) else "ONNX model"
    proto = _load(model, source) if isinstance(model, str | Path | bytes) else model
    weights = {tensor.name for tensor in proto.graph.initializer}
    weights |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    inputs = tuple(_spec(value) for value in proto.graph.input if value.name not in weights)
    return Signature("onnx", inputs, source=source)


def _load(model: str | Path | bytes, source: str) -> Any:
    onnx = require("onnx", extra="onnx", purpose="reading an ONNX model's inputs")
    try:
        content = model if isinstance(model, bytes) else Path(model).expanduser().read_bytes()
        proto = onnx.ModelProto.FromString(content)
    except OSError as error:
        raise _unreadable(source, f"cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's own DecodeError lives at a place that differs by version
        raise _unreadable(source, f"is not an ONNX model, or cut short: {error}") from error
    if not proto.graph.node and not proto.graph.output:
        raise _unreadable(source, "is not an ONNX model: it has no graph")
    return proto


def _unreadable(source: str, what: str) -> DataError:
    return DataError(
        f"the model {what}",
        code="model-unreadable",
        where=source,
        expected="a whole .onnx file",
        try_="export it again",
    )


def _spec(value: Any) -> InputSpec:
    if not value.type.HasField("tensor_type"):
        return InputSpec(value.name)  # a sequence or an optional: no shape to compare
    tensor = value.type.tensor_type
    shape = tuple(_axis(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return InputSpec(value.name, shape, _dtype(tensor.elem_type))


def _axis(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) if dim.dim_param not in ("", "?") else None


def _dtype(element: int) -> str | None:
    onnx = require("onnx", extra="onnx", purpose="reading an ONNX model's inputs")
    try:
        name = onnx.helper.tensor_dtype_to_np_dtype(element).name
    except (KeyError, ValueError, TypeError):
        return None  # a type newer than the library
    return "str" if name == "object" else str(name)


def _of_session(session: Any) -> Signature:
    inputs = []
    for value in session.get_inputs():
        kind = value.type.removeprefix("tensor(").removesuffix(")")
        plain = value.type.startswith("tensor(")
        shape = tuple(axis if isinstance(axis, int) and axis >= 0 else _named(axis) for axis in value.shape)
        inputs.append(
            InputSpec(value.name, shape if plain else None, _SESSION_TYPES.get(kind, kind) if plain else None)
        )
    return Signature("onnx", tuple(inputs), source="ONNX Runtime session")


def _named(axis: object) -> str | None:
    return axis if isinstance(axis, str) and axis else None
