# SPDX-License-Identifier: Apache-2.0
"""Reading `.npz` and `.npy` files: every header first, values only when everything agrees.

`scan` looks at headers alone and never allocates what a header claims. `read_npz` takes the values within the
limits, verifies checksums and gives plain arrays: native byte order, C order, no pickles ever.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data import limits
from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.npy_header import LONGEST, USUAL, header_size, parse_header
from fewbit.data.arrays.window import Window
from fewbit.data.arrays.zip_directory import DEFLATED, STORED, ZipMember, list_members

_HEAD = 128
_CHUNK = 1 << 20

Array = NDArray[Any]


@dataclass(slots=True)
class Member:
    """One array of a file: what it is and where it lies."""

    info: ArrayInfo
    zip: ZipMember

    @property
    def seekable(self) -> bool:
        """Whether one entry of the first axis lies in one piece in the file."""
        return self.zip.method == STORED and not self.info.fortran


@dataclass(slots=True)
class Scan:
    """What the headers of one file say.

    Args:
        members: the arrays by name.
        faults: everything that is wrong; a file with an error among them cannot be read.
    """

    members: dict[str, Member] = field(default_factory=dict)
    faults: list[ArrayFault] = field(default_factory=list)

    @property
    def infos(self) -> dict[str, ArrayInfo]:
        """The arrays' descriptions by name."""
        return {name: member.info for name, member in self.members.items()}

    @property
    def fatal(self) -> ArrayFault | None:
        """The first fault that keeps the file from being read."""
        return next((fault for fault in self.faults if fault.code != "member-not-array"), None)


def opened(path: str | Path, start: int = 0, size: int | None = None) -> Window:
    """Open a file, or the stretch of it that a `.tar` member takes, as a window for a `with` block.

    Raises:
        ArrayFault: the system refuses.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            return Window(file, start, os.fstat(file).st_size if size is None else size)
        except BaseException:
            os.close(file)
            raise
    except OSError as error:
        raise ArrayFault("unreadable", f"cannot be read: {error.strerror or error}") from error


def scan(window: Window, *, npy_name: str | None = None) -> Scan:
    """Look at every header of a `.npz`, or of the `.npy` that goes by the name `npy_name`.

    Cost: for a small file one read and about 10 µs an array; values are not touched.
    """
    found = Scan()
    try:
        members = [_bare(window, npy_name)] if npy_name is not None else list_members(window)
    except ArrayFault as fault:
        found.faults.append(fault)
        return found
    for member in members:
        name = member.name[:-4]
        if member.name[-4:] != ".npy":
            name = member.name
            found.faults.append(ArrayFault("member-not-array", f"member {member.name!r} is no array", field=name))
            continue
        try:
            found.members[name] = Member(_header(window, member), member)
        except ArrayFault as fault:
            found.faults.append(ArrayFault(str(fault.code), fault.what, field=name, offset=member.offset))
    if not found.members and not found.faults:
        found.faults.append(ArrayFault("archive-broken", "holds no array"))
    return found


def _bare(window: Window, name: str) -> ZipMember:
    if not window.size:
        raise ArrayFault("archive-broken", "is empty")
    return ZipMember(f"{name}.npy", STORED, -1, window.size, window.size, 0)


def _header(window: Window, member: ZipMember) -> ArrayInfo:
    head = _first_bytes(window, member, _HEAD)
    if head[:10] != USUAL and len(head) == _HEAD and header_size(head) > _HEAD:
        head = _first_bytes(window, member, LONGEST)
    info, claimed = parse_header(head)
    if member.method == DEFLATED:
        if info.nbytes > limits.ARRAY_BYTES:
            raise ArrayFault("array-bomb", f"claims {info} = {info.nbytes:,} bytes; at most {limits.ARRAY_BYTES:,}")
        if member.size > max(limits.EXPANSION_FLOOR, limits.EXPANSION * member.compressed):
            raise ArrayFault("array-bomb", f"{member.compressed:,} bytes unpack to {member.size:,}")
    if claimed != member.size:
        text = f"claims {info}, {claimed:,} bytes with its header, and has {member.size:,}"
        raise ArrayFault("array-size", text)
    return info


def _first_bytes(window: Window, member: ZipMember, count: int) -> bytes:
    if member.method == STORED:
        return window.read(member.offset, min(count, member.size))
    packed = window.read(member.offset, min(member.compressed, count + 512))
    try:
        return zlib.decompressobj(-15).decompress(packed, count)
    except zlib.error as error:
        raise ArrayFault("array-corrupt", f"its compressed bytes are damaged: {error}") from error


def read_member(window: Window, member: Member) -> Array:
    """The values of one array, its checksum verified; native byte order, C order, writable.

    Raises:
        ArrayFault: damaged or larger than a sample's array may be.
    """
    info, where = member.info, member.zip
    if info.nbytes > limits.ARRAY_BYTES:
        raise ArrayFault("array-bomb", f"{info} takes {info.nbytes:,} bytes; at most {limits.ARRAY_BYTES:,} are read")
    content = window.read(where.offset, where.compressed)
    if where.method == DEFLATED:
        content = _inflate(content, where.size)
    if len(content) != where.size:
        raise ArrayFault("array-size", f"the file ends within the array: {len(content):,} of {where.size:,} bytes")
    if where.crc != -1 and zlib.crc32(content) != where.crc:
        raise ArrayFault("array-corrupt", f"the checksum of {info} is wrong: bytes were changed", offset=where.offset)
    return as_array(content[info.start :] if where.method == DEFLATED else memoryview(content)[info.start :], info)


def read_row(window: Window, member: Member, row: int) -> Array:
    """One entry of the first axis of a seekable array. Only its bytes are read, so the checksum is not looked at.

    Raises:
        ArrayFault: too large, or the file ends before.
    """
    info = member.info.row
    if info.nbytes > limits.ARRAY_BYTES:
        raise ArrayFault("array-bomb", f"a row {info} takes {info.nbytes:,} bytes; at most {limits.ARRAY_BYTES:,}")
    content = window.read(member.zip.offset + member.info.start + row * info.nbytes, info.nbytes)
    if len(content) != info.nbytes:
        raise ArrayFault("array-size", f"the file ends within row {row}")
    return as_array(content, info)


def _inflate(packed: bytes, size: int) -> bytes:
    stream = zlib.decompressobj(-15)
    try:
        content = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise ArrayFault("array-corrupt", f"its compressed bytes are damaged: {error}") from error
    if len(content) != size or not stream.eof:
        raise ArrayFault("array-corrupt", f"its compressed bytes do not unpack to the {size:,} bytes they should")
    return content


def as_array(content: bytes | memoryview, info: ArrayInfo) -> Array:
    """Plain values from an array's bytes: shaped, in native byte order, row by row, writable."""
    flat: Array = np.frombuffer(content, dtype=np.dtype(info.descr))
    shaped = flat.reshape(info.shape, order="F" if info.fortran else "C")
    if info.dtype == "bool":
        shaped = shaped.view(np.uint8) != 0  # a byte of 2 is not a bool, and breaks what trusts it to be one
    try:
        return np.array(shaped, dtype=shaped.dtype.newbyteorder("="), order="C", copy=True)
    except (ValueError, UnicodeError) as error:
        raise ArrayFault("array-corrupt", f"its text is not valid: {error}") from error


