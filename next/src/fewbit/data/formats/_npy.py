# SPDX-License-Identifier: Apache-2.0
"""Arrays of one `.npz` or `.npy` file, read within limits, and the writer of `.npz` files.

What a header claims is compared with the bytes that are there before anything is allocated. Nothing is unpickled.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
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
    ARCHIVE_UNSAFE,
    EXPANSION_BOMB,
    STORED,
    ArchiveError,
    Member,
    ReadAt,
    describe_wrong_file,
    unsafe_name,
    zip_data_offset,
    zip_members,
)
from fewbit.data.types import IssueType, Severity
from fewbit.errors import DataError
from fewbit.output import write_atomic

Array = NDArray[Any]
ARRAY_BYTES = 4 << 30
"""The most bytes of all arrays of a file."""
_MOST_AXES = 32
_LONGEST_HEADER = 10_000
_WRITE_AGAIN = "write the file again: numpy.savez(path, **{name: array})"

ARRAY_HEADER = IssueType(
    "array-header", Severity.ERROR, "array header that cannot be read", _WRITE_AGAIN, "raise", ("drop",),
    "leaves the file out",
)  # fmt: skip
ARRAY_SIZE = IssueType(
    "array-size", Severity.ERROR, "array with fewer or more bytes than its header says", _WRITE_AGAIN, "raise",
    ("drop",), "leaves the file out",
)  # fmt: skip
ARRAY_CORRUPT = IssueType(
    "array-corrupt", Severity.ERROR, "array whose bytes fail their checksum", _WRITE_AGAIN, "raise", ("drop",),
    "leaves the file out",
)  # fmt: skip
ARRAY_DTYPE = IssueType(
    "array-dtype", Severity.ERROR, "array of Python objects, records or raw bytes, which is never unpickled",
    "save a plain array: array.astype('float32'), one name per field", "raise", ("drop",), "leaves the file out",
)  # fmt: skip
ARRAY_BOMB = IssueType(
    "array-bomb", Severity.ERROR, "array that claims far more memory than a sample may take",
    "save one sample per file", "raise", ("drop",), "leaves the file out",
)  # fmt: skip
MEMBER_NOT_ARRAY = IssueType(
    "member-not-array", Severity.WARNING, "archive member that is not a .npy array", "remove it; it is not read",
    "keep", ("drop", "raise"),
)  # fmt: skip
FILE_ISSUES = (
    ARCHIVE_BROKEN, ARCHIVE_UNSAFE, EXPANSION_BOMB, ARRAY_HEADER, ARRAY_SIZE, ARRAY_CORRUPT, ARRAY_DTYPE, ARRAY_BOMB,
    MEMBER_NOT_ARRAY,
)  # fmt: skip


class ArrayError(Exception):
    """An array or file that cannot be read."""

    def __init__(self, kind: IssueType, message: str, field: str | None = None):
        super().__init__(message)
        self.type, self.message, self.field = kind, message, field


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
        bare: the name of the only array of a `.npy` file; `None` for a `.npz` file.

    Attributes:
        infos: headers of the arrays that can be read, by name.
        problems: what cannot.
    """

    def __init__(self, read_at: ReadAt, size: int, bare: str | None = None):
        self._read_at = read_at
        self.infos: dict[str, ArrayHeader] = {}
        self.problems: list[ArrayError] = []
        self._members_by_name: dict[str, tuple[Member, int]] = {}
        total = 0
        for name, member in self._members(size, bare):
            try:
                offset = 0 if bare is not None else zip_data_offset(read_at, member)
                info = self._header(member, offset)
                total += info.nbytes
                if total > ARRAY_BYTES:
                    raise ArrayError(ARRAY_BOMB, f"the arrays claim more than {ARRAY_BYTES:,} bytes")
                if info.start + info.nbytes != member.size:
                    claim = f"{info.start + info.nbytes:,} bytes by its header, {member.size:,} stored"
                    raise ArrayError(ARRAY_SIZE, claim)
            except ArchiveError as error:
                self.problems.append(ArrayError(error.type, error.message, name))
            except ArrayError as error:
                self.problems.append(ArrayError(error.type, error.message, name))
            else:
                self.infos[name] = info
                self._members_by_name[name] = member, offset

    def _members(self, size: int, bare: str | None) -> list[tuple[str, Member]]:
        if bare is not None:
            return [(bare, Member(bare, 0, size, size))]
        try:
            members = zip_members(
                self._read_at,
                size,
                lambda kind, message, name: self.problems.append(ArrayError(kind, message, _key(name))),
            )
        except ArchiveError as error:
            self.problems.append(ArrayError(error.type, error.message))
            return []
        arrays = [member for member in members if member.name.endswith(".npy")]
        if len(arrays) < len(members):
            others = [member.name for member in members if not member.name.endswith(".npy")]
            self.problems += [ArrayError(MEMBER_NOT_ARRAY, "not read", name) for name in others]
        return [(_key(member.name), member) for member in arrays]

    def _header(self, member: Member, offset: int) -> ArrayHeader:
        """The header of one member, of which no more than the beginning is decompressed."""
        count = min(member.size, 256)
        while True:
            if member.method == STORED:
                head = self._read_at(offset, count)
            else:
                head = _inflate(self._read_at(offset, min(member.compressed, 2 * count + 64)), count)
            needed = _header_bytes(head)
            if needed <= len(head):
                return parse_header(head[:needed])
            if count >= min(member.size, needed):
                raise ArrayError(ARRAY_HEADER, "cut off inside its header")
            count = min(member.size, needed)

    def array(self, name: str) -> Array:
        """One array, native byte order, C order, writable.

        Raises:
            ArrayError: its bytes are damaged.
        """
        info, (member, offset) = self.infos[name], self._members_by_name[name]
        content = self._read_at(offset, member.compressed)
        if member.method != STORED:
            content = _inflate_all(content, member.size, name)
        if len(content) != member.size:
            raise ArrayError(ARRAY_SIZE, f"{len(content):,} of {member.size:,} bytes are there", name)
        if member.crc >= 0 and zlib.crc32(content) != member.crc:
            raise ArrayError(ARRAY_CORRUPT, "the checksum differs", name)
        return _as_array(content[info.start :], info)

    def row(self, name: str, index: int) -> Array:
        """One entry along the first axis; if its bytes are contiguous, only they are read."""
        info, (member, offset) = self.infos[name], self._members_by_name[name]
        if member.method != STORED or (info.fortran and len(info.shape) > 1):
            return np.array(self.array(name)[index])
        width = info.nbytes // info.shape[0]
        content = self._read_at(offset + info.start + index * width, width)
        if len(content) != width:
            raise ArrayError(ARRAY_SIZE, "the row is cut off", name)
        return _as_array(content, ArrayHeader(info.shape[1:], info.dtype, False, 0))


