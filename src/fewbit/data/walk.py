# SPDX-License-Identifier: Apache-2.0
"""Listing a folder the same way on every machine: sorted, NFC names, links followed, nothing that can hang.

Hidden and system files are passed over. What cannot be listed (a link that leads nowhere or round in a
circle, a pipe, a folder without permission) is a problem with a code of its own, never an exception.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from fewbit.data.findings import Code, DataReport, Severity
from fewbit.data.sample import Place

CODES = {
    "link-cycle": Code(Severity.WARN, "a symbolic link leads back into its own path", "remove the link"),
    "link-broken": Code(Severity.WARN, "a symbolic link leads nowhere", "restore its target or remove the link"),
    "link-outside": Code(
        Severity.INFO,
        "a symbolic link leads out of the dataset's folder",
        "copy its target if the folder will travel",
    ),
    "not-a-file": Code(Severity.WARN, "a pipe, socket or device lies among the files", "remove it"),
    "unreadable": Code(Severity.ERROR, "the system refuses to read it", "check owner and permissions"),
}

_SYSTEM = frozenset({"__MACOSX", "Thumbs.db", "thumbs.db", "desktop.ini", "Desktop.ini", "$RECYCLE.BIN", "@eaDir"})

_DEPTH = 256  # each folder is a generator within another

Problem = Callable[[str, str, str], None]
"""Called with a code, the relative path and a message."""


class Entry(NamedTuple):
    """One file: its relative posix name (NFC) and the path that opens it."""

    name: str
    path: str


def ignored(name: str) -> bool:
    """Whether a file or folder name is a hidden or system one: `.git`, `._a.jpg`, `__MACOSX`, `Thumbs.db` …"""
    return name.startswith(".") or name in _SYSTEM


def nfc(name: str) -> str:
    """A name in Unicode's composed form, so that a folder copied from a Mac sorts and compares alike.

    Bytes that are no UTF-8 are written out (`\\udcff`): such a name can be shown and put into JSON.
    """
    if name.isascii():
        return name
    return unicodedata.normalize("NFC", name).encode(errors="backslashreplace").decode()


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key by which `input2` comes before `input10`.

    >>> sorted(["input10", "input2"], key=natural)
    ['input2', 'input10']
    """
    pieces = re.split(r"([0-9]+)", name)
    return [(0, int(p), p) if p.isdecimal() and p.isascii() else (1, 0, p) for p in pieces if p]


def report_into(report: DataReport) -> Problem:
    """A problem callback that adds to a report."""
    return lambda code, path, message: report.add(code, message, Place(path))


def quietly(code: str, path: str, message: str) -> None:
    """A problem callback for readers: what cannot be listed cannot be read; `check` is where it is told."""


def walk(root: Path, problem: Problem = quietly, *, within: Path | None = None) -> Iterator[Entry]:
    """Every regular file below a folder, sorted by relative name within each folder.

    Args:
        root: the folder.
        problem: told about what had to be passed over.
        within: the dataset's folder, which links may not leave unreported; the folder itself when not given.

    Cost: one `scandir` a folder; a `stat` only for symbolic links.
    """
    real_root = root.resolve()
    start = os.stat(real_root)
    home = real_root if within is None else within.resolve()
    yield from _walk(str(root), "", ((start.st_dev, start.st_ino),), str(home), problem)


def _walk(
    folder: str, prefix: str, above: tuple[tuple[int, int], ...], real_root: str, problem: Problem
) -> Iterator[Entry]:
    try:
        with os.scandir(folder) as scan:
            entries = [entry for entry in scan if not ignored(entry.name)]
    except OSError as error:
        problem("unreadable", prefix or ".", f"cannot list the folder: {error.strerror}")
        return
    if all(entry.name.isascii() for entry in entries):
        entries.sort(key=attrgetter("name"))
    else:  # the name as spelled settles ties: two spellings of one NFC name can lie side by side
        entries.sort(key=lambda entry: (nfc(entry.name), entry.name))
    for entry in entries:
        relative = f"{prefix}/{nfc(entry.name)}" if prefix else nfc(entry.name)
        try:
            if entry.is_file(follow_symlinks=False):  # nearly all of them, and nothing more to ask
                yield Entry(relative, entry.path)
                continue
            if entry.is_symlink() and not _link_is_safe(entry, relative, above, real_root, problem):
                continue
            if entry.is_dir():
                if len(above) > _DEPTH:
                    problem("unreadable", relative, f"folders are nested more than {_DEPTH} deep")
                    continue
                info = entry.stat()
                inner = (*above, (info.st_dev, info.st_ino))
                yield from _walk(entry.path, relative, inner, real_root, problem)
            elif entry.is_file():
                yield Entry(relative, entry.path)
            else:
                problem("not-a-file", relative, f"is a {_kind(entry)}, not a file")
        except OSError as error:
            problem("unreadable", relative, f"cannot look at it: {error.strerror}")


def _link_is_safe(
    entry: os.DirEntry[str],
    relative: str,
    above: tuple[tuple[int, int], ...],
    real_root: str,
    problem: Problem,
) -> bool:
    try:
        info = entry.stat()
    except OSError:
        problem("link-broken", relative, f"links to {os.readlink(entry.path)!r}, which is not there")
        return False
    if stat.S_ISDIR(info.st_mode) and (info.st_dev, info.st_ino) in above:
        problem("link-cycle", relative, f"links to {os.readlink(entry.path)!r}, a folder it lies in")
        return False
    target = os.path.realpath(entry.path)
    if os.path.commonpath([target, real_root]) != real_root:
        problem("link-outside", relative, f"links to {target}, outside the dataset")
    return True


def _kind(entry: os.DirEntry[str]) -> str:
    mode = entry.stat().st_mode
    kinds = {stat.S_ISFIFO: "pipe", stat.S_ISSOCK: "socket", stat.S_ISBLK: "device", stat.S_ISCHR: "device"}
    return next((name for test, name in kinds.items() if test(mode)), "special file")
