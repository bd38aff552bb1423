# SPDX-License-Identifier: Apache-2.0
"""Listing the members of a zip archive strictly: what the directory says must agree with what the file holds.

Python's `zipfile` builds an object a member and forgives much; reading thousands of small archives needs the
opposite. Nothing is guessed: an archive with two possible readings is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.member_names import unsafe_name
from fewbit.data.arrays.window import Window

STORED, DEFLATED = 0, 8

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LENGTHS = struct.Struct("<2H")
_WIDE = struct.Struct("<2H2Q")
_FULL16, _FULL32, _FULL64 = 0xFFFF, 0xFFFFFFFF, b"\xff" * 8
_OTHERS = {
    b"pk\x03\x04": "the beginning of an archive; the rest is missing",
    b"\x93numpy": "one array and no archive; give the file the suffix .npy",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"version https://git-lfs": "a Git LFS pointer and not the file itself; run `git lfs pull`",
    b"<": "a web page or XML, perhaps saved in place of the download",
}
_DIRECTORY_BYTES = 16 << 20
_LOOK = 1024


@dataclass(slots=True)
class ZipMember:
    """One member: its name and where its bytes are.

    Args:
        name: as stored.
        method: 0 stored, 8 deflated.
        crc: CRC-32 of the uncompressed bytes.
        compressed: bytes in the file.
        size: bytes when unpacked.
        offset: first byte of the data, from the start of the archive.
    """

    name: str
    method: int
    crc: int
    compressed: int
    size: int
    offset: int


def _broken(message: str, offset: int | None = None) -> ArrayFault:
    return ArrayFault("archive-broken", message, offset=offset)


def _unsafe(message: str, name: str) -> ArrayFault:
    return ArrayFault("archive-unsafe", message, field=name.removesuffix(".npy"))


def list_members(window: Window) -> list[ZipMember]:
    """Every member in the order of the directory, each checked against its own local header.

    Raises:
        ArrayFault: the archive is cut short, contradicts itself, or has members that are encrypted, doubled,
            overlapping or named as paths.

    Cost: three small reads and one a member; none at all beyond the first for an archive below 64 KiB.
    """
    directory, start = _directory(window)
    members: list[ZipMember] = []
    spans: list[tuple[int, int]] = []
    names: set[str] = set()
    for member, header_at, entry, raw in _central(directory, start):
        if member.name in names:
            raise _unsafe(f"two members are called {member.name!r}", member.name)
        names.add(member.name)
        member.offset = _data_offset(window, member, header_at, entry, raw)
        spans.append((header_at, member.offset + member.compressed))
        members.append(member)
    _no_overlap(spans, start)
    return members


def _directory(window: Window) -> tuple[bytes, int]:
    """The bytes of the central directory and where they begin."""
    if window.size < 22:
        raise _broken("is empty" if not window.size else f"has {window.size} bytes, too few for an archive")
    at, tail, tail_at = _find_end(window)
    _, disk, first, here, count, size, start, _ = _END.unpack_from(tail, at - tail_at)
    stop = at
    if count == _FULL16 or size == _FULL32 or start == _FULL32:
        count, size, start, stop = _zip64_end(window, at, (count, size, start))
    elif disk or first or here != count:
        raise _broken("is one part of an archive in several", at)
    if start + size != stop:
        raise _broken("its directory does not lie where the archive's end says; bytes were lost or added", at)
    if size > _DIRECTORY_BYTES or count * _CENTRAL.size > size:
        raise _broken(f"its end claims {count:,} members in a directory of {size:,} bytes", at)
    data = tail[start - tail_at : stop - tail_at] if start >= tail_at else window.read(start, size)
    if len(data) != size:
        raise _broken("its directory is cut short", start)
    return data, start


def _find_end(window: Window) -> tuple[int, bytes, int]:
    tail_at = max(0, window.size - _LOOK)
    tail = window.read(tail_at, _LOOK)
    if tail[-22:-18] == b"PK\x05\x06" and tail[-2:] == b"\0\0":
        return tail_at + len(tail) - 22, tail, tail_at
    tail_at = max(0, window.size - _FULL16 - 22)
    tail = window.read(tail_at, _FULL16 + 22)
    found = tail.rfind(b"PK\x05\x06", 0, max(0, len(tail) - 18))
    if found < 0:
        raise _broken(_what_else(window.read(0, 40), window.size), window.size)
    if found + 22 + int.from_bytes(tail[found + 20 : found + 22], "little") != len(tail):
        raise _broken("has bytes after its end", tail_at + found)
    return tail_at + found, tail, tail_at


def _what_else(start: bytes, size: int) -> str:
    """What a file without an archive's end is, by its first bytes."""
    for magic, what in _OTHERS.items():
        if start.lstrip().lower().startswith(magic):
            return f"is {what}"
    return f"is not an archive: no end of directory found in {size:,} bytes"


def _zip64_end(window: Window, end: int, short: tuple[int, int, int]) -> tuple[int, int, int, int]:
    raw = window.read(end - 20, 20) if end >= 20 else b""
    if raw[:4] != b"PK\x06\x07":
        count, size, start = short
        if _FULL32 in (size, start):
            raise _broken("has no 64-bit end where its end calls for one", end)
        return count, size, start, end  # exactly 65,535 members, which needs no 64-bit form
    at = _LOCATOR.unpack(raw)[2]
    raw = window.read(at, 56) if at <= end - 76 else b""
    if len(raw) < 56 or raw[:4] != b"PK\x06\x06":
        raise _broken("its 64-bit end does not lie where it is said to", end)
    _, length, _, _, disk, first, here, count, size, start = _END64.unpack(raw)
    if disk or first or here != count or at + 12 + length != end - 20:
        raise _broken("its 64-bit end contradicts itself", at)
    for long, brief, full in zip((count, size, start), short, (_FULL16, _FULL32, _FULL32)):
        if brief not in (full, long):
            raise _broken("its 32-bit and 64-bit ends contradict one another", at)
    return count, size, start, at


