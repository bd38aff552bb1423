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
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from fewbit.data import members as _members
from fewbit.data.files import FILE_UNREADABLE, SYSTEM_FILES, Folder
from fewbit.data.members import (
    ARCHIVE_BROKEN,
    ARCHIVE_UNSAFE,
    EXPANSION_BOMB,
    RATIO,
    RATIO_FROM,
    STORED,
    ArchiveError,
    Member,
    tar_members,
    zip_data_offset,
    zip_members,
)
from fewbit.data.splits import split_of_folder
from fewbit.data.streams import MEMBER_CORRUPT, Handle, InflateStream, StoredStream
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import DataError, plural

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
SHARD_MISSING = IssueType(
    "shard-missing", Severity.ERROR, "missing file of a pattern", "correct the range of the pattern", "raise", ("drop",)
)
ISSUES = (*_members.ISSUES, MEMBER_CORRUPT, SHARD_MISSING)

_IN_MEMORY_BYTES = 16 << 20
"""Members up to this size are read into memory, checksum included; larger ones as a stream."""
_BUFFER = 1 << 16
_ROLE_FOLDERS = frozenset(("images", "labels", "annotations", "masks", "jpegimages", "sample-inputs", "sample-outputs"))


def is_archive(name: str) -> bool:
    """Whether a file is an archive of a dataset, by its suffix; `.npz` and `.xlsx` are zips too, but one file each.

    >>> is_archive("a.ZIP"), is_archive("a.tar.gz"), is_archive("a.npz")
    (True, True, False)
    """
    return name.lower().endswith(SUFFIXES)


def open_archive(files: Files, name: str, root: str, report: DataReport) -> Files:
    """The files inside one archive.

    Args:
        files: where the archive is.
        name: of the archive there.
        root: how the user named it.
        report: takes issues of single members.

    Raises:
        DataError: it cannot be read at all.
    """
    lower = name.lower()
    archive: _Archive
    try:
        if lower.endswith(".zip"):
            archive = ZipFiles(files, name, root, report)
        elif lower.endswith(".tar"):
            archive = TarFiles(files, name, root, report)
        else:
            archive = TarFiles(*_decompressed(files, name), root, report, display_name=name)
        archive.names()
    except ArchiveError as error:
        raise DataError(
            f"{error.type.meaning}: {root} {error.message}",
            code=error.type.code,
            where=root if error.offset is None else f"{root}, byte {error.offset:,}",
            expected="a complete zip or tar archive",
            hint=error.type.hint,
        ) from error
    return archive


class _Archive:
    """Base of zip and tar archives: an index of members, built once, and streams over one shared handle."""

    def __init__(
        self,
        files: Files,
        name: str,
        root: str | None = None,
        report: DataReport | None = None,
        display_name: str | None = None,
    ):
        self.root = root or name
        self._display_name = self.root if "://" in self.root else display_name or name
        self._handle = Handle(files, name)
        self._outer, self._name = files, name
        self._report: DataReport | None = report or DataReport()
        self._index: dict[str, Member] | None = None
        self._names: tuple[str, ...] = ()
        self._wrapper = ""

    def __getstate__(self) -> dict[str, Any]:
        self._files()
        return {**self.__dict__, "_report": None}

    def names(self) -> Sequence[str]:
        """Every regular member, in the order of an unpacked folder."""
        self._files()
        return self._names

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of one member."""
        stream = self._stream(name)
        if self.size(name) <= _IN_MEMORY_BYTES:
            return io.BytesIO(stream.readall())
        return cast(BinaryIO, io.BufferedReader(stream, _BUFFER))

    def size(self, name: str) -> int:
        """Bytes of one member, as the archive claims; a stream that gives another number is an error."""
        return self._member(name).size

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of one member; the rest is not read."""
        stream = self._stream(name)
        return stream.readall() if limit >= self.size(name) else io.BufferedReader(stream, 1).read(limit)

    def fingerprint(self, name: str) -> str:
        """Checksum and size of the member, or the fingerprint of an archive without checksums."""
        member = self._member(name)
        if member.crc >= 0:
            return f"{member.crc:08x}-{member.size}"
        return f"{self._outer.fingerprint(self._name)}-{member.offset}-{member.size}"

    def path(self, name: str) -> str | None:
        """`None`: no member is a file on disk."""
        return None

    def location(self, name: str) -> str:
        """How a member is shown: `a.zip!/x/1.jpg`."""
        return f"{self._display_name}!/{self._wrapper}{name}" if name else self._display_name

    def _files(self) -> dict[str, Member]:
        if self._index is None:
            index: dict[str, Member] = {}
            for member in self._list():
                name = "/".join(segment for segment in member.name.split("/") if segment not in ("", "."))
                if name in index:
                    self._problem(ARCHIVE_UNSAFE, "two members have this name", name)
                elif name:
                    index[name] = member
            names = folder_order(index)
            self._wrapper = _wrapper(names)
            self._index = {name[len(self._wrapper) :]: index[name] for name in names}
            self._names = tuple(self._index)
            self._report = None  # issues are reported once
        return self._index

    def _member(self, name: str) -> Member:
        try:
            return self._files()[name]
        except KeyError:
            raise SampleError(Issue(FILE_UNREADABLE, "no such member", Location(self.location(name)))) from None

    def _problem(self, kind: IssueType, message: str, name: str) -> None:
        if self._report is not None:
            self._report.add(kind, message, Location(self.location(name)))

    def _stream(self, name: str) -> StoredStream:
        member = self._member(name)
        try:
            return self._open(member, self.location(name))
        except ArchiveError as error:
            raise SampleError(Issue(error.type, error.message, Location(self.location(name)))) from error

    def _list(self) -> Iterable[Member]:
        raise NotImplementedError

    def _open(self, member: Member, location: str) -> StoredStream:
        raise NotImplementedError


