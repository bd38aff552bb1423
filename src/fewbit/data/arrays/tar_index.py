# SPDX-License-Identifier: Apache-2.0
"""Where the files of a plain `.tar` lie, so that they can be read in place: nothing is ever unpacked.

Links, devices and sparse files are passed over. A member of the index is a name, a first byte and a length, all
inside the file; an archive that says otherwise is refused at that point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.member_names import unsafe_name

_BLOCK = 512
_LONGEST_EXTRA = 64 << 10
_LONGEST_NAME = 1024


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One regular file inside a `.tar`."""

    name: str
    start: int
    size: int


def tar_entries(path: str | Path) -> Iterator[TarEntry]:
    """The regular files of a `.tar` in their order.

    Raises:
        ArrayFault: the archive is damaged from here on, or names a file outside itself.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            end = file.seek(0, 2)
            yield from _entries(file, end)
    except OSError as error:
        raise ArrayFault("unreadable", f"cannot be read: {error.strerror or error}") from error


def _entries(file: FileIO, end: int) -> Iterator[TarEntry]:
    at = 0
    extra: dict[str, str] = {}
    while at < end:
        header = _read(file, at, _BLOCK)
        if not header.strip(b"\0"):
            return
        if len(header) < _BLOCK or not _sum_agrees(header):
            raise ArrayFault("archive-broken", "is not a .tar from here on, or cut short", offset=at)
        kind, size = header[156:157], _number(header[124:136], at)
        if "size" in extra and kind in (b"0", b"\0"):
            size = int(extra["size"])
        start = at + _BLOCK
        if start + size > end:
            raise ArrayFault("archive-broken", f"ends within a member of {size:,} bytes", offset=at)
        if kind in (b"L", b"x", b"K", b"g"):
            extra |= _extra(kind, _read(file, start, size) if size <= _LONGEST_EXTRA else b"", at)
        else:
            if kind in (b"0", b"\0"):
                yield TarEntry(_name(header, extra, at), start, size)
            extra = {}
        at = start + -(-size // _BLOCK) * _BLOCK


def _read(file: FileIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _sum_agrees(header: bytes) -> bool:
    try:
        told = int(header[148:156].strip(b"\0 ") or b"0", 8)
    except ValueError:
        return False
    return told == sum(header[:148]) + sum(header[156:]) + 8 * 32


def _number(field: bytes, at: int) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        value = int(field.strip(b"\0 ") or b"0", 8)
    except ValueError:
        value = -1
    if value < 0:
        raise ArrayFault("archive-broken", f"a member's size is not a number: {field!r}", offset=at)
    return value


def _extra(kind: bytes, content: bytes, at: int) -> dict[str, str]:
    """What an extension header says about the next member: GNU long names, and `path` and `size` of pax."""
    if kind == b"L":
        return {"path": content.rstrip(b"\0").decode("utf-8", "replace")}
    found = {}
    while kind == b"x" and content:
        length, _, _ = content.partition(b" ")
        if not length.isdigit() or len(length) > 6 or not 0 < int(length) <= len(content):
            raise ArrayFault("archive-broken", "has a damaged extension header", offset=at)
        key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
        if key == b"path" or (key == b"size" and value.isdigit() and len(value) < 19):
            found[key.decode()] = value.decode("utf-8", "replace")
        content = content[int(length) :]
    return found


def _name(header: bytes, extra: dict[str, str], at: int) -> str:
    name = extra.get("path")
    if name is None:
        prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
        short = header[:100].split(b"\0")[0]
        name = (prefix + b"/" + short if prefix else short).decode("utf-8", "replace")
    name = name.removeprefix("./")
    reason = unsafe_name(name) or ("it is too long" if len(name) > _LONGEST_NAME else None)
    if reason:
        raise ArrayFault("archive-unsafe", f"a member is called {name[:80]!r}: {reason}", offset=at)
    return name
