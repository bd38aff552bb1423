# SPDX-License-Identifier: Apache-2.0
"""Files of a folder, or one file, behind the `Files` protocol: sorted names, no hidden files, bounded walking.

Archives and URLs have the same protocol (`archives.py`, `remote.py`), so formats see no difference.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from fewbit.data.types import DataReport, Issue, IssueType, Location, SampleError, Severity

SYSTEM_FILES = frozenset(("__MACOSX", "Thumbs.db", "desktop.ini", "$RECYCLE.BIN", "@eaDir"))
MOST_FILES = 50_000_000
DEEPEST = 256
_FORBIDDEN = ("/proc/", "/sys/", "/dev/")

LINK_CYCLE = IssueType(
    "link-cycle", Severity.WARNING, "link to a folder above it", "remove the link", fix="leaves the link out"
)
LINK_BROKEN = IssueType(
    "link-broken", Severity.WARNING, "link to nothing", "restore or remove it", fix="leaves the link out"
)
LINK_OUTSIDE = IssueType(
    "link-outside", Severity.NOTE, "link to a place outside the dataset", "copy the target before moving the dataset"
)
SPECIAL_FILE = IssueType("special-file", Severity.WARNING, "not a regular file", "remove it", fix="leaves it out")
FILE_UNREADABLE = IssueType(
    "file-unreadable", Severity.ERROR, "file that cannot be read", "check its permissions", "raise", ("drop",),
    "leaves it out",
)  # fmt: skip
TOO_DEEP = IssueType(
    "folder-too-deep",
    Severity.ERROR,
    f"folders deeper than {DEEPEST} levels",
    "flatten the folders",
    "raise",
    ("drop",),
)
ISSUES = (LINK_CYCLE, LINK_BROKEN, LINK_OUTSIDE, SPECIAL_FILE, FILE_UNREADABLE, TOO_DEEP)


class Folder:
    """The files below a folder, or a single file as a folder of one.

    Args:
        path: a folder or a file.
        root: how the user named it.
        report: takes what walking finds: cycles, broken links, special files.
    """

    def __init__(self, path: Path, root: str | None = None, report: DataReport | None = None):
        self._single = path.name if not path.is_dir() else None
        self._folder = path.parent if self._single else path
        self.root = root or str(path)
        self._report = report or DataReport()

    def names(self) -> Sequence[str]:
        """Every regular file, sorted by the NFC form of its name."""
        return self._names

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if self._single:
            return (self._single,)
        return tuple(_walk(self._folder, self._report))

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of one regular file; FIFOs and devices are refused instead of waiting for them."""
        path = self._folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SampleError(Issue(FILE_UNREADABLE, reason.lower(), Location(name))) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SampleError(Issue(SPECIAL_FILE, "a folder, FIFO, socket or device", Location(name)))
        return cast(BinaryIO, os.fdopen(descriptor, "rb"))

    def size(self, name: str) -> int:
        """Bytes of one file."""
        try:
            return (self._folder / name).stat().st_size
        except (OSError, ValueError) as error:
            raise SampleError(Issue(FILE_UNREADABLE, str(error), Location(name))) from error

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of one file."""
        with self.open(name) as stream:
            return _read(stream, limit, name)

    def fingerprint(self, name: str) -> str:
        """Size, modification time and inode."""
        status = (self._folder / name).stat()
        return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"

    def path(self, name: str) -> str | None:
        """The path on this machine."""
        return str(self._folder / name)


def _read(stream: BinaryIO, limit: int, name: str) -> bytes:
    try:
        return stream.read(limit)
    except OSError as error:
        raise SampleError(Issue(FILE_UNREADABLE, str(error), Location(name))) from error


def _walk(folder: Path, report: DataReport) -> Iterator[str]:
    """Names below a folder, depth first, sorted; follows links to folders unless they lead to a folder above."""
    root = os.path.realpath(folder)
    # Each entry: path relative to the folder, and the identities of the folders above it.
    status = os.stat(folder)
    stack: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ((status.st_dev, status.st_ino),))]
    count = 0
    while stack:
        relative, above = stack.pop()
        try:
            with os.scandir(folder / relative if relative else folder) as entries:
                listed = sorted(entries, key=lambda entry: (unicodedata.normalize("NFC", entry.name), entry.name))
        except OSError as error:
            report.add(FILE_UNREADABLE, (error.strerror or str(error)).lower(), Location(relative or "."))
            continue
        folders = []
        for entry in listed:
            if entry.name.startswith(".") or entry.name in SYSTEM_FILES:
                continue
            name = f"{relative}/{entry.name}" if relative else entry.name
            kind = _kind(entry, name, root, report)
            if kind == "file":
                count += 1
                if count > MOST_FILES:
                    report.add(TOO_DEEP, f"more than {MOST_FILES:,} files", Location(name))
                    return
                yield name
            elif kind == "folder":
                try:
                    identity = _identity(entry)
                except OSError as error:  # it vanished, or may not be looked at
                    report.add(FILE_UNREADABLE, (error.strerror or str(error)).lower(), Location(name))
                    continue
                if identity in above:
                    report.add(LINK_CYCLE, "leads to a folder above it", Location(name))
                elif len(above) >= DEEPEST:
                    report.add(TOO_DEEP, "not read", Location(name))
                else:
                    folders.append((name, (*above, identity)))
        stack.extend(reversed(folders))


def _kind(entry: os.DirEntry[str], name: str, root: str, report: DataReport) -> str | None:
    """`file`, `folder`, or `None` after reporting what else it is."""
    try:
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            if not os.path.exists(target):
                report.add(LINK_BROKEN, "its target does not exist", Location(name))
                return None
            if f"{root}/".startswith(f"{target.rstrip('/')}/"):
                report.add(LINK_CYCLE, "leads to the dataset's own folder, or to one above it", Location(name))
                return None
            if f"{target}/".startswith(_FORBIDDEN):
                report.add(SPECIAL_FILE, "a link into the operating system", Location(name))
                return None
            if not target.startswith(root + os.sep) and target != root:
                report.add(LINK_OUTSIDE, "leads outside of the dataset", Location(name))
        if entry.is_file():
            return "file"
        if entry.is_dir():
            return "folder"
        report.add(SPECIAL_FILE, "a FIFO, socket or device", Location(name))
    except OSError as error:
        report.add(FILE_UNREADABLE, (error.strerror or str(error)).lower(), Location(name))
    return None


def _identity(entry: os.DirEntry[str]) -> tuple[int, int]:
    status = entry.stat()
    return status.st_dev, status.st_ino