class ZipFiles(_Archive):
    """The members of a zip archive.

    Args:
        files: where the archive is.
        name: of the archive there.
        root: how the user named it.
        report: takes issues of single members.
        display_name: the name of the archive in locations.
    """

    def _list(self) -> Iterable[Member]:
        return zip_members(self._handle.read_at, self._handle.size, self._problem)

    def _open(self, member: Member, location: str) -> StoredStream:
        start = zip_data_offset(self._handle.read_at, member)
        kind = StoredStream if member.method == STORED else InflateStream
        return kind(self._handle, start, member, location)


class TarFiles(_Archive):
    """The members of a tar archive; see `ZipFiles`."""

    def _list(self) -> Iterable[Member]:
        return tar_members(self._handle.read_at, self._handle.size, self._problem)

    def _open(self, member: Member, location: str) -> StoredStream:
        return StoredStream(self._handle, member.offset, member, location)


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


def folder_order(names: Iterable[str]) -> list[str]:
    """Names without hidden and system files, in the order in which `Folder` lists them: files before subfolders.

    >>> folder_order(["b/1", "a", ".git/x", "b/c/0", "Z/1"])
    ['a', 'Z/1', 'b/1', 'b/c/0']
    """
    folders: dict[str, list[str]] = {}
    for name in names:
        parent, _, base = name.rpartition("/")
        folders.setdefault(parent, []).append(base)
    ordered = []
    for folder in sorted(
        folders, key=lambda folder: [_nfc(segment) for segment in folder.split("/")] if folder else []
    ):
        if folder and any(_hidden(segment) for segment in folder.split("/")):
            continue
        prefix = f"{folder}/" if folder else ""
        ordered += [prefix + base for base in sorted(folders[folder], key=_nfc) if not _hidden(base)]
    return ordered


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts `input2` before `input10`.

    >>> sorted(["input10", "input2", "a"], key=natural_key)
    ['a', 'input2', 'input10']
    """
    pieces = re.split(r"(\d+)", name)
    return [(int(piece[:4000]), piece) if number % 2 else (-1, piece) for number, piece in enumerate(pieces)]


def _hidden(segment: str) -> bool:
    return segment.startswith(".") or segment in SYSTEM_FILES


def _nfc(segment: str) -> tuple[str, str]:
    return unicodedata.normalize("NFC", segment), segment


def _wrapper(names: Sequence[str]) -> str:
    """The folders that hold everything else, such as `dataset/`; not splits, nor roles such as `images`."""
    if not names:
        return ""
    folders = [name.split("/")[:-1] for name in (min(names), max(names))]
    wrapper = ""
    for folder, last_folder in zip(*folders):
        if folder != last_folder or split_of_folder(folder) or folder.lower() in _ROLE_FOLDERS:
            break
        wrapper += f"{folder}/"
    return wrapper


def expand_braces(pattern: str, most: int = 1_000_000) -> list[str]:
    """Every name of a pattern with ranges and choices; at most `most`.

    >>> expand_braces("s-{08..10}.tar"), expand_braces("{train,val}.tar")
    (['s-08.tar', 's-09.tar', 's-10.tar'], ['train.tar', 'val.tar'])
    """
    choices: list[Sequence[str]] = []
    for number, piece in enumerate(re.split(r"\{([^{}]*(?:\.\.|,)[^{}]*)\}", pattern)):
        ends = re.fullmatch(r"(\d{1,12})\.\.(\d{1,12})", piece)
        if number % 2 == 0 or not (ends or "," in piece):
            choices.append([piece if number % 2 == 0 else f"{{{piece}}}"])
        elif ends:
            first, last = int(ends[1]), int(ends[2])
            width = len(ends[1]) if ends[1].startswith("0") else 0
            choices.append([f"{value:0{width}}" for value in range(first, min(last, first + most) + 1)])
        else:
            choices.append(piece.split(","))
    return ["".join(choice) for choice in itertools.islice(itertools.product(*choices), most)]


def listed_files(files: Files, pattern: str, root: str, report: DataReport) -> ListedFiles | None:
    """The files a pattern names; missing ones are reported; `None` if none exists."""
    existing = set(files.names())
    names = expand_braces(pattern)
    present = [name for name in names if name in existing]
    if not present:
        return None
    for name in names:
        if name not in existing:
            report.add(SHARD_MISSING, f"{plural(len(present), 'file')} of {len(names):,} are there", Location(name))
    return ListedFiles(files, present, root)


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
    reader: Any
    errors: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    if name.lower().endswith((".gz", ".tgz")):
        reader = gzip.GzipFile(fileobj=stream)
    else:
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        errors = (zstandard.ZstdError, OSError, EOFError)
    total = 0
    while True:
        try:
            chunk = reader.read(1 << 20)
        except errors as error:
            raise ArchiveError(ARCHIVE_BROKEN, f"is damaged after {total:,} decompressed bytes: {error}") from error
        if not chunk:
            return
        total += len(chunk)
        if total > RATIO_FROM and total > RATIO * max(size, 1):
            raise ArchiveError(EXPANSION_BOMB, f"{size:,} bytes expand to more than {total:,}")
        yield chunk
