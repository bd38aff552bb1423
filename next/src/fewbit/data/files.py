# SPDX-License-Identifier: Apache-2.0
"""Files of a folder, or one file, behind the `Files` protocol: sorted names, no hidden files, bounded walking.

Archives and URLs have the same protocol (`archives.py`, `remote.py`), so formats see no difference.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from fewbit.data.types import DataReport, Issue, IssueType, Location, SampleError, Severity

SYSTEM_FILES = frozenset(("__MACOSX", "Thumbs.db", "desktop.ini", "$RECYCLE.BIN", "@eaDir"))
DEEPEST = 256
_MOST_FILES = 50_000_000
_MOST_REPEATS = 2_000
"""Folders that are listed again under another name: links between folders can make any number of paths."""
_OPERATING_SYSTEM = ("/proc/", "/sys/", "/dev/")

LINK_CYCLE = IssueType(
    "link-cycle", Severity.WARNING, "link to a folder above it", "remove the link", fix="leaves the link out"
)
LINK_BROKEN = IssueType(
    "link-broken", Severity.WARNING, "link to nothing", "restore or remove it", fix="leaves the link out"
)
LINK_OUTSIDE = IssueType(
    "link-outside", Severity.NOTE, "link to a place outside the dataset", "copy the target before moving the dataset"
)
SPECIAL_FILE = IssueType(
    "special-file", Severity.WARNING, "not a regular file", "remove it", fix="leaves it out", aliases=("not-a-file",)
)
FILE_UNREADABLE = IssueType(
    "file-unreadable", Severity.ERROR, "file that cannot be read", "check its permissions", "raise", ("drop",),
    "leaves it out", aliases=("unreadable",),
)  # fmt: skip
TOO_DEEP = IssueType(
    "folder-too-deep", Severity.ERROR, f"folders deeper than {DEEPEST} levels", "flatten the folders", "raise",
    ("drop",),
)  # fmt: skip
ISSUES = (LINK_CYCLE, LINK_BROKEN, LINK_OUTSIDE, SPECIAL_FILE, FILE_UNREADABLE, TOO_DEEP)


class Folder:
    """The files below a folder, or a single file as a folder of one.

    Args:
        path: a folder or a file.
        root: how the user named it.
        report: takes what walking finds: cycles, broken links, special files.
    """

    def __init__(self, path: Path, root: str | None = None, report: DataReport | None = None):
        self._single = "" if path.is_dir() else path.name
        self._folder = path.parent if self._single else path
        self.root = root or str(path)
        self._report = report or DataReport()

    @cached_property
    def _listing(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        folders: list[str] = []
        names = (self._single,) if self._single else tuple(walk(self._folder, self._report, folders))
        return names, tuple(folders)

    def names(self) -> Sequence[str]:
        """Every regular file, sorted by the NFC form of its name."""
        return self._listing[0]

    def folders(self) -> Sequence[str]:
        """Every folder below this one, also empty ones."""
        return self._listing[1]

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of one regular file; FIFOs and devices are refused instead of waiting for them."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError) as error:
            raise _unreadable(name, error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SampleError(Issue(SPECIAL_FILE, "a folder, FIFO, socket or device", Location(name)))
        return cast(BinaryIO, os.fdopen(descriptor, "rb"))

    def size(self, name: str) -> int:
        """Bytes of one file."""
        return self._status(name).st_size

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of one file."""
        with self.open(name) as stream:
            try:
                return stream.read(limit)
            except OSError as error:
                raise _unreadable(name, error) from error

    def fingerprint(self, name: str) -> str:
        """Size, modification time and inode."""
        status = self._status(name)
        return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"

    def path(self, name: str) -> str | None:
        """The path on this machine."""
        return str(self._folder / name)

    def _status(self, name: str) -> os.stat_result:
        try:
            return os.stat(os.path.join(self._folder, name))  # a Path takes twice as long
        except (OSError, ValueError) as error:
            raise _unreadable(name, error) from error


