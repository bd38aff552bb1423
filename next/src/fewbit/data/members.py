# SPDX-License-Identifier: Apache-2.0
"""Members of zip and tar archives: names and positions, from any positional reader.

`zipfile` and `tarfile` read the directories; here stands what they leave open. An archive with two possible readings is
refused: duplicate or overlapping members, names that lead out of the archive, a local header that contradicts the
directory. Nothing is extracted; links and devices are never followed.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fewbit.data.files import SPECIAL_FILE
from fewbit.data.types import IssueType, Severity
from fewbit.errors import plural

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
RATIO = 1000
RATIO_FROM = 256 << 20
"""Smaller members may expand by any factor: a mask of zeros deflates 1:1019."""
_MOST_MEMBERS = 50_000_000
_LONGEST_TAR_READ = 1 << 20
_END = struct.Struct("<4s4H2LH")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, NotImplementedError, struct.error, ValueError, OverflowError, IndexError,
    OSError, EOFError, RecursionError,
)  # fmt: skip
"""What `zipfile` and `tarfile` raise for bytes that are no archive."""

ARCHIVE_BROKEN = IssueType(
    "archive-broken", Severity.ERROR, "damaged or incomplete archive", "copy or download it again", "raise", ("drop",),
    "leaves the damaged part out",
)  # fmt: skip
ARCHIVE_UNSAFE = IssueType(
    "archive-unsafe", Severity.ERROR, "encrypted, duplicate, overlapping or path-like archive member",
    "use this archive only if you know who made it; write it again from the files", "raise", ("drop",),
    "leaves the member out",
)  # fmt: skip
ARCHIVE_CORRUPT = IssueType(
    "archive-corrupt", Severity.ERROR, "bytes in an archive or .npz file that fail their checksum",
    "copy, download or write the file again", "raise", ("drop",), "leaves the file out", aliases=("array-corrupt",),
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
    "archive-end", Severity.WARNING, "archive that continues after its end mark",
    "check that no two archives were joined",
)  # fmt: skip
ARCHIVE_CUT = IssueType(
    "archive-cut", Severity.ERROR, "tar archive without an end mark, so its end may be missing",
    "copy it again; if it is complete, {on_error=archive-cut=keep}", "raise", ("keep",),
)  # fmt: skip
ISSUES = (ARCHIVE_BROKEN, ARCHIVE_UNSAFE, ARCHIVE_CORRUPT, EXPANSION_BOMB, ARCHIVE_LINK, ARCHIVE_CUT, ARCHIVE_END)

ReadAt = Callable[[int, int], bytes]
"""`read_at(offset, count)`: fewer bytes only at the end."""
Problem = Callable[[IssueType, str, str], None]
"""`problem(type, message, member)`: reports an issue of one member, which is then left out."""


class ArchiveError(Exception):
    """An archive, or one member, that cannot be read."""

    def __init__(self, kind: IssueType, message: str, offset: int | None = None):
        super().__init__(message)
        self.type, self.message, self.offset = kind, message, offset


@dataclass(slots=True)
class Member:
    """One regular file of an archive, or a folder, whose name then ends with `/`.

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


def zip_members(read_at: ReadAt, size: int, problem: Problem) -> list[Member]:
    """Every readable member of a zip, in the order of its directory.

    Args:
        read_at: positional reader.
        size: bytes of the archive.
        problem: reports issues of single members.

    Raises:
        ArchiveError: there is no consistent directory.
    """
    try:
        archive = zipfile.ZipFile(_Reader(read_at, size))  # type: ignore[arg-type]
    except _DAMAGED as error:
        message = describe_wrong_file(read_at(0, 64), size, "a zip archive")
        raise ArchiveError(ARCHIVE_BROKEN, message if "is not" not in message else f"{message}: {error}") from error
    entries = archive.infolist()
    _check_end(read_at, size, archive, len(entries))
    members: dict[str, Member] = {}
    for entry in entries:
        name = entry.orig_filename
        compressed, offset = entry.compress_size, entry.header_offset
        member = Member(name, offset, entry.file_size, compressed, entry.compress_type, entry.CRC, entry.flag_bits)
        kind, reason = _refusal(entry)
        if name in members:
            kind, reason = ARCHIVE_UNSAFE, "two members have this name"
        if reason:
            problem(kind, reason, name)
        else:
            members[name] = member
    for name, kind, reason in _overlaps(list(members.values()), archive.start_dir):
        problem(kind, reason, name)
        del members[name]
    return list(members.values())


