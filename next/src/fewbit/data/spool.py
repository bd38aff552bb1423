# SPDX-License-Identifier: Apache-2.0
"""A stream that can be read again and at any position: what it yields is kept in a temporary file.

The stream is read only as far as needed; the file is deleted with the object. Nothing in it is pickled: containers are
JSON, arrays raw bytes, integers text and floats hexadecimal, so a second pass is equal to the first, bit for bit.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson

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
        self._spans: list[tuple[int, int, int]] = []  # begin, end of the description, end
        self._types: list[Any] = []  # classes and dtypes, which the file names by number
        self._ended, self._size, self._checked = False, 0, 0
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
        return len(self._spans)

    @property
    def known_length(self) -> int | None:
        """The length, if the stream was read to its end."""
        return len(self._spans) if self._ended else None

    def has(self, index: int) -> bool:
        """Whether there is an element at a position; reads the stream no further than that."""
        while index >= len(self._spans):
            if not self._advance():
                return False
        return True

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            index += len(self)
        if not self.has(index):
            raise IndexError(index)
        begin, middle, end = self._spans[index]
        with open(self._path, "rb") as stream:
            stream.seek(begin)
            content = stream.read(end - begin)
        return _decode(orjson.loads(content[: middle - begin]), content[middle - begin :], self._types)

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
            index = len(self._spans)
            with user_code(self.name, self._start, index):
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
        payload: list[bytes] = []
        try:
            description = orjson.dumps(_encode(element, payload, self._types, 0))
        except _NoForm as error:
            raise DataError(
                f"an object of type {error} cannot be kept on disk for a second pass", code="not-spoolable",
                where=f"element {len(self._spans)} of {self.name}",
                expected="arrays, tensors, images, numbers, texts, and containers of them",
                hint="give a list, or yield arrays instead",
            ) from None  # fmt: skip
        try:
            with open(self._path, "ab") as stream:
                stream.write(description)
                stream.writelines(payload)
        except OSError as error:
            raise self._full() from error
        middle = self._size + len(description)
        end = middle + sum(map(len, payload))
        self._spans.append((self._size, middle, end))
        self._size = end
        if self._size - self._checked > _CHECK_EVERY:
            self._checked = self._size
            if shutil.disk_usage(os.path.dirname(self._path)).free < LEAST_FREE:
                raise self._full()

    def _full(self) -> ResourceError:
        folder = os.path.dirname(self._path)
        return ResourceError(
            f"{self.name} has filled the disk: {self._size:,} bytes kept, {shutil.disk_usage(folder).free:,} free",
            code="disk-full", where=folder, expected="a stream that ends",
            hint="cut it with itertools.islice, or set TMPDIR to a folder on a larger disk",
        )  # fmt: skip


class _NoForm(Exception):
    """A type that cannot be written without pickle."""


def _remove(path: str, process: int) -> None:
    if os.getpid() == process and os.path.exists(path):
        os.unlink(path)


def _encode(value: Any, payload: list[bytes], types: list[Any], depth: int) -> Any:
    """A value as JSON; raw bytes go to the payload, in order."""

    def inner(item: Any) -> Any:
        return _encode(item, payload, types, depth + 1)

    if value is None or isinstance(value, bool):
        return value
    if depth > DEEPEST:
        raise _NoForm(f"a container nested more than {DEEPEST} levels deep")
    if type(value) is str:
        if value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value):
            return value
        return ["surrogates", _raw(value.encode("utf-8", "surrogatepass"), payload)]
    if type(value) is int:
        return ["int", str(value)]  # JSON numbers end at 64 bits
    if type(value) is float:
        return ["float", value.hex()]  # and know no NaN
    if isinstance(value, bytes):
        return ["bytes", _raw(value, payload)]
    if isinstance(value, Mapping):
        return ["dict", _type(type(value), types), [[inner(key), inner(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return ["sequence", _type(type(value), types), [inner(item) for item in value]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [[field.name, inner(getattr(value, field.name))] for field in dataclasses.fields(value)]
        return ["dataclass", _type(type(value), types), fields]
    return _encode_array(value, payload, types)


def _encode_array(value: Any, payload: list[bytes], types: list[Any]) -> Any:
    module = type(value).__module__.partition(".")[0]
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return ["scalar", _type(value.dtype, types), _raw(value.tobytes(), payload)]
    if is_tensor(value):
        if value.is_sparse or value.is_quantized or value.is_nested:
            raise _NoForm(f"{value.layout} tensor")
        torch = sys.modules["torch"]
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        shape = list(value.shape)
        return ["tensor", _type(value.dtype, types), shape, str(value.device), _raw(flat.numpy().tobytes(), payload)]
    if module == "PIL":
        return ["image", value.mode, list(value.size), value.getpalette(), _raw(value.tobytes(), payload)]
    if hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__array__"):
        array = np.asarray(value)  # also of TensorFlow and JAX
        if not array.dtype.hasobject:
            return ["array", _type(array.dtype, types), list(array.shape), _raw(array.tobytes(), payload)]
    raise _NoForm(f"{type(value).__module__}.{type(value).__qualname__}")


def _decode(form: Any, content: bytes, types: list[Any]) -> Any:
    """The value that `_encode` saw."""
    position = 0

    def raw(size: int) -> bytes:
        nonlocal position
        position += size
        return content[position - size : position]

    def value_of(form: Any) -> Any:
        match form:
            case ["int", text]:
                return int(text)
            case ["float", text]:
                return float.fromhex(text)
            case ["bytes", size]:
                return raw(size)
            case ["surrogates", size]:
                return raw(size).decode("utf-8", "surrogatepass")
            case ["dict", cls, pairs]:
                return _mapping(types[cls], {value_of(key): value_of(item) for key, item in pairs})
            case ["sequence", cls, items]:
                return _sequence(types[cls], [value_of(item) for item in items])
            case ["dataclass", cls, fields]:
                instance = object.__new__(types[cls])
                for name, item in fields:
                    object.__setattr__(instance, name, value_of(item))
                return instance
            case ["scalar", dtype, size]:
                return np.frombuffer(raw(size), types[dtype])[0]
            case ["array", dtype, shape, size]:
                return np.frombuffer(bytearray(raw(size)), types[dtype]).reshape(shape)
            case ["tensor", dtype, shape, device, size]:
                return _tensor(types[dtype], shape, device, raw(size))
            case ["image", mode, size, palette, count]:
                from PIL import Image

                image = Image.frombytes(mode, tuple(size), raw(count))
                if palette:
                    image.putpalette(palette)
                return image
        return form

    return value_of(form)


def _mapping(cls: Callable[..., Any], items: dict[Any, Any]) -> Any:
    """A mapping of a class the stream itself yielded; a dict if it cannot be made from its items."""
    if cls is dict:
        return items
    try:
        fields = dataclasses.is_dataclass(cls)  # the outputs of transformers are both
        return cls(**items) if fields else cls(items)
    except TypeError:
        return items


def _sequence(cls: Any, items: list[Any]) -> Any:
    if cls is list:
        return items
    try:
        return cls(*items) if hasattr(cls, "_fields") else cls(items)
    except TypeError:
        return tuple(items) if issubclass(cls, tuple) else items


def _tensor(dtype: Any, shape: list[int], device: str, content: bytes) -> Any:
    torch = sys.modules["torch"]
    if not content:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape).to(device)


def _raw(content: bytes, payload: list[bytes]) -> int:
    payload.append(content)
    return len(content)


def _type(kind: Any, types: list[Any]) -> int:
    """The number of a class or dtype."""
    for number, candidate in enumerate(types):
        if type(candidate) is type(kind) and candidate == kind:
            return number
    types.append(kind)
    return len(types) - 1


def is_tensor(value: Any) -> bool:
    """Whether this is a PyTorch tensor; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