@lru_cache(maxsize=4096)
def parse_header(head: bytes) -> ArrayHeader:
    """What the header of a `.npy` file says, by a fixed grammar: nothing is evaluated.

    >>> file = io.BytesIO(); np.save(file, np.zeros((2, 3), np.float32)); parse_header(file.getvalue()[:128]).shape
    (2, 3)

    Raises:
        ArrayError: it is damaged, or not of a plain array.
    """
    text = head[10 if head[6:7] == b"\x01" else 12 :].decode("latin-1").strip()
    fields: dict[str, Any] = {}
    if re.search(r"['\"]descr['\"]\s*:\s*\[", text):
        raise ArrayError(ARRAY_DTYPE, "an array of records")
    inside = re.fullmatch(r"\{(.*)\}", text, re.DOTALL)
    position = 0
    while inside and (match := _FIELD.match(inside[1], position)):
        if match["key"] in fields:
            raise ArrayError(ARRAY_HEADER, f"its header has {match['key']!r} twice")
        fields[match["key"]] = match["text"] if match["text"] is not None else match["flag"] or match["shape"]
        position = match.end()
    if inside is None or inside[1][position:].strip() or set(fields) != {"descr", "fortran_order", "shape"}:
        raise ArrayError(ARRAY_HEADER, f"not a header of numpy: {text[:60]!r}")
    if fields["fortran_order"] not in ("True", "False") or not _SHAPE.fullmatch(str(fields["shape"])):
        raise ArrayError(ARRAY_HEADER, f"not a header of numpy: {text[:60]!r}")
    shape = tuple(int(axis) for axis in re.findall(r"\d+", fields["shape"]))
    dtype = _parse_dtype(fields["descr"])
    if len(shape) > _MOST_AXES or math.prod(max(axis, 1) for axis in shape) * dtype.itemsize > ARRAY_BYTES:
        raise ArrayError(ARRAY_BOMB, f"claims the shape {list(shape[:8])} of {dtype}")
    return ArrayHeader(shape, dtype, fields["fortran_order"] == "True", len(head))