def zip_data_offset(read_at: ReadAt, member: Member) -> int:
    """Where the data of a zip member begins; its local header must say the same as the directory.

    Raises:
        ArchiveError: they differ.
    """
    name = _stored_name(member)
    header = read_at(member.offset, _LOCAL.size + len(name))
    if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
        raise ArchiveError(ARCHIVE_BROKEN, "its data are not where the directory says", member.offset)
    _, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = _LOCAL.unpack_from(header)
    wide = _FULL32 in (size, compressed)  # then the sizes are in the extra field
    same_content = crc == member.crc and (wide or (compressed, size) == (member.compressed, member.size))
    follows = bool(flags & 8) and not crc and (wide or not size)  # behind the data of an archive written as a stream
    same = (flags, method, name_length, header[_LOCAL.size :]) == (member.flags, member.method, len(name), name)
    if not same or not (same_content or follows):
        raise ArchiveError(ARCHIVE_UNSAFE, "its local header differs from the directory", member.offset)
    return member.offset + _LOCAL.size + int(name_length) + int(extra_length)


def member_content(read_at: ReadAt, member: Member, start: int) -> bytes:
    """All bytes of a member whose data begin at `start`; no more than it claims is ever decompressed.

    Raises:
        ArchiveError: they are damaged.
    """
    content = read_at(start, member.compressed)
    if member.method != STORED:
        inflater = zlib.decompressobj(-15)
        try:
            content = inflater.decompress(content, member.size + 1)
        except zlib.error as error:
            raise ArchiveError(ARCHIVE_CORRUPT, "damaged compressed data") from error
    if len(content) != member.size:
        more = len(content) > member.size
        message = "does not decompress to" if more or member.method != STORED else "is cut off before"
        raise ArchiveError(ARCHIVE_CORRUPT, f"{message} the {member.size:,} bytes it claims")
    if member.crc >= 0 and zlib.crc32(content) != member.crc:
        raise ArchiveError(ARCHIVE_CORRUPT, "the checksum differs")
    return content


def tar_members(read_at: ReadAt, size: int, problem: Problem) -> Iterator[Member]:
    """Every regular file of a tar; what is complete before a damaged header is still given.

    Args:
        read_at: positional reader.
        size: bytes of the archive.
        problem: reports issues of single members, and where the archive is cut.

    Raises:
        ArchiveError: it does not begin like a tar.
    """
    reader: Any = _Reader(read_at, size, _LONGEST_TAR_READ)
    try:
        archive = tarfile.TarFile(fileobj=reader, encoding="utf-8", errors="surrogateescape")
    except _DAMAGED as error:
        message = describe_wrong_file(read_at(0, 512), size, "a tar archive")
        raise ArchiveError(ARCHIVE_BROKEN, message, 0) from error
    position = -1
    for _ in range(_MOST_MEMBERS):
        try:
            entry = archive.next()
        except _DAMAGED:
            problem(ARCHIVE_BROKEN, f"a damaged header at byte {archive.offset:,}; the rest is not read", "")
            return
        if entry is None:
            _check_tar_end(read_at, archive.offset, problem)
            return
        archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps them all
        if entry.size < 0 or archive.offset <= position:
            problem(ARCHIVE_BROKEN, f"a damaged size at byte {entry.offset:,}; the rest is not read", "")
            return
        position = archive.offset
        if entry.isreg() and entry.offset_data + entry.size > size:
            problem(ARCHIVE_BROKEN, f"cut off inside {entry.name!r}", entry.name)
            return
        if entry.issym() or entry.islnk():
            problem(ARCHIVE_LINK, "not followed", entry.name)
        elif entry.isdev():
            problem(SPECIAL_FILE, "a FIFO or device", entry.name)
        elif entry.issparse():
            problem(ARCHIVE_BROKEN, "a sparse file, which is not read", entry.name)
        elif reason := unsafe_name(entry.name):
            problem(ARCHIVE_UNSAFE, reason, entry.name)
        elif entry.isdir():
            yield Member(f"{entry.name}/", 0, 0, 0)
        elif entry.isreg():
            yield Member(entry.name, entry.offset_data, entry.size, entry.size)
    problem(ARCHIVE_BROKEN, f"more than {plural(_MOST_MEMBERS, 'member')}", "")


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


