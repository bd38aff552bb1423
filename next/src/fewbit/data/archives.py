# SPDX-License-Identifier: Apache-2.0
"""Zip and tar archives behind the `Files` protocol: read in place, nothing is extracted.

A format sees an archive as a folder: the same names in the same order. An archive can be in any `Files`,
so one behind a URL is read by ranges. Compressed tars, which allow no random access, are decompressed once.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

from fewbit.data import members as _members
from fewbit.data.files import FILE_UNREADABLE, Folder, folder_order
from fewbit.data.members import (
    ARCHIVE_BROKEN,
    ARCHIVE_UNSAFE,
    EXPANSION_BOMB,
    STORED,
    ArchiveError,
    Member,
    member_content,
    tar_members,
    zip_data_offset,
    zip_members,
)
from fewbit.data.splits import split_of_folder
from fewbit.data.streams import Handle, InflateStream, StoredStream
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import DataError, plural

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
SHARD_MISSING = IssueType(
    "shard-missing", Severity.ERROR, "missing file of a pattern", "correct the range of the pattern", "raise", ("drop",)
)
ISSUES = (*_members.ISSUES, SHARD_MISSING)

_IN_MEMORY_BYTES = 16 << 20
"""Members up to this size are read into memory, checksum included; larger ones as a stream."""
_BUFFER = 1 << 16
_ROLE_FOLDERS = frozenset(("images", "labels", "annotations", "masks", "jpegimages"))


def is_archive(name: str) -> bool:
    """Whether a file is an archive of a dataset, by its suffix; `.npz` and `.xlsx` are zips too, but one file each.

    >>> is_archive("a.ZIP"), is_archive("a.tar.gz"), is_archive("a.npz")
    (True, True, False)
    """
    return name.lower().endswith(SUFFIXES)


def open_archive(files: Files, name: str, root: str, report: DataReport) -> Archive:
    """The files inside one archive.

    Args:
        files: where the archive is.
        name: of the archive there.
        root: how the user named it.
        report: takes issues of single members.

    Raises:
        DataError: it cannot be read at all.
    """
    shown = root if "://" in root else name
    try:
        if not name.lower().endswith((".zip", ".tar")):
            files, name = _decompressed(files, name)
        return Archive(files, name, root, shown, report)
    except ArchiveError as error:
        raise DataError(
            f"{error.type.meaning}: {root} {error.message}",
            code=error.type.code,
            where=root if error.offset is None else f"{root}, byte {error.offset:,}",
            expected="a complete zip or tar archive",
            hint=error.type.hint,
        ) from error


class Archive:
    """The members of a zip or tar archive.

    Args:
        files: where the archive is.
        name: of the archive there.
        root: how the user named it.
        shown: the name of the archive in locations.
        report: takes issues of single members.
    """

    def __init__(self, files: Files, name: str, root: str, shown: str, report: DataReport):
        self.root, self._shown = root, shown
        self._handle = Handle(files, name)
        self._is_zip = name.lower().endswith(".zip")
        self._archive_fingerprint = files.fingerprint(name)
        self._wrapper = ""
        self._members, self._folders = self._index(report)

    def _index(self, report: DataReport) -> tuple[dict[str, Member], tuple[str, ...]]:
        def problem(kind: IssueType, message: str, name: str) -> None:
            report.add(kind, message, Location(self.location(name)))

        index: dict[str, Member] = {}
        folders: set[str] = set()
        for member in (zip_members if self._is_zip else tar_members)(self._handle.read_at, self._handle.size, problem):
            name = "/".join(segment for segment in member.name.split("/") if segment not in ("", "."))
            if name in index:
                problem(ARCHIVE_UNSAFE, "two members have this name", name)
            elif name and member.name.endswith("/"):
                folders.add(name)
            elif name:
                index[name] = member
        parents = {path[:end] for path in (*index, *folders) for end, sign in enumerate(path) if sign == "/"}
        names, empty = folder_order(index), folder_order(folders - parents)
        self._wrapper = _wrapper(names, [f"{folder}/" for folder in empty])
        cut = len(self._wrapper)
        inside = tuple(path[cut:] for path in folder_order(folders | parents) if len(path) >= cut)
        return {name[cut:]: index[name] for name in names}, inside

    def names(self) -> Sequence[str]:
        """Every regular member, in the order of an unpacked folder."""
        return tuple(self._members)

    def folders(self) -> Sequence[str]:
        """Every folder, also empty ones that the archive names."""
        return self._folders

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of one member."""
        if self.size(name) <= _IN_MEMORY_BYTES:
            return io.BytesIO(self.read(name, _IN_MEMORY_BYTES))
        return cast(BinaryIO, io.BufferedReader(self._stream(name), _BUFFER))

    def size(self, name: str) -> int:
        """Bytes of one member, as the archive claims; a stream that gives another number is an error."""
        return self._member(name).size

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of one member; the rest is not read."""
        member = self._member(name)
        if limit < member.size:
            return io.BufferedReader(self._stream(name), 1).read(limit)
        try:
            return member_content(self._handle.read_at, member, self._start(member))
        except ArchiveError as error:
            raise self._error(name, error) from error

    def fingerprint(self, name: str) -> str:
        """Checksum and size of the member, or the fingerprint of an archive without checksums."""
        member = self._member(name)
        if member.crc >= 0:
            return f"{member.crc:08x}-{member.size}"
        return f"{self._archive_fingerprint}-{member.offset}-{member.size}"

    def path(self, name: str) -> str | None:
        """`None`: no member is a file on disk."""
        return None

    def location(self, name: str) -> str:
        """How a member is shown: `a.zip!/x/1.jpg`."""
        return f"{self._shown}!/{self._wrapper}{name}" if name else self._shown

    def _member(self, name: str) -> Member:
        try:
            return self._members[name]
        except KeyError:
            raise SampleError(Issue(FILE_UNREADABLE, "no such member", Location(self.location(name)))) from None

    def _start(self, member: Member) -> int:
        return zip_data_offset(self._handle.read_at, member) if self._is_zip else member.offset

    def _stream(self, name: str) -> StoredStream:
        member = self._member(name)
        stream = StoredStream if member.method == STORED else InflateStream
        try:
            return stream(self._handle, self._start(member), member, self.location(name))
        except ArchiveError as error:
            raise self._error(name, error) from error

    def _error(self, name: str, error: ArchiveError) -> SampleError:
        return SampleError(Issue(error.type, error.message, Location(self.location(name), byte=error.offset)))


def _wrapper(names: Sequence[str], empty_folders: Sequence[str]) -> str:
    """The folders that hold everything else, such as `dataset/`; not splits, nor roles such as `images`."""
    if not names:
        return ""
    paths = [*names, *empty_folders]
    wrapper = ""
    for folder, last_folder in zip(min(paths).split("/")[:-1], max(paths).split("/")[:-1]):
        if folder != last_folder or split_of_folder(folder) or folder.lower() in _ROLE_FOLDERS:
            break
        wrapper += f"{folder}/"
    return wrapper


def _decompressed(files: Files, name: str) -> tuple[Files, str]:
    """The decompressed tar of a compressed one, in the cache."""
    from fewbit.data.cache import cached_file

    def write(target: BinaryIO) -> None:
        with files.open(name) as stream:
            for chunk in _decompressed_chunks(stream, name, files.size(name)):
                target.write(chunk)

    tar = cached_file(f"decompressed tar\0{files.root}\0{files.fingerprint(name)}", write)
    return Folder(tar), tar.name


def _decompressed_chunks(stream: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    """The decompressed content of a `.gz` or `.zst` file in pieces; a bomb ends it."""
    import zstandard

    reader: Any = gzip.GzipFile(fileobj=stream)
    if not name.lower().endswith(("gz", "tgz")):
        reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    total = 0
    while True:
        try:
            chunk = reader.read(1 << 20)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise ArchiveError(ARCHIVE_BROKEN, f"is damaged after {total:,} decompressed bytes: {error}") from error
        if not chunk:
            return
        total += len(chunk)
        if total > _members.RATIO_FROM and total > _members.RATIO * max(size, 1):
            raise ArchiveError(EXPANSION_BOMB, f"{size:,} bytes expand to more than {total:,}")
        yield chunk


class ListedFiles:
    """Some files of a folder, as a pattern such as `train-{000..099}.tar` names them.

    Args:
        files: the folder.
        names: which of its files.
        root: how the user named them.
    """

    def __init__(self, files: Files, names: Sequence[str], root: str):
        self.root, self._outer, self._names = root, files, tuple(names)
        self.open, self.size, self.read = files.open, files.size, files.read
        self.fingerprint, self.path = files.fingerprint, files.path

    def __reduce__(self) -> tuple[Any, ...]:
        return ListedFiles, (self._outer, self._names, self.root)

    def names(self) -> Sequence[str]:
        """The files of the pattern, in its order."""
        return self._names

    def folders(self) -> Sequence[str]:
        """None: a pattern names files."""
        return ()


def listed_files(files: Files, pattern: str, root: str, report: DataReport) -> ListedFiles | None:
    """The files a pattern names; missing ones are reported; `None` if none exists."""
    existing = set(files.names())
    names = expand_braces(pattern)
    present = [name for name in names if name in existing]
    for name in names if present else ():
        if name not in existing:
            report.add(SHARD_MISSING, f"{plural(len(present), 'file')} of {len(names):,} are there", Location(name))
    return ListedFiles(files, present, root) if present else None


def expand_braces(pattern: str, most: int = 1_000_000) -> list[str]:
    """Every name of a pattern with ranges and choices; at most `most`.

    >>> expand_braces("s-{08..10}.tar"), expand_braces("{train,val}.tar"), expand_braces("a{b}c")
    (['s-08.tar', 's-09.tar', 's-10.tar'], ['train.tar', 'val.tar'], ['a{b}c'])
    """
    choices: list[Sequence[str]] = []
    for number, piece in enumerate(re.split(r"\{(\d{1,12}\.\.\d{1,12}|[^{}]*,[^{}]*)\}", pattern)):
        if number % 2 == 0:
            choices.append([piece])
        elif "," in piece:
            choices.append(piece.split(","))
        else:
            first, last = piece.split("..")
            width = len(first) if first.startswith("0") else 0
            choices.append([f"{value:0{width}}" for value in range(int(first), min(int(last), int(first) + most) + 1)])
    return ["".join(choice) for choice in itertools.islice(itertools.product(*choices), most)]
