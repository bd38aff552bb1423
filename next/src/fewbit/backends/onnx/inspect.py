# SPDX-License-Identifier: Apache-2.0
"""The header of an ONNX model: inputs, outputs, labels and metadata, without its weights.

External data is never opened: only the size of a file inside the model's folder is asked for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from fewbit.backends._headers import describe_content, read_model_file, unreadable, with_batch_axes
from fewbit.backends._sidecar import SidecarFiles, from_metadata, read_sidecar_files
from fewbit.errors import ModelError, require
from fewbit.model_info import Dim, ModelInfo, TensorInfo

_MOST_BYTES = (2 << 30) - 1
"""A protobuf message has no more; larger models keep their weights in other files."""
_MOST_ELEMENTS = 1 << 48
_QUANTIZED = {
    "DequantizeLinear": "QDQ", "QLinearConv": "QOperator", "QLinearMatMul": "QOperator", "ConvInteger": "dynamic int8",
    "MatMulInteger": "dynamic int8", "MatMulNBits": "MatMulNBits", "GatherBlockQuantized": "MatMulNBits",
}  # fmt: skip


def inspect_onnx(source: Any) -> ModelInfo:
    """Read what an ONNX model takes and gives.

    Args:
        source: a path, a folder that holds one `.onnx` file, the bytes of a model, or a `ModelProto`.

    Raises:
        ModelError: the file is damaged, of another kind, or claims what cannot be.
    """
    onnx = require("onnx", extra="onnx", purpose="ONNX models")
    path = _model_file(Path(source)) if isinstance(source, str | Path) else None
    name = str(source) if path is not None else "ModelProto"
    proto, size = source, None
    if path is not None or isinstance(source, bytes):
        content = source if path is None else read_model_file(path, "ONNX", _MOST_BYTES)
        size = len(content)
        proto = _parse(onnx, content, name)
    constants = _constants(onnx, proto.graph, name)
    external = {} if path is None else _external_files(proto.graph, path, name)
    size = (proto.ByteSize() if size is None else size) + sum(filter(None, external.values()))
    sidecar = SidecarFiles() if path is None else read_sidecar_files(path)
    settings, labels, task = from_metadata({entry.key: entry.value for entry in proto.metadata_props})
    return ModelInfo(
        source=name,
        kind="ONNX",
        backend="onnx",
        size=size,
        inputs=with_batch_axes([_tensor(onnx, value) for value in proto.graph.input if value.name not in constants]),
        outputs=tuple(_tensor(onnx, value) for value in proto.graph.output),
        labels=sidecar.labels or labels,
        task=task,
        preprocessing=sidecar.preprocessing or settings,
        preprocessing_source=sidecar.preprocessing_source or ("model metadata" if settings else None),
        tokenizer=sidecar.tokenizer,
        quantized=next((_QUANTIZED[node.op_type] for node in proto.graph.node if node.op_type in _QUANTIZED), None),
        vocabulary=_vocabulary(proto.graph, constants),
        facts=_facts(proto, external),
    )


def _model_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == ".onnx")
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:8])
        raise unreadable(
            path, "ONNX", f"the folder holds {len(files)} .onnx files", hint=f"name one: {names or 'none'}"
        )
    return files[0]


def _parse(onnx: Any, content: bytes, name: str) -> Any:
    try:
        proto = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError lives at a place that differs by version
        reason = describe_content(content) or "damaged or cut short"
        raise unreadable(name, "ONNX", reason) from error
    if not proto.graph.node and not proto.graph.output:
        raise unreadable(name, "ONNX", describe_content(content) or "it has no graph")
    if any(isinstance(text, bytes) for text in _texts(proto)):  # what protobuf makes of text that is not UTF-8
        raise unreadable(name, "ONNX", "a name in it is not UTF-8")
    return proto


def _texts(proto: Any) -> Iterator[Any]:
    """Every text of the header that is used here."""
    graph = proto.graph
    yield from (entry.domain for entry in proto.opset_import)
    yield from (text for entry in proto.metadata_props for text in (entry.key, entry.value))
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for node in graph.node:
        yield node.op_type
        yield from node.input


def _constants(onnx: Any, graph: Any, name: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the initializers, sparse ones too; files before IR version 4 list them as inputs."""
    constants = {}
    for tensor in graph.initializer:
        _check_size(onnx, tensor, name)
        constants[tensor.name] = tuple(tensor.dims)
    for sparse in graph.sparse_initializer:
        constants[sparse.values.name] = tuple(sparse.dims)
    return constants