def describe_wrong_file(start: bytes, size: int, expected: str) -> str:
    """What a file is instead of an archive, by its first bytes."""
    if not size:
        return "is empty"
    text = start.lstrip().lower()
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


class _Reader:
    """A file object for `zipfile` and `tarfile`: no read allocates more than there is, whatever a header claims."""

    def __init__(self, read_at: ReadAt, size: int, limit: int | None = None):
        self._read_at, self._size, self._limit, self._position = read_at, size, limit or size, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, self._size)[whence]
        if position < 0:
            raise OSError(f"position {position}")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> bytes:
        remaining = max(self._size - self._position, 0)
        content = self._read_at(self._position, min(remaining if count < 0 else count, remaining, self._limit))
        self._position += len(content)
        return content


def _check_end(read_at: ReadAt, size: int, archive: zipfile.ZipFile, count: int) -> None:
    """Refuse what `zipfile` tolerates: bytes before or after the archive, a wrong number of members."""
    position = size - _END.size - len(archive.comment)
    mark, _, _, _, stored_count, _, start, _ = _END.unpack(read_at(position, _END.size))
    message = ""
    if mark != b"PK\x05\x06":
        message = "has bytes after its end"
    elif start not in (_FULL32, archive.start_dir):
        message = "its directory is not where its end says; bytes were lost or added"
    elif stored_count not in (_FULL16, count):
        message = f"its end claims {plural(stored_count, 'member')} of {count:,}"
    elif any(entry.header_offset < 0 for entry in archive.infolist()):
        message = "its two ends contradict each other"
    if message:
        raise ArchiveError(ARCHIVE_BROKEN, message, position)


def _refusal(entry: zipfile.ZipInfo) -> tuple[IssueType, str]:
    """Why a member of a zip cannot be used; an empty reason if it can."""
    mode = entry.external_attr >> 16 if entry.create_system == 3 else 0
    packed, size = entry.compress_size, entry.file_size
    if entry.flag_bits & 0x2041:
        return ARCHIVE_UNSAFE, "it is encrypted"
    if stat.S_ISLNK(mode):
        return ARCHIVE_LINK, "not followed"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR) or (stat.S_ISDIR(mode) and size):
        return SPECIAL_FILE, "a folder, FIFO or device with content"
    if entry.compress_type not in (STORED, DEFLATED):
        return ARCHIVE_BROKEN, f"compressed with method {entry.compress_type}; only stored and deflate are read"
    if entry.compress_type == STORED and size != packed:
        return ARCHIVE_BROKEN, f"{packed:,} bytes claim to store {size:,}"
    if size > RATIO_FROM and size > RATIO * max(packed, 1):
        return EXPANSION_BOMB, f"{packed:,} bytes claim to hold {size:,}"
    return ARCHIVE_UNSAFE, unsafe_name(entry.orig_filename)


def _overlaps(members: list[Member], directory_start: int) -> Iterator[tuple[str, IssueType, str]]:
    """Members that share bytes with another: a few bytes would expand to petabytes."""
    end = 0
    for member in sorted(members, key=lambda member: member.offset):
        if member.offset < end:
            yield member.name, ARCHIVE_UNSAFE, "it shares bytes with another member"
            continue
        end = member.offset + _LOCAL.size + len(_stored_name(member)) + member.compressed
        if end > directory_start:
            yield member.name, ARCHIVE_BROKEN, "it reaches beyond the archive's data"


def _stored_name(member: Member) -> bytes:
    return member.name.encode("utf-8" if member.flags & 0x800 else "cp437")


def _check_tar_end(read_at: ReadAt, position: int, problem: Problem) -> None:
    """`tarfile` takes a damaged header for the end."""
    end = read_at(position, 21 * tarfile.BLOCKSIZE)
    mark, rest = end[: tarfile.BLOCKSIZE], end[tarfile.BLOCKSIZE :]
    if not end:
        problem(ARCHIVE_CUT, f"ends at byte {position:,} without an end mark", "")
    elif len(mark) < tarfile.BLOCKSIZE or mark.strip(b"\0"):
        problem(ARCHIVE_BROKEN, f"a damaged header at byte {position:,}; the rest is not read", "")
    elif rest.strip(b"\0"):
        problem(ARCHIVE_END, f"continues after its end mark at byte {position:,}", "")
