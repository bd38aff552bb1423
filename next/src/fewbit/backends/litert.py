# SPDX-License-Identifier: Apache-2.0
"""`.tflite` models: the few fields of the flatbuffer that describe inputs and outputs are read with bounds checks.

Field numbers are those of tensorflow/lite/schema/schema.fbs. A model with metadata is a zip archive too, whose label
file holds the class names.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewbit.backends._base import Edit, Model
from fewbit.backends._headers import describe_content, not_built, open_model_file, unreadable, with_batch_axes
from fewbit.backends._sidecar import read_sidecar_files
from fewbit.model_info import Dim, ModelInfo, TensorInfo, as_labels

_TYPES = (
    "float32", "float16", "int32", "uint8", "int64", "str", "bool", "int16", "complex64", "int8", "float64",
    "complex128", "uint64", None, None, "uint32", "uint16", "int4", "bfloat16",
)  # fmt: skip
_MOST_ENTRIES = 1_000_000
_MOST_NAME = 1 << 16
_MOST_LABEL_BYTES = 4 << 20


class LiteRtBackend:
    """Reads `.tflite` files, and folders that hold `model.tflite`."""

    name = "litert"
    suffixes = (".tflite",)
    extra = "litert"
    target = "litert"
    edits: frozenset[type[Edit]] = frozenset()

    def matches(self, source: Any) -> bool:
        """By suffix."""
        if not isinstance(source, str | Path):
            return False
        return Path(source).suffix.lower() == ".tflite" or (Path(source) / "model.tflite").is_file()

    def inspect(self, source: Any) -> ModelInfo:
        """Inputs, outputs and labels; weights are not read."""
        path = Path(source)
        return _inspect_file(path / "model.tflite" if path.is_dir() else path, str(source))

    def load(self, source: Any) -> Model:
        """Not built yet."""
        raise not_built(".tflite", source)


def _inspect_file(path: Path, source: str) -> ModelInfo:
    with open_model_file(path, ".tflite") as stream:
        size = path.stat().st_size
        first = stream.read(64)
        if first[4:8] != b"TFL3":
            raise unreadable(source, ".tflite", describe_content(first) or "it does not begin like a .tflite file")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                inputs, outputs, quantized, facts = _read_model(content)
            except (struct.error, IndexError, ValueError) as error:
                raise unreadable(source, ".tflite", f"damaged or cut short ({error})") from error
    sidecar = read_sidecar_files(path)
    return ModelInfo(
        source=source,
        kind="LiteRT",
        backend="litert",
        size=size,
        inputs=with_batch_axes(inputs),
        outputs=tuple(outputs),
        labels=sidecar.labels or _labels(path),
        preprocessing=sidecar.preprocessing,
        preprocessing_source=sidecar.preprocessing_source,
        tokenizer=sidecar.tokenizer,
        quantized=quantized,
        facts=facts,
    )


class _Table:
    """A table of a flatbuffer: fields by number; every access is checked against the buffer."""

    def __init__(self, content: mmap.mmap, position: int):
        self._content, self._position = content, position
        self._vtable = position - self._number("<i", position)
        self._fields = (self._number("<H", self._vtable) - 4) // 2

    def _number(self, code: str, position: int) -> int:
        if position < 0:
            raise ValueError("an offset before the file")
        return int(struct.unpack_from(code, self._content, position)[0])

    def _field(self, number: int) -> int:
        """Where a field is stored; 0 if it has its default value."""
        if number >= self._fields:
            return 0
        offset = self._number("<H", self._vtable + 4 + 2 * number)
        return self._position + offset if offset else 0

    def scalar(self, number: int, code: str) -> int:
        """A number."""
        position = self._field(number)
        return self._number(code, position) if position else 0

    def table(self, number: int) -> _Table | None:
        """A table that this one refers to."""
        position = self._field(number)
        return _Table(self._content, position + self._number("<I", position)) if position else None

    def text(self, number: int) -> str:
        """A string."""
        start, length = self._vector(number)
        if length > _MOST_NAME or start + length > len(self._content):
            raise ValueError("a name longer than the file")
        return self._content[start : start + length].decode("utf-8", "replace")

    def numbers(self, number: int) -> list[int]:
        """A vector of 32-bit integers."""
        start, length = self._vector(number)
        if length > _MOST_ENTRIES or start + 4 * length > len(self._content):
            raise ValueError("a list longer than the file")
        return list(struct.unpack_from(f"<{length}i", self._content, start))

    def length(self, number: int) -> int:
        """How many entries a vector has."""
        return self._vector(number)[1]

    def tables(self, number: int) -> Iterator[_Table]:
        """A vector of tables."""
        start, length = self._vector(number)
        if length > _MOST_ENTRIES or start + 4 * length > len(self._content):
            raise ValueError("a list longer than the file")
        for position in range(start, start + 4 * length, 4):
            yield _Table(self._content, position + self._number("<I", position))

    def _vector(self, number: int) -> tuple[int, int]:
        position = self._field(number)
        if not position:
            return 0, 0
        start = position + self._number("<I", position)
        return start + 4, self._number("<I", start)


def _read_model(content: mmap.mmap) -> tuple[list[TensorInfo], list[TensorInfo], str | None, dict[str, Any]]:
    model = _Table(content, struct.unpack_from("<I", content, 0)[0])
    version = model.scalar(0, "<I")
    if version != 3:
        raise ValueError(f"schema version {version}")
    graph = next(model.tables(2), None)
    if graph is None:
        raise ValueError("no subgraph")
    tensors = list(graph.tables(0))
    inputs = [_tensor(_entry(tensors, index)) for index in graph.numbers(1)]
    outputs = [_tensor(_entry(tensors, index)) for index in graph.numbers(2)]
    facts = {"operators": graph.length(3), "tensors": len(tensors), "subgraphs": model.length(2)}
    return inputs, outputs, _quantized(tensors), facts


def _entry(tensors: list[_Table], index: int) -> _Table:
    if not 0 <= index < len(tensors):
        raise ValueError(f"tensor {index} of {len(tensors)}")
    return tensors[index]


def _tensor(tensor: _Table) -> TensorInfo:
    """`shape_signature` has -1 where an axis is free; `shape` then has an example size."""
    sizes = tensor.numbers(7) or tensor.numbers(0)
    shape: tuple[Dim, ...] = tuple(size if size >= 0 else None for size in sizes)
    kind = tensor.scalar(1, "<B")
    dtype = _TYPES[kind] if kind < len(_TYPES) else None
    if not shape and not tensor.scalar(8, "<B"):  # `has_rank` is not set: nothing is known
        return TensorInfo(tensor.text(3), dtype, None)
    return TensorInfo(tensor.text(3), dtype, shape, batch_axis=0 if shape else None)


def _quantized(tensors: list[_Table]) -> str | None:
    """The narrowest integer type of tensors that have scales."""
    types = set()
    for tensor in tensors:
        quantization = tensor.table(4)
        if quantization is not None and quantization.length(2):
            types.add(tensor.scalar(1, "<B"))
    return "int4" if 17 in types else "int8" if types & {3, 9} else None


def _labels(path: Path) -> tuple[str, ...] | None:
    """Class names of the label file that is appended as a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = [entry for entry in archive.infolist() if "label" in entry.filename.lower()]
            files = sorted(files, key=lambda entry: entry.filename)
            if not files or files[0].file_size > _MOST_LABEL_BYTES:
                return None
            with archive.open(files[0]) as stream:
                lines = stream.read(_MOST_LABEL_BYTES).decode("utf-8", "replace").splitlines()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error):
        return None
    return as_labels([line.strip() for line in lines if line.strip()])


BACKEND = LiteRtBackend()