def _check_size(onnx: Any, tensor: Any, name: str) -> None:
    """Raise if the header of a constant claims what its data cannot hold."""
    dims = tuple(tensor.dims)
    count = prod(dims) if all(dim >= 0 for dim in dims) else -1
    if not 0 <= count <= _MOST_ELEMENTS:
        raise unreadable(name, "ONNX", f"the constant {tensor.name!r} has the impossible shape {list(dims)}")
    if tensor.data_location == tensor.EXTERNAL or not tensor.HasField("raw_data"):
        return
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError, TypeError):
        return  # a type newer than the library
    bits = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}.get(dtype.name, 8 * dtype.itemsize)
    expected, present = (count * bits + 7) // 8, len(tensor.raw_data)
    if expected != present:
        reason = f"the constant {tensor.name!r} claims {expected:,} bytes and has {present:,}"
        raise unreadable(name, "ONNX", reason)


def _external_files(graph: Any, path: Path, name: str) -> dict[str, int | None]:
    """Names of external data files and their sizes; `None` if missing or a link, which is not followed."""
    sizes: dict[str, int | None] = {}
    for tensor, location in _external_locations(graph):
        if location not in sizes:
            segments = location.replace("\\", "/").split("/")
            if (
                not location
                or location.startswith(("/", "\\"))
                or ".." in segments
                or ":" in segments[0]
                or "\0" in location
            ):
                raise ModelError(
                    f"the constant {tensor.name!r} has its data outside of the model's folder: {location!r}",
                    code="external-data-outside", where=name, expected="a file in the model's folder",
                    hint="save it again: onnx.save(model, path, save_as_external_data=True)",
                )  # fmt: skip
            sizes[location] = _regular_size(path.parent, segments)
    return sizes


def _external_locations(graph: Any) -> Iterator[tuple[Any, str]]:
    for tensor in graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            yield tensor, next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _regular_size(folder: Path, segments: list[str]) -> int | None:
    """Bytes of a file that is reached without any link."""
    status = None
    try:
        for segment in segments:
            folder = folder / segment
            status = os.lstat(folder)
            if stat.S_ISLNK(status.st_mode):
                return None
    except (OSError, ValueError):
        return None
    return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None


def _tensor(onnx: Any, value: Any) -> TensorInfo:
    if not value.type.HasField("tensor_type"):
        return TensorInfo(value.name, batch_axis=None)  # a sequence or an optional: nothing to compare
    kind = value.type.tensor_type
    shape: tuple[Dim, ...] | None = None
    if kind.HasField("shape"):
        shape = tuple(_size(dim) for dim in kind.shape.dim)
    return TensorInfo(value.name, _dtype(onnx, kind.elem_type), shape, batch_axis=0 if shape else None)


def _dtype(onnx: Any, element: int) -> str | None:
    try:
        name = str(onnx.helper.tensor_dtype_to_np_dtype(element).name)
    except (KeyError, ValueError, TypeError):
        return None  # undefined, or newer than the library
    return "str" if name == "object" else name


def _size(dim: Any) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) if dim.dim_param not in ("", "?") else None


def _vocabulary(graph: Any, constants: dict[str, tuple[int, ...]]) -> int | None:
    """Rows of the table that an input of token ids indexes."""
    tokens = {value.name for value in graph.input if "ids" in value.name and "type" not in value.name}
    tokens -= {value.name for value in graph.input if "position" in value.name}
    for node in graph.node:
        if node.op_type == "Gather" and len(node.input) == 2 and node.input[1] in tokens:
            table = constants.get(node.input[0], ())
            if len(table) == 2:
                return table[0]
    return None


def _facts(proto: Any, external: dict[str, int | None]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "opset": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        "ir_version": proto.ir_version,
        "nodes": len(proto.graph.node),
    }
    if external:
        facts["external_data"] = sorted(external)
    if missing := sorted(file for file, size in external.items() if size is None):
        facts["external_data_missing"] = missing
    return facts