_FIELD = re.compile(
    r"""\s*(['"])(?P<key>\w+)\1\s*:\s*(?:(['"])(?P<text>[^'"]*)\3|(?P<flag>True|False)|(?P<shape>\([\d\sL,]*\)))\s*(?:,|$)"""
)
_SHAPE = re.compile(r"\(\s*(?:\d{1,19}L?\s*,\s*(?:\d{1,19}L?\s*(?:,\s*|(?=\))))*)?\)")
_WIDTHS = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8, 16), "c": (8, 16, 32)}


def _parse_dtype(descr: str) -> np.dtype[Any]:
    match = re.fullmatch(r"([<>|=]?)([a-zA-Z?])(\d{0,6})(\[.*\])?", descr)
    if match is None:
        raise ArrayError(ARRAY_HEADER, f"unknown dtype {descr[:40]!r}")
    kind, width = match[2], int(match[3] or 0)
    if kind == "V" and width == 2:
        raise ArrayError(ARRAY_DTYPE, "2 raw bytes per value, as numpy writes bfloat16: save tensor.float().numpy()")
    if kind in "OVMm":
        content = {"O": "Python objects", "V": "raw bytes", "M": "dates", "m": "time spans"}[kind]
        raise ArrayError(ARRAY_DTYPE, f"an array of {content} ({descr})")
    supported = width in _WIDTHS[kind] if kind in _WIDTHS else kind in "SU" and width > 0
    if not supported:
        raise ArrayError(ARRAY_HEADER, f"unknown dtype {descr[:40]!r}")
    try:
        return np.dtype(descr)
    except (TypeError, ValueError) as error:  # float128 on machines without it
        raise ArrayError(ARRAY_HEADER, f"unknown dtype {descr[:40]!r}") from error


def _header_bytes(head: bytes) -> int:
    """How long the header is, magic included; a little more than there is, if that is not yet known."""
    if head[:6] != b"\x93NUMPY"[: len(head)]:
        message = (
            describe_wrong_file(head, 64, "a .npy array")
            if head[:2] != b"PK"
            else "is an archive; give the file the suffix .npz"
        )
        raise ArrayError(ARRAY_HEADER, message)
    if len(head) < 12:
        return 12
    if head[6] not in (1, 2, 3) or head[7]:
        raise ArrayError(ARRAY_HEADER, f"version {head[6]}.{head[7]} of the .npy format is not known")
    length = struct.unpack_from("<H" if head[6] == 1 else "<L", head, 8)[0]
    if length > _LONGEST_HEADER:
        raise ArrayError(ARRAY_HEADER, f"claims a header of {length:,} bytes")
    return int(length) + (10 if head[6] == 1 else 12)


def _inflate(content: bytes, count: int) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(content, count)
    except zlib.error as error:
        raise ArrayError(ARRAY_CORRUPT, "damaged compressed data") from error


def _inflate_all(content: bytes, size: int, name: str) -> bytes:
    inflater = zlib.decompressobj(-15)
    try:
        inflated = inflater.decompress(content, size + 1)
        if not inflater.eof and len(inflated) == size:
            inflated += inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error as error:
        raise ArrayError(ARRAY_CORRUPT, "damaged compressed data", name) from error
    if len(inflated) != size or not inflater.eof:
        raise ArrayError(ARRAY_CORRUPT, f"does not decompress to the {size:,} bytes it claims", name)
    return inflated


def _as_array(content: bytes, info: ArrayHeader) -> Array:
    array = np.frombuffer(content, info.dtype).reshape(info.shape, order="F" if info.fortran else "C")
    if info.dtype.kind == "b":  # any byte can be stored; code that trusts bools breaks on a 2
        return np.asarray(array.view(np.uint8) != 0)
    return np.array(array, info.dtype.newbyteorder("="), order="C")


def _key(member: str) -> str:
    return member.removesuffix(".npy")


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays into an `.npz` file, atomically; the same arrays give the same bytes.

    Unlike `numpy.savez` it takes every name (`file`, `allow_pickle`), stores no time, and widens types numpy lacks
    (bfloat16 to float32, int4 to int8).

    Args:
        path: where to write; an existing file is replaced.
        arrays: by name.

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