def check_crc(window: Window, member: Member) -> None:
    """Verify the checksum of a stored array of any size, a piece at a time.

    Raises:
        ArrayFault: the bytes are not those that were written.
    """
    crc, where = 0, member.zip
    for at in range(0, where.size, _CHUNK):
        crc = zlib.crc32(window.read(where.offset + at, min(_CHUNK, where.size - at)), crc)
    if where.crc not in (-1, crc):
        raise ArrayFault("array-corrupt", f"the checksum of {member.info} is wrong: bytes were changed")


def read_arrays(window: Window, members: Mapping[str, Member]) -> dict[str, Array]:
    """The values of the arrays of one file, together within the limit of one array.

    Raises:
        ArrayFault: see `read_member`; the fault names the array.
    """
    total = sum(member.info.nbytes for member in members.values())
    if total > limits.ARRAY_BYTES:
        raise ArrayFault("array-bomb", f"its arrays take {total:,} bytes together; at most {limits.ARRAY_BYTES:,}")
    arrays = {}
    for name, member in members.items():
        with naming(name):
            arrays[name] = read_member(window, member)
    return arrays


@contextmanager
def naming(array: str) -> Iterator[None]:
    """Put the name of the array into a fault raised within."""
    try:
        yield
    except ArrayFault as fault:
        raise ArrayFault(str(fault.code), fault.what, field=array, offset=fault.place.offset) from fault


def read_npz(path: str | Path) -> dict[str, Array]:
    """Every array of a `.npz` file, by name.

    Raises:
        ArrayFault: a `DataError` with code and place; nothing is allocated before all headers agree.
    """
    try:
        with opened(path) as window:
            found = scan(window)
            if found.fatal is not None:
                raise found.fatal
            return read_arrays(window, found.members)
    except ArrayFault as fault:
        raise fault.at(str(path)) from fault.__cause__