def walk(folder: Path, report: DataReport, folders: list[str] | None = None) -> Iterator[str]:
    """Names of the regular files below a folder, those of a folder before its subfolders, sorted.

    Links are followed unless they lead to a folder above or into the operating system.

    Args:
        folder: where to begin.
        report: takes what is not listed.
        folders: takes the names of the subfolders.
    """
    root, count, repeats = os.path.realpath(folder), 0, 0
    listed_once: set[tuple[int, int]] = set()
    # Each entry: a path relative to the folder, and the identities of the folders above it.
    stack: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(os.stat(folder)),))]
    while stack:
        parent, above = stack.pop()
        try:
            with os.scandir(folder / parent) as entries:
                listed = sorted((entry for entry in entries if not _hidden(entry.name)), key=lambda e: nfc(e.name))
        except OSError as error:
            report.add(FILE_UNREADABLE, _reason(error), Location(parent or "."))
            continue
        subfolders = []
        for entry in listed:
            name = f"{parent}/{entry.name}" if parent else entry.name
            try:
                if entry.is_symlink() and not _follow(entry, name, root, report):
                    continue
                if entry.is_file():
                    count += 1
                    yield name
                elif not entry.is_dir():
                    report.add(SPECIAL_FILE, "a FIFO, socket or device", Location(name))
                elif (identity := _identity(entry.stat())) in above:
                    report.add(LINK_CYCLE, "leads to a folder above it", Location(name))
                elif len(above) >= DEEPEST or count > _MOST_FILES:
                    report.add(TOO_DEEP, "not read", Location(name))
                elif identity in listed_once and (repeats := repeats + 1) > _MOST_REPEATS:
                    report.add(LINK_CYCLE, "leads to folders that were listed often enough", Location(name))
                else:
                    listed_once.add(identity)
                    subfolders.append((name, (*above, identity)))
            except OSError as error:  # it vanished, or may not be looked at
                report.add(FILE_UNREADABLE, _reason(error), Location(name))
        if folders is not None:
            folders += [name for name, _ in subfolders]
        stack.extend(reversed(subfolders))


def _follow(link: os.DirEntry[str], name: str, root: str, report: DataReport) -> bool:
    """Whether a link is followed; the reason is reported if not."""
    target = os.path.realpath(link.path)
    if not os.path.exists(target):
        report.add(LINK_BROKEN, "its target does not exist", Location(name))
    elif f"{root}/".startswith(f"{target.rstrip('/')}/"):
        report.add(LINK_CYCLE, "leads to the dataset's own folder, or to one above it", Location(name))
    elif is_operating_system(target):
        report.add(SPECIAL_FILE, "a link into the operating system", Location(name))
    else:
        if not f"{target}/".startswith(f"{root}/"):
            report.add(LINK_OUTSIDE, "leads outside of the dataset", Location(name))
        return True
    return False


def is_operating_system(path: str) -> bool:
    """Whether a real path is in `/proc`, `/sys` or `/dev`, where reading may never end."""
    return f"{path}/".startswith(_OPERATING_SYSTEM)


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
    for folder in sorted(folders, key=lambda folder: [nfc(segment) for segment in folder.split("/") if segment]):
        if not any(map(_hidden, folder.split("/"))):
            visible = [base for base in folders[folder] if not _hidden(base)]
            ordered += [f"{folder}/{base}" if folder else base for base in sorted(visible, key=nfc)]
    return ordered


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts `input2` before `input10`.

    >>> sorted(["input10", "input2", "a"], key=natural_key)
    ['a', 'input2', 'input10']
    """
    pieces = re.split(r"(\d+)", name)
    return [(int(piece[:4000]), piece) if number % 2 else (-1, piece) for number, piece in enumerate(pieces)]


def nfc(name: str) -> tuple[str, str]:
    """Sorts names by their composed form, whatever the system that wrote them."""
    return unicodedata.normalize("NFC", name), name


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in SYSTEM_FILES


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _unreadable(name: str, error: Exception) -> SampleError:
    return SampleError(Issue(FILE_UNREADABLE, _reason(error), Location(name)))


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
