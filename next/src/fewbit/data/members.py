# SPDX-License-Identifier: Apache-2.0
"""Members of zip and tar archives: names and positions, read strictly from any positional reader.

An archive with two possible readings is refused: duplicate or overlapping members, names that lead out of the archive,
a local header that contradicts the directory. Nothing is extracted; links and devices are never followed.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from fewbit.data.files import SPECIAL_FILE
from fewbit.data.types import IssueType, Severity
from fewbit.errors import plural

STORED, DEFLATED = 0, 8
RATIO = 1000
RATIO_FROM = 256 << 20
"""Smaller members may expand by any factor: a mask of zeros deflates 1:1019."""

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s2B5H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_BLOCK = 512
_LONGEST_NAME = 1 << 20
_MOST_MEMBERS = 50_000_000

ARCHIVE_BROKEN = IssueType(
    "archive-broken", Severity.ERROR, "damaged or incomplete archive", "copy or download it again", "raise", ("drop",),
    "leaves the damaged part out",
)  # fmt: skip
ARCHIVE_UNSAFE = IssueType(
    "archive-unsafe", Severity.ERROR, "encrypted, duplicate, overlapping or path-like archive member",
    "use this archive only if you know who made it; write it again from the files", "raise", ("drop",),
    "leaves the member out",
)  # fmt: skip
EXPANSION_BOMB = IssueType(
    "expansion-bomb", Severity.ERROR, "compressed file that expands beyond reason",
    "decompress and inspect it yourself", "raise", ("drop",), "leaves it out",
)  # fmt: skip
ARCHIVE_LINK = IssueType(
    "archive-link", Severity.WARNING, "link inside an archive, which is not followed",
    "store the file itself: tar --dereference --hard-dereference, or zip without -y", fix="leaves the link out",
)  # fmt: skip
ARCHIVE_END = IssueType(
    "archive-end", Severity.WARNING, "archive that ends without an end mark or continues after it",
    "check that it was copied completely, and that no two archives were joined",
)  # fmt: skip
ISSUES = (ARCHIVE_BROKEN, ARCHIVE_UNSAFE, EXPANSION_BOMB, ARCHIVE_LINK, ARCHIVE_END)

ReadAt = Callable[[int, int], bytes]
"""`read_at(offset, count)`: fewer bytes only at the end."""
Problem = Callable[[IssueType, str, str], None]
"""`problem(type, message, member)`: reports an issue of one member, which is then left out."""


class ArchiveError(Exception):
    """An archive that cannot be read at all."""

    def __init__(self, kind: IssueType, message: str, offset: int | None = None):
        super().__init__(message)
        self.type, self.message, self.offset = kind, message, offset


@dataclass(slots=True)
class Member:
    """One regular file of an archive.

    Args:
        name: as stored.
        offset: of the data in a tar, of the local header in a zip.
        size: bytes of the content.
        compressed: bytes in the archive.
        method: `STORED` or `DEFLATED`.
        crc: CRC-32 of the content; -1 in a tar, which has none.
        flags: of the zip entry.
    """

    name: str
    offset: int
    size: int
    compressed: int
    method: int = STORED
    crc: int = -1
    flags: int = 0


def unsafe_name(name: str) -> str:
    """Why a member's name must not be used as a path; empty if it may.

    >>> unsafe_name("a/b.png"), unsafe_name("a/../../b"), unsafe_name("C:\\\\x")
    ('', 'it leads out of the archive', 'it begins with a drive')
    """
    if "\0" in name:
        return "it contains NUL"
    path = name.replace("\\", "/")
    if path.startswith("/"):
        return "it is an absolute path"
    if ".." in path.split("/"):
        return "it leads out of the archive"
    return "it begins with a drive" if re.match(r"[A-Za-z]:/", path) else ""


def zip_members(read_at: ReadAt, size: int, problem: Problem) -> list[Member]:
    """Every readable member of a zip, in the order of its directory; two or three reads.

    Args:
        read_at: positional reader.
        size: bytes of the archive.
        problem: reports issues of single members.

    Raises:
        ArchiveError: there is no consistent directory.
    """
    directory, start = _directory(read_at, size)
    members: list[Member] = []
    names: set[str] = set()
    for member, reason, kind in _entries(directory, start):
        if reason:
            problem(kind, reason, member.name)
        elif member.name in names:
            problem(ARCHIVE_UNSAFE, "two members have this name", member.name)
        else:
            names.add(member.name)
            members.append(member)
    return _without_overlap(members, start, problem)


def zip_data_offset(read_at: ReadAt, member: Member) -> int:
    """Where the data of a zip member begins; its local header must say the same as the directory.

    Raises:
        ArchiveError: they differ.
    """
    raw_name = _encoded(member)
    header = read_at(member.offset, _LOCAL.size + len(raw_name) + 32)
    if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
        raise ArchiveError(ARCHIVE_BROKEN, "its data are not where the directory says", member.offset)
    _, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = _LOCAL.unpack_from(header)
    end = _LOCAL.size + name_length + extra_length
    if end > len(header):
        header = read_at(member.offset, end)
    if _FULL32 in (size, compressed):
        extra = header[_LOCAL.size + name_length : end]
        size, compressed, _ = _wide(extra, size, compressed, 0)
    follows = bool(flags & 8)  # then sizes follow the data, and the header may leave them open
    same = (crc, compressed, size) == (member.crc, member.compressed, member.size) or (follows and not size and not crc)
    if not same or flags != member.flags or method != member.method or header[30 : 30 + name_length] != raw_name:
        raise ArchiveError(ARCHIVE_UNSAFE, "its local header differs from the directory", member.offset)
    return member.offset + int(end)


def tar_members(read_at: ReadAt, size: int, problem: Problem) -> Iterator[Member]:
    """Every regular file of a tar, one small read each; what is complete before a damaged header is still given.

    Args:
        read_at: positional reader.
        size: bytes of the archive.
        problem: reports issues of single members, and where the archive is cut.

    Raises:
        ArchiveError: it does not begin like a tar.
    """
    position = 0
    pax: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for _ in range(_MOST_MEMBERS):
        header = read_at(position, _BLOCK)
        if not header and position:
            problem(ARCHIVE_END, "has no end mark; perhaps it was cut", "")
            return
        if not header.strip(b"\0") and len(header) == _BLOCK:
            if read_at(position + _BLOCK, 20 * _BLOCK).strip(b"\0"):
                problem(ARCHIVE_END, f"continues after its end mark at byte {position:,}", "")
            return
        reason = _bad_header(header)
        if reason and position == 0:
            raise ArchiveError(ARCHIVE_BROKEN, describe_wrong_file(header, size, "a tar archive"), 0)
        if reason:
            problem(ARCHIVE_BROKEN, f"{reason} at byte {position:,}; the rest is not read", "")
            return
        kind = header[156:157]
        try:
            length = int(pax["size"]) if "size" in pax and kind not in b"xgLK" else _number(header[124:136])
        except ValueError:
            problem(ARCHIVE_BROKEN, f"a damaged size at byte {position:,}; the rest is not read", "")
            return
        data = position + _BLOCK
        position = data + -(-length // _BLOCK) * _BLOCK
        if length < 0 or data + length > size:
            problem(ARCHIVE_BROKEN, f"cut off inside {_tar_name(header, pax)!r}", _tar_name(header, pax))
            return
        if kind in b"xgL":
            if length > _LONGEST_NAME:
                problem(ARCHIVE_BROKEN, f"a header of {length:,} bytes; the rest is not read", "")
                return
            content = read_at(data, length)
            fields = {"path": _text(content.rstrip(b"\0"))} if kind == b"L" else _pax_fields(content)
            defaults, pax = (defaults | fields, pax) if kind == b"g" else (defaults, pax | fields)
            continue
        if kind == b"K":  # the long target of a link, which is not followed
            continue
        name, fields, pax = _tar_name(header, defaults | pax), pax, {}
        if kind in (b"1", b"2"):
            problem(ARCHIVE_LINK, "not followed", name)
        elif kind in (b"3", b"4", b"6"):
            problem(SPECIAL_FILE, "a FIFO or device", name)
        elif kind == b"S" or any(key.startswith("GNU.sparse") for key in fields):
            problem(ARCHIVE_BROKEN, "a sparse file, which is not read", name)
        elif reason := unsafe_name(name):
            problem(ARCHIVE_UNSAFE, reason, name)
        elif kind in (b"0", b"\0", b"7") and not name.endswith("/"):
            yield Member(name, data, length, length)
    problem(ARCHIVE_BROKEN, f"more than {plural(_MOST_MEMBERS, 'member')}", "")


def describe_wrong_file(start: bytes, size: int, expected: str) -> str:
    """What a file is instead of an archive, by its first bytes."""
    text = start.lstrip().lower()
    if not size:
        return "is empty"
    for magic, description in _OTHERS.items():
        if text.startswith(magic):
            return f"is {description}"
    return f"is not {expected}, or its end is missing ({size:,} bytes)"


_OTHERS = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself; run `git lfs pull`",
    b"<": "a web page or XML, perhaps saved instead of the download",
    b"pk\x03\x04": "the beginning of a zip archive; the rest is missing",
    b"\x93numpy": "one array, not an archive; give the file the suffix .npy",
    b"\x1f\x8b": "compressed with gzip; decompress it first",
    b"(\xb5/\xfd": "compressed with zstd; decompress it first",
    b"7z\xbc\xaf": "a 7z archive; write it again as zip or tar",
    b"rar!": "a RAR archive; write it again as zip or tar",
}


def _broken(message: str, offset: int | None = None) -> NoReturn:
    raise ArchiveError(ARCHIVE_BROKEN, message, offset)


def _directory(read_at: ReadAt, size: int) -> tuple[bytes, int]:
    """The bytes of the central directory, and where they begin."""
    if size < _END.size:
        _broken(describe_wrong_file(read_at(0, 64), size, "a zip archive"))
    tail_start = max(0, size - 1024)
    tail = read_at(tail_start, size - tail_start)
    if tail[-22:-18] != b"PK\x05\x06" or tail[-2:] != b"\0\0":  # otherwise there is no comment, as in most archives
        tail_start = max(0, size - _FULL16 - _END.size)
        tail = read_at(tail_start, size - tail_start)
    end_start = tail.rfind(b"PK\x05\x06", 0, max(0, len(tail) - 18))
    if end_start < 0:
        _broken(describe_wrong_file(read_at(0, 64), size, "a zip archive"))
    if end_start + _END.size + int.from_bytes(tail[end_start + 20 : end_start + 22], "little") != len(tail):
        _broken("has bytes after its end", tail_start + end_start)
    _, disk, first, disk_count, count, length, start, _ = _END.unpack_from(tail, end_start)
    end = stop = tail_start + end_start
    if count == _FULL16 or _FULL32 in (length, start):
        count, length, start, stop = _zip64_end(read_at, end, count, length, start)
    elif disk or first or disk_count != count:
        _broken("is one part of an archive in several parts", end)
    if start + length != stop:
        _broken("its directory is not where its end says; bytes were lost or added", end)
    if count * _CENTRAL.size > length:
        _broken(f"its end claims {plural(count, 'member')} in a directory of {length:,} bytes", end)
    directory = tail[start - tail_start : stop - tail_start] if start >= tail_start else read_at(start, length)
    if len(directory) != length:
        _broken("its directory is cut off", start)
    return directory, start


def _zip64_end(read_at: ReadAt, end: int, count: int, length: int, start: int) -> tuple[int, int, int, int]:
    locator = read_at(end - _LOCATOR.size, _LOCATOR.size) if end >= _LOCATOR.size else b""
    if locator[:4] != b"PK\x06\x07":
        if _FULL32 in (length, start):
            _broken("has no 64-bit end where one is needed", end)
        return count, length, start, end  # exactly 65,535 members
    record_start = _LOCATOR.unpack(locator)[2]
    record = read_at(record_start, _END64.size) if record_start <= end - _LOCATOR.size - _END64.size else b""
    if len(record) < _END64.size or record[:4] != b"PK\x06\x06":
        _broken("its 64-bit end is not where it should be", end)
    _, record_length, _, _, disk, first, disk_count, count64, length64, start64 = _END64.unpack(record)
    if disk or first or disk_count != count64 or record_start + 12 + record_length != end - _LOCATOR.size:
        _broken("its 64-bit end contradicts itself", record_start)
    pairs = ((count, count64, _FULL16), (length, length64, _FULL32), (start, start64, _FULL32))
    if any(short not in (full, long) for short, long, full in pairs):
        _broken("its 32-bit and 64-bit ends contradict each other", record_start)
    return count64, length64, start64, record_start


def _entries(directory: bytes, start: int) -> Iterator[tuple[Member, str, IssueType]]:
    """Each file of the directory, with the reason why it cannot be used, if any."""
    position, end = 0, len(directory)
    while position < end:
        if position + _CENTRAL.size > end or directory[position : position + 4] != b"PK\x01\x02":
            _broken("its directory is damaged", start + position)
        entry = _CENTRAL.unpack_from(directory, position)
        _, _, system, _, flags, method, _, _, crc, compressed, size = entry[:11]
        name_length, extra_length, comment_length, _, _, attributes, offset = entry[11:]
        name_start = position + _CENTRAL.size
        extra_start = name_start + name_length
        position = extra_start + extra_length + comment_length
        if position > end:
            _broken("its directory is cut off", start + name_start)
        raw = directory[name_start:extra_start]
        reason, kind = "", ARCHIVE_UNSAFE
        try:
            name = raw.decode("utf-8" if flags & 0x800 or raw.isascii() else "cp437")
        except UnicodeDecodeError:
            name, reason = raw.decode("utf-8", "backslashreplace"), "its name is not valid UTF-8"
        if _FULL32 in (size, compressed, offset):
            size, compressed, offset = _wide(
                directory[extra_start : extra_start + extra_length], size, compressed, offset
            )
        if name.endswith("/") and not size:
            continue
        mode = attributes >> 16 if system == 3 else 0
        if flags & 0x2041:
            reason = "it is encrypted"
        elif stat.S_ISLNK(mode):
            reason, kind = "not followed", ARCHIVE_LINK
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            reason, kind = "a folder, FIFO or device with content", SPECIAL_FILE
        elif method not in (STORED, DEFLATED):
            reason, kind = f"compressed with method {method}; only stored and deflate are read", ARCHIVE_BROKEN
        elif method == STORED and size != compressed:
            reason, kind = f"{compressed:,} bytes claim to store {size:,}", ARCHIVE_BROKEN
        elif size > RATIO_FROM and size > RATIO * max(compressed, 1):
            reason, kind = f"{compressed:,} bytes claim to hold {size:,}", EXPANSION_BOMB
        yield Member(name, offset, size, compressed, method, crc, flags), reason or unsafe_name(name), kind


def _wide(extra: bytes, size: int, compressed: int, offset: int) -> tuple[int, int, int]:
    """64-bit values of the extra field, for those that do not fit into 32 bits."""
    field = b""
    while len(extra) >= 4:
        tag, length = struct.unpack_from("<2H", extra)
        if tag == 1:
            field = extra[4 : 4 + length]
            break
        extra = extra[4 + length :]
    values = []
    for value in (size, compressed, offset):
        if value == _FULL32:
            if len(field) < 8:
                _broken("the 64-bit sizes of a member are missing")
            value, field = int.from_bytes(field[:8], "little"), field[8:]
        values.append(value)
    return values[0], values[1], values[2]


def _without_overlap(members: list[Member], directory_start: int, problem: Problem) -> list[Member]:
    """Members that share no byte with another; a few bytes expand to petabytes where they may."""
    refused = set()
    end = 0
    for member in sorted(members, key=lambda member: member.offset):
        if member.offset < end:
            problem(ARCHIVE_UNSAFE, "it shares bytes with another member", member.name)
            refused.add(member.name)
            continue
        end = member.offset + _LOCAL.size + len(_encoded(member)) + member.compressed
        if end > directory_start:
            problem(ARCHIVE_BROKEN, "it reaches beyond the archive's data", member.name)
            refused.add(member.name)
    return [member for member in members if member.name not in refused] if refused else members


def _encoded(member: Member) -> bytes:
    return member.name.encode("utf-8" if member.flags & 0x800 or member.name.isascii() else "cp437")


def _bad_header(header: bytes) -> str:
    if len(header) < _BLOCK:
        return "cut off inside a header"
    try:
        claimed = _number(header[148:156])
    except ValueError:
        return "a damaged header"
    blanked = header[:148] + b" " * 8 + header[156:]
    signed = sum(blanked) - 256 * sum(byte > 127 for byte in blanked) if claimed != sum(blanked) else claimed
    return "" if claimed in (signed, sum(blanked)) else "a damaged header"


def _number(field: bytes) -> int:
    """Octal text, or a big-endian number behind a mark byte."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big", signed=field[0] == 0xFF)
    text = field.split(b"\0", 1)[0].strip() or b"0"
    if not re.fullmatch(rb"[0-7]+", text):
        raise ValueError(text)
    return int(text, 8)


def _tar_name(header: bytes, pax: dict[str, str]) -> str:
    if "path" in pax:
        return pax["path"]
    name = _text(header[:100].split(b"\0", 1)[0])
    prefix = _text(header[345:500].split(b"\0", 1)[0]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _pax_fields(content: bytes) -> dict[str, str]:
    """Records `length key=value` of a pax header; damaged ones end it."""
    fields, position = {}, 0
    while match := re.compile(rb"(\d{1,7}) ([^=\n]+)=").match(content, position):
        end = position + int(match[1])
        if end <= match.end() or end > len(content):
            break
        fields[_text(match[2])] = _text(content[match.end() : end - 1])
        position = end
    return fields


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
