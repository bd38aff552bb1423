# SPDX-License-Identifier: Apache-2.0
"""Arrays of one `.npz` or `.npy` file, read within limits, and the writer of `.npz` files.

What a header claims is compared with the bytes that are there before anything is allocated. Nothing is unpickled.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.members import (
    ARCHIVE_BROKEN,
    ARCHIVE_CORRUPT,
    ARCHIVE_UNSAFE,
    EXPANSION_BOMB,
    STORED,
    ArchiveError,
    Member,
    ReadAt,
    describe_wrong_file,
    member_content,
    unsafe_name,
    zip_data_offset,
    zip_members,
)
from fewbit.data.types import Action, IssueType, Severity
from fewbit.errors import DataError
from fewbit.output import write_atomic

Array = NDArray[Any]
ARRAY_BYTES = 4 << 30
"""The most bytes of all arrays of a file."""
BARE = "array"
"""The name of the only array of a `.npy` file."""
_MOST_AXES = 32
_LONGEST_HEADER = 10_000
_WRITE_AGAIN = "write the file again: numpy.savez(path, **{name: array})"
_DROP: tuple[Action, tuple[Action, ...], str] = ("raise", ("drop",), "leaves the file out")

ARRAY_HEADER = IssueType("array-header", Severity.ERROR, "array header that cannot be read", _WRITE_AGAIN, *_DROP)
ARRAY_SIZE = IssueType(
    "array-size", Severity.ERROR, "array with fewer or more bytes than its header says", _WRITE_AGAIN, *_DROP
)
ARRAY_DTYPE = IssueType(
    "array-dtype", Severity.ERROR, "array of Python objects, records or raw bytes, which is never unpickled",
    "save a plain array: array.astype('float32'), one name per field", *_DROP,
)  # fmt: skip
ARRAY_BOMB = IssueType(
    "array-bomb", Severity.ERROR, "array that claims far more memory than a sample may take",
    "save one sample per file", *_DROP,
)  # fmt: skip
MEMBER_NOT_ARRAY = IssueType(
    "member-not-array", Severity.WARNING, "archive member that is not a .npy array", "remove it; it is not read",
    "keep", ("drop", "raise"),
)  # fmt: skip
FILE_ISSUES = (
    ARCHIVE_BROKEN, ARCHIVE_UNSAFE, ARCHIVE_CORRUPT, EXPANSION_BOMB, ARRAY_HEADER, ARRAY_SIZE, ARRAY_DTYPE, ARRAY_BOMB,
    MEMBER_NOT_ARRAY,
)  # fmt: skip


class ArrayError(ArchiveError):
    """An array or file that cannot be read."""

    def __init__(self, kind: IssueType, message: str, field: str | None = None):
        super().__init__(kind, message)
        self.field = field


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What a header says.

    Args:
        shape: of the array.
        dtype: numpy's, with byte order.
        fortran: whether the first axis varies fastest.
        start: bytes before the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayFile:
    """The arrays of one file: headers at once, values on demand.

    Args:
        read_at: positional reader of the file.
        size: bytes of the file.
        bare: whether it is a `.npy` file.

    Attributes:
        headers: of the arrays that can be read, by name.
        problems: what cannot.
    """

    def __init__(self, read_at: ReadAt, size: int, bare: bool):
        self._read_at = read_at
        self.headers: dict[str, ArrayHeader] = {}
        self.problems: list[ArrayError] = []
        self._members: dict[str, tuple[Member, int]] = {}
        total = 0
        for name, member in self._list(size, bare):
            try:
                start = 0 if bare else zip_data_offset(read_at, member)
                header = self._header(member, start)
                total += header.nbytes
                if total > ARRAY_BYTES:
                    raise ArrayError(ARRAY_BOMB, f"the arrays claim more than {ARRAY_BYTES:,} bytes")
                claimed = header.start + header.nbytes
                if claimed != member.size:
                    raise ArrayError(ARRAY_SIZE, f"{claimed:,} bytes by its header, {member.size:,} stored")
            except ArchiveError as error:
                self.problems.append(ArrayError(error.type, error.message, name))
            else:
                self.headers[name] = header
                self._members[name] = member, start

    @classmethod
    def of_bytes(cls, content: bytes, bare: bool) -> ArrayFile:
        """The arrays of a file that is in memory."""
        return cls(lambda offset, count: content[offset : offset + count], len(content), bare)

    def _list(self, size: int, bare: bool) -> list[tuple[str, Member]]:
        def problem(kind: IssueType, message: str, name: str) -> None:
            self.problems.append(ArrayError(kind, message, name.removesuffix(".npy")))

        if bare:
            return [(BARE, Member(BARE, 0, size, size))]
        try:
            members = zip_members(self._read_at, size, problem)
        except ArchiveError as error:
            self.problems.append(ArrayError(error.type, error.message))
            return []
        for member in members:
            if not member.name.endswith(".npy"):
                problem(MEMBER_NOT_ARRAY, "not read", member.name)
        return [(member.name.removesuffix(".npy"), member) for member in members if member.name.endswith(".npy")]

    def _header(self, member: Member, start: int) -> ArrayHeader:
        """The header of one member, of which no more than the beginning is decompressed."""
        for count in (256, _LONGEST_HEADER + 12):
            if member.method == STORED:
                head = self._read_at(start, min(count, member.size))
            else:
                try:
                    packed = self._read_at(start, min(member.compressed, 2 * count))
                    head = zlib.decompressobj(-15).decompress(packed, min(count, member.size))
                except zlib.error as error:
                    raise ArrayError(ARCHIVE_CORRUPT, "damaged compressed data") from error
            length = _header_length(head)
            if length <= len(head):
                return parse_header(head[:length])
        raise ArrayError(ARRAY_HEADER, "cut off inside its header")

    def array(self, name: str) -> Array:
        """One array, native byte order, C order, writable.

        Raises:
            ArrayError: its bytes are damaged.
        """
        header, (member, start) = self.headers[name], self._members[name]
        try:
            content = member_content(self._read_at, member, start)
        except ArchiveError as error:
            raise ArrayError(error.type, error.message, name) from error
        return _as_array(content[header.start :], header)

    def row(self, name: str, index: int) -> Array:
        """One entry along the first axis; if its bytes are contiguous, only they are read."""
        header, (member, start) = self.headers[name], self._members[name]
        if member.method != STORED or (header.fortran and len(header.shape) > 1):
            return np.array(self.array(name)[index])
        width = header.nbytes // header.shape[0]
        content = self._read_at(start + header.start + index * width, width)
        if len(content) != width:
            raise ArrayError(ARRAY_SIZE, "the row is cut off", name)
        return _as_array(content, ArrayHeader(header.shape[1:], header.dtype, False, 0))


def _header_length(head: bytes) -> int:
    """How long the header is, magic included; a little more than there is, if that is not yet known."""
    if head[:6] != b"\x93NUMPY"[: len(head)]:
        archive = head[:2] == b"PK"
        message = "is an archive; give the file the suffix .npz" if archive else None
        raise ArrayError(ARRAY_HEADER, message or describe_wrong_file(head, 64, "a .npy array"))
    if len(head) < 12:
        return 12
    if head[6] not in (1, 2, 3) or head[7]:
        raise ArrayError(ARRAY_HEADER, f"version {head[6]}.{head[7]} of the .npy format is not known")
    begin = 10 if head[6] == 1 else 12
    length = int.from_bytes(head[8:begin], "little")
    if length > _LONGEST_HEADER:
        raise ArrayError(ARRAY_HEADER, f"claims a header of {length:,} bytes")
    return begin + length


@lru_cache(maxsize=4096)
def parse_header(head: bytes) -> ArrayHeader:
    """What the header of a `.npy` file says, by a fixed grammar: nothing is evaluated.

    >>> file = io.BytesIO(); np.save(file, np.zeros((2, 3), np.float32)); parse_header(file.getvalue()[:128]).shape
    (2, 3)

    Raises:
        ArrayError: it is damaged, or not of a plain array.
    """
    text = head[10 if head[6] == 1 else 12 :].decode("latin-1").strip().replace('"', "'")
    if re.search(r"'descr'\s*:\s*\[", text):
        raise ArrayError(ARRAY_DTYPE, "an array of records")
    fields = dict(_ENTRY.findall(text))
    ordered = " ".join(fields.get(key, "") for key in ("descr", "fortran_order", "shape"))
    if not _HEADER.fullmatch(text) or len(fields) != 3 or not _FIELDS.fullmatch(ordered):
        raise ArrayError(ARRAY_HEADER, f"not a header of numpy: {text[:60]!r}")
    shape = tuple(int(axis) for axis in re.findall(r"\d+", fields["shape"]))
    dtype = _parse_dtype(fields["descr"].strip("'"))
    if len(shape) > _MOST_AXES or math.prod(max(axis, 1) for axis in shape) * dtype.itemsize > ARRAY_BYTES:
        raise ArrayError(ARRAY_BOMB, f"claims the shape {list(shape[:8])} of {dtype}")
    return ArrayHeader(shape, dtype, fields["fortran_order"] == "True", len(head))


_ENTRY = re.compile(r"'(\w+)'\s*:\s*('[^']*'|True|False|\([^()]*\))")
_HEADER = re.compile(rf"\{{\s*(?:{_ENTRY.pattern}\s*(?:,\s*|(?=\}}))){{3}}\}}")
_FIELDS = re.compile(r"'[^']*' (True|False) \(\s*((\d{1,19}L?\s*,\s*)+(\d{1,19}L?\s*)?)?\)")
_UNREAD = {"O": "Python objects", "V": "raw bytes", "M": "dates", "m": "time spans"}


def _parse_dtype(descr: str) -> np.dtype[Any]:
    try:
        if not re.fullmatch(r"[<>|=]?[a-zA-Z?]\d{0,6}(\[\w*\])?", descr):
            raise TypeError(descr)
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:  # also float128 on machines without it
        raise ArrayError(ARRAY_HEADER, f"unknown dtype {descr[:40]!r}") from error
    if dtype.kind == "V" and dtype.itemsize == 2:
        raise ArrayError(ARRAY_DTYPE, "2 raw bytes per value, as numpy writes bfloat16: save tensor.float().numpy()")
    if dtype.kind in _UNREAD:
        raise ArrayError(ARRAY_DTYPE, f"an array of {_UNREAD[dtype.kind]} ({descr})")
    if not dtype.itemsize:
        raise ArrayError(ARRAY_HEADER, f"unknown dtype {descr[:40]!r}")
    return dtype


def _as_array(content: bytes, header: ArrayHeader) -> Array:
    array = np.frombuffer(content, header.dtype).reshape(header.shape, order="F" if header.fortran else "C")
    if header.dtype.kind == "b":  # any byte can be stored; code that trusts bools breaks on a 2
        return np.array(array.view(np.uint8) != 0, order="C")
    return np.array(array, header.dtype.newbyteorder("="), order="C")


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays into an `.npz` file, atomically; the same arrays give the same bytes.

    Unlike `numpy.savez` it takes every name (`file`, `allow_pickle`), stores no time, and widens types numpy lacks
    (bfloat16 to float32, int4 to int8).

    Raises:
        DataError: a name or an array cannot be stored; nothing is written.
    """
    storable = {name: _storable(name, array) for name, array in arrays.items()}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in storable.items():
            entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o600 << 16
            with archive.open(entry, "w", force_zip64=array.nbytes > 1 << 30) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    write_atomic(Path(path), content.getvalue())


def _storable(name: str, value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype.kind == "V" and not array.dtype.name.startswith(("void", "record")):  # bfloat16, int4: of ml_dtypes
        array = array.astype(np.int8 if "int" in array.dtype.name else np.float32)
    reason = unsafe_name(name) or ("" if array.dtype.kind in "biufcSU" else f"{array.dtype} is not a plain type")
    if any("\ud800" <= character <= "\udfff" for character in name):
        reason = "it is not valid Unicode"
    if reason:
        raise DataError(
            f"the array {name!r} cannot be stored: {reason}", code="array-dtype", where=name,
            expected="arrays of numbers, bools or text, with plain names", hint="convert it: array.astype('float32')",
        )  # fmt: skip
    return array
