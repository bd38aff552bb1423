# SPDX-License-Identifier: Apache-2.0
"""A stream that can be read again and at any position: what it yields is kept in a temporary file.

The stream is read only as far as needed; the file is deleted with the object. Nothing in it is pickled: `marshal`
writes plain values and raw bytes, and reading them runs no code. A second pass is equal to the first, bit for bit.
"""

from __future__ import annotations

import dataclasses
import marshal
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fewbit.data.types import DataReport, IssueType, Severity
from fewbit.data.user_code import user_code
from fewbit.errors import DataError, ResourceError

DEEPEST = 100
LEAST_FREE = 1 << 30
"""Bytes of the disk that stay free: an infinite stream would fill it."""
_CHECK_EVERY = 64 << 20
_END = object()

SPOOLED = IssueType(
    "spooled", Severity.NOTE, "stream that can be read once",
    "nothing to do; a list, or a function that returns a list, is not copied",
)  # fmt: skip


class Spool:
    """The elements of a stream by position.

    Args:
        start: begins the stream; called when the first element is needed.
        name: of the stream, in errors.
        report: takes the note that a copy is kept.

    >>> spool = Spool(lambda: iter("abc"), "letters")
    >>> spool[1], len(spool), spool[-1]
    ('b', 3, 'c')
    """

    def __init__(self, start: Callable[[], Iterable[Any]], name: str, report: DataReport | None = None):
        self.name = name
        self._start: Callable[[], Iterable[Any]] | None = start
        self._iterator: Iterator[Any] | None = None
        self._ends = [0]  # of each element in the file, behind that of none
        self._types: list[Any] = []  # classes and dtypes, which the file names by number
        self._ended, self._checked = False, 0
        self._lock = threading.RLock()
        descriptor, self._path = tempfile.mkstemp(prefix="fewbit-spool-")
        os.close(descriptor)
        weakref.finalize(self, _remove, self._path, os.getpid())
        if report is not None:
            report.add(SPOOLED, f"what it yields is kept in {tempfile.gettempdir()} as it is read", samples=0)

    def __len__(self) -> int:
        """Reads the stream to its end."""
        while self._advance():
            pass
        return len(self._ends) - 1

    def has(self, index: int) -> bool:
        """Whether there is an element at a position; reads the stream no further than that."""
        while index >= len(self._ends) - 1:
            if not self._advance():
                return False
        return True

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            index += len(self)
        if not self.has(index):
            raise IndexError(index)
        begin, end = self._ends[index : index + 2]
        with open(self._path, "rb") as stream:
            stream.seek(begin)
            return _decode(marshal.loads(stream.read(end - begin)), self._types)

    def __getstate__(self) -> dict[str, Any]:
        len(self)
        return {**self.__dict__, "_start": None, "_iterator": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def _advance(self) -> bool:
        """Read one more element; whether there was one."""
        with self._lock:
            if self._ended:
                return False
            with user_code(self.name, self._start, len(self._ends) - 1):
                if self._iterator is None:
                    assert self._start is not None
                    self._iterator = iter(self._start())
                element = next(self._iterator, _END)
            if element is _END:
                self._ended, self._iterator = True, None
                return False
            self._write(element)
            return True

    def _write(self, element: Any) -> None:
        try:
            content = marshal.dumps(_encode(element, self._types))
        except _NoFormError as error:
            raise DataError(
                f"an object of type {error} cannot be kept on disk for a second pass", code="not-spoolable",
                where=f"element {len(self._ends) - 1} of {self.name}",
                expected="arrays, tensors, images, numbers, texts, and containers of them",
                hint="give a list, or yield arrays instead",
            ) from None  # fmt: skip
        folder, size = os.path.dirname(self._path), self._ends[-1] + len(content)
        try:
            with open(self._path, "ab") as stream:
                stream.write(content)
            if size - self._checked > _CHECK_EVERY:
                self._checked = size
                if shutil.disk_usage(folder).free < LEAST_FREE:
                    raise OSError("the disk is almost full")
        except OSError as error:
            raise ResourceError(
                f"{self.name} has filled the disk: {size:,} bytes kept, {shutil.disk_usage(folder).free:,} free",
                code="disk-full", where=folder, expected="a stream that ends",
                hint="cut it with itertools.islice, or set TMPDIR to a folder on a larger disk",
            ) from error  # fmt: skip
        self._ends.append(size)


def _remove(path: str, process: int) -> None:
    if os.getpid() == process and os.path.exists(path):  # not in a forked worker
        os.unlink(path)


class _NoFormError(Exception):
    """A type that cannot be written without pickle."""


def _encode(value: Any, types: list[Any], depth: int = 0) -> Any:
    """A value as `marshal` can write it: plain values as they are, others as a tuple that begins with a word.

    Args:
        value: anything a stream yields.
        types: takes classes and dtypes, which forms name by their number.
        depth: of the containers around it.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if depth > DEEPEST:
        raise _NoFormError(f"a container nested more than {DEEPEST} levels deep")
    if isinstance(value, Mapping):
        pairs = [(_encode(key, types, depth + 1), _encode(item, types, depth + 1)) for key, item in value.items()]
        return "dict", _number(type(value), types), pairs
    if isinstance(value, list | tuple):
        return "list", _number(type(value), types), [_encode(item, types, depth + 1) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return "dataclass", _number(type(value), types), _encode(fields, types, depth + 1)
    if is_tensor(value) and not (value.is_sparse or value.is_quantized or value.is_nested):
        content = value.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy().tobytes()
        return "tensor", _number(value.dtype, types), tuple(value.shape), str(value.device), content
    if type(value).__module__.partition(".")[0] == "PIL":
        return "image", value.mode, value.size, value.getpalette(), value.tobytes()
    if not is_tensor(value) and hasattr(value, "dtype") and hasattr(value, "__array__"):
        array = np.asarray(value)  # also of TensorFlow and JAX
        if not array.dtype.hasobject:
            word = "scalar" if isinstance(value, np.generic) else "array"
            return word, _number(array.dtype, types), array.shape, array.tobytes()
    raise _NoFormError(f"{type(value).__module__}.{type(value).__qualname__}")


def _decode(form: Any, types: list[Any]) -> Any:
    """The value that `_encode` saw."""
    match form:
        case "dict", number, pairs:
            return _rebuilt(types[number], {_decode(key, types): _decode(item, types) for key, item in pairs})
        case "list", number, items:
            return _rebuilt(types[number], [_decode(item, types) for item in items])
        case "dataclass", number, fields:
            instance = object.__new__(types[number])
            for name, item in _decode(fields, types).items():
                object.__setattr__(instance, name, item)
            return instance
        case "tensor", number, shape, device, content:
            torch = sys.modules["torch"]
            flat = torch.frombuffer(bytearray(content), dtype=types[number]) if content else torch.empty(0)
            return flat.to(types[number]).reshape(shape).to(device)
        case "image", mode, size, palette, content:
            from PIL import Image

            image = Image.frombytes(mode, size, content)
            if palette:
                image.putpalette(palette)
            return image
        case ("scalar" | "array") as word, number, shape, content:
            array = np.frombuffer(bytearray(content), types[number]).reshape(shape)
            return array[()] if word == "scalar" else array
    return form


def _number(kind: Any, types: list[Any]) -> int:
    """The number of a class or dtype."""
    for number, candidate in enumerate(types):
        if type(candidate) is type(kind) and candidate == kind:
            return number
    types.append(kind)
    return len(types) - 1


def _rebuilt(cls: type, items: Any) -> Any:
    """A container of a class that the stream itself yielded; a dict, tuple or list if it cannot be made from items."""
    if cls in (dict, list):
        return items
    build: Any = cls
    try:
        if isinstance(items, dict):  # the outputs of transformers are dataclasses too
            return build(**items) if dataclasses.is_dataclass(cls) else build(items)
        return build(*items) if hasattr(cls, "_fields") else build(items)
    except TypeError:
        return tuple(items) if issubclass(cls, tuple) else items


def is_tensor(value: Any) -> bool:
    """Whether this is a PyTorch tensor; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
