# SPDX-License-Identifier: Apache-2.0
"""Where in the files of an ONNX model the bytes of its tensors lie."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fewbit.errors import DataError, require

_LARGE = 256
"""Bytes above which a tensor is looked at for itself; the rest goes along as it is."""

_DTYPES = {
    "FLOAT": torch.float32, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "DOUBLE": torch.float64,
    "INT8": torch.int8, "UINT8": torch.uint8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64,
}  # fmt: skip

Span = tuple[int, int, torch.dtype]
"""From the first byte to the one behind the last, and of which numbers."""


def tensor_spans(model: Path) -> dict[str, list[Span]]:
    """The tensors of a model by the file they are in; the model's own file comes first, with those that it holds.

    Raises:
        DataError: a model that cannot be read.
    """
    onnx = require("onnx", extra="onnx", purpose="packing an ONNX model")
    try:
        proto = onnx.load(str(model), load_external_data=False)
    except Exception as error:  # whatever a damaged file makes protobuf raise
        raise DataError(f"no ONNX model: {str(error)[:200]}", code="model-unreadable", where=model) from error
    tensors = list(_tensors(proto.graph))
    spans = {model.name: _found(model, tensors, onnx)}
    for tensor in tensors:
        outside = {each.key: each.value for each in tensor.external_data}
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            begin, length = int(outside.get("offset", 0)), int(outside.get("length", 0))
            spans.setdefault(outside["location"], []).append((begin, begin + length, _dtype(tensor, length, onnx)))
    return spans


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor of a graph, in the order they stand in the file."""
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
    yield from graph.initializer


def _found(path: Path, tensors: list[Any], onnx: Any) -> list[Span]:
    """Where in a file the bytes of tensors are; those that are not found go with the rest."""
    spans: list[Span] = []
    if not path.stat().st_size:
        return spans
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        after = 0
        for tensor in tensors:
            length = len(tensor.raw_data)
            begin = content.find(tensor.raw_data, after) if length > _LARGE else -1
            if begin >= 0:
                after = begin + length
                spans.append((begin, after, _dtype(tensor, length, onnx)))
    return spans


def _dtype(tensor: Any, length: int, onnx: Any) -> torch.dtype:
    known = _DTYPES.get(onnx.TensorProto.DataType.Name(tensor.data_type), torch.uint8)
    return known if length % known.itemsize == 0 else torch.uint8