def _central(directory: bytes, start: int) -> Iterator[tuple[ZipMember, int, bytes, bytes]]:
    """Each entry of the directory: the member, where its local header is, the entry's flags to sizes, its name."""
    at = 0
    end = len(directory)
    while at < end:
        if at + 46 > end or directory[at : at + 4] != b"PK\x01\x02":
            raise _broken("its directory is damaged", start + at)
        (_, _, _, flags, method, _, _, crc, compressed, size, named, extra, comment, _, _, _, offset) = (
            _CENTRAL.unpack_from(directory, at)
        )
        after = at + 46 + named + extra + comment
        if after > end:
            raise _broken("its directory is cut short", start + at)
        raw = directory[at + 46 : at + 46 + named]
        name = _name(raw, bool(flags & 0x800))
        if flags & 0x2041:
            raise _unsafe(f"member {name!r} is encrypted", name)
        if method not in (STORED, DEFLATED):
            raise _broken(f"member {name!r} is compressed by method {method}; only stored and deflate are read")
        if size == _FULL32 or compressed == _FULL32 or offset == _FULL32:
            field = _zip64_field(directory[at + 46 + named : at + 46 + named + extra], start + at)
            size, field = _wide(size, field)
            compressed, field = _wide(compressed, field)
            offset, field = _wide(offset, field)
        if method == STORED and size != compressed:
            raise _broken(f"member {name!r} is stored, yet {compressed:,} bytes are said to hold {size:,}")
        yield ZipMember(name, method, crc, compressed, size, 0), offset, directory[at + 8 : at + 28], raw
        at = after


@lru_cache(maxsize=1024)
def _name(raw: bytes, utf8: bool) -> str:
    try:
        name = raw.decode("utf-8" if utf8 or raw.isascii() else "cp437")
    except UnicodeDecodeError as error:
        raise _broken(f"a member's name is not valid UTF-8: {raw[:40]!r}") from error
    reason = unsafe_name(name)
    if reason:
        raise _unsafe(f"a member is called {name!r}: {reason}", name)
    return name


def _zip64_field(extra: bytes, at: int) -> bytes:
    while len(extra) >= 4:
        tag, length = struct.unpack_from("<HH", extra)
        if tag == 1:
            return extra[4 : 4 + length]
        extra = extra[4 + length :]
    raise _broken("a member's 64-bit sizes are missing", at)


def _wide(value: int, field: bytes) -> tuple[int, bytes]:
    if value != _FULL32:
        return value, field
    if len(field) < 8:
        raise _broken("a member's 64-bit sizes are cut short")
    return int.from_bytes(field[:8], "little"), field[8:]


def _data_offset(window: Window, member: ZipMember, at: int, entry: bytes, raw: bytes) -> int:
    """Where a member's data begins, once its local header agrees with the directory."""
    head = window.read(at, 512)
    if len(head) < 30 or head[:4] != b"PK\x03\x04":
        raise _broken(f"member {member.name!r} does not lie where the directory says", at)
    named, extra = _LENGTHS.unpack_from(head, 26)
    offset: int = at + 30 + named + extra
    if 30 + named + extra > len(head):
        head = window.read(at, 30 + named + extra)
    alike = head[30 : 30 + named] == raw
    if head[6:26] != entry:  # otherwise every field agrees, byte by byte
        wide = _WIDE.pack(1, 16, member.size, member.compressed)
        usual = head[6:18] == entry[:12] and head[18:26] == _FULL64 and head[30 + named : 50 + named] == wide
        alike = alike and (usual or _agrees(head, member, entry, at))
    if not alike:
        raise _broken(f"member {member.name!r} has one description in the directory and another beside its data", at)
    if offset + member.compressed > window.size:
        raise _broken(f"member {member.name!r} reaches beyond the end of the file", at)
    return offset


def _agrees(head: bytes, member: ZipMember, entry: bytes, at: int) -> bool:
    """Whether a local header says the same as the directory, in other bytes."""
    _, _, flags, method, _, _, crc, compressed, size, named, extra = _LOCAL.unpack_from(head)
    if size == _FULL32 or compressed == _FULL32:
        field = _zip64_field(head[30 + named : 30 + named + extra], at)
        size, field = _wide(size, field)
        compressed, field = _wide(compressed, field)
    later = bool(flags & 0x08)  # sizes follow the data; the header may leave them open
    same = (size, compressed, crc) == (member.size, member.compressed, member.crc)
    return head[6:10] == entry[:4] and method == member.method and (same or (later and not size))


def _no_overlap(spans: list[tuple[int, int]], directory_at: int) -> None:
    end = 0
    for start, stop in sorted(spans):
        if start < end:
            raise ArrayFault("archive-unsafe", "two members share bytes of the archive", offset=start)
        end = stop
    if end > directory_at:
        raise ArrayFault("archive-unsafe", "a member reaches into the archive's directory", offset=end)
