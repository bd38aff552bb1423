# SPDX-License-Identifier: Apache-2.0
"""The plain UTF-8 text of a file, however it is packed and encoded: in pieces, or as a file one can seek in.

Plain UTF-8 files (nearly all) are read where they lie. For random access into anything else a plain copy is
kept in the user's cache, by content, so it is made once; the oldest make room for new ones.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import orjson

from fewbit.data import cache
from fewbit.data.tables import compression, encoding
from fewbit.data.tables.table import Broken, Fault
from fewbit.errors import DataError

FIRST = 1 << 16
"""How much is read to see the first rows: enough for a screenful, quick on any disk."""

_SIZE = 1 << 20
_ROOM = 16 << 30
_DAY = 24 * 3600


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A seekable UTF-8 file.

    Args:
        path: the file itself or its plain copy in the cache.
        start: where the text begins, behind a byte-order mark.
        fault: why the text ends before its time, if it does.
        copied: whether `path` is a copy.
    """

    path: Path
    start: int = 0
    fault: Fault | None = None
    copied: bool = False


def chunks(path: Path, encoding_name: str | None = None, meter: compression.Meter | None = None) -> Iterator[bytes]:
    """The text of a file as pieces of UTF-8 without a byte-order mark, a small piece first.

    Text that calls itself UTF-8 is not verified here: whoever parses it must, and can say where it goes wrong.

    Raises:
        Broken: the text ends before its time: unreadable, damaged, a bomb, not in its encoding.
    """
    raw = compression.unpacked(path, FIRST, _SIZE, meter)
    head = b""
    for chunk in raw:
        head += chunk
        if len(head) >= 4:
            break
    name, mark = encoding.detect(head, encoding_name)
    if name == "utf-8":
        if head[mark:]:
            yield head[mark:]
        yield from raw
    else:
        yield from filter(None, encoding.to_utf8(chain([head[mark:]], raw), name))


def head(path: Path, encoding_name: str | None = None, size: int = FIRST) -> bytes:
    """The first `size` bytes of the text; less when it ends, in peace or not, before that.

    The same for the same content whatever the size of the pieces it came in, so that decisions made on it hold.
    """
    found = b""
    try:
        for chunk in chunks(path, encoding_name):
            found += chunk
            if len(found) >= size:
                break
    except Broken:
        pass  # whoever reads the rows meets it again, with the rows before it
    return found[:size]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the first bytes of a file tell: how it is packed, if it is, and its encoding and mark, if it is not."""

    first: bytes = b""
    packing: str | None = None
    encoding: str = "utf-8"
    mark: int = 0
    fault: Fault | None = None

    @property
    def shift(self) -> int:
        """How many bytes of the file lie before its text: offsets in plain UTF-8 files are shifted by that much."""
        return self.mark if self.encoding == "utf-8" else 0


def beginning(path: Path, encoding_name: str | None = None) -> Beginning:
    """Look at the first bytes of a file."""
    try:
        with path.open("rb", buffering=0) as file:
            first = file.read(4)
    except OSError as error:
        return Beginning(fault=Fault("unreadable", f"cannot read it: {error.strerror or error}"))
    return Beginning(first, compression.packing(first), *encoding.detect(first, encoding_name))


def plain_file(path: Path, encoding_name: str | None = None) -> PlainFile:
    """A seekable file with the same text: the file itself, or a copy in the cache.

    Raises:
        DataError: there is no room for the copy.
    """
    found = beginning(path, encoding_name)
    if found.fault is not None:
        return PlainFile(Path(os.devnull), fault=found.fault)
    if found.packing is None and found.encoding == "utf-8":
        return PlainFile(path, found.mark)
    try:
        return _copy(path, encoding_name)
    except OSError as error:
        raise DataError(
            f"cannot keep a plain copy of {path.name} for random access: {error.strerror or error}",
            where=cache.folder(),
            try_="set FEWBIT_CACHE to a folder with room, or unpack the file yourself",
        ) from error


def _copy(path: Path, encoding_name: str | None) -> PlainFile:
    target = cache.entry("plain", path, encoding_name or "")
    _make_room(target)
    aside = target.with_name(target.name + ".fault")
    if not target.exists():
        fault: list[Fault] = []

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                try:
                    for chunk in chunks(path, encoding_name):
                        file.write(chunk)
                except Broken as broken:
                    fault.append(broken.fault)
            if fault:  # before the copy takes its place, so that no copy is ever seen without its fault
                content = orjson.dumps(asdict(fault[0]))
                cache.keep(aside, lambda beside: beside.write_bytes(content))

        cache.keep(target, write)
    known = Fault(**orjson.loads(aside.read_bytes())) if aside.exists() else None
    os.utime(target)  # used just now
    return PlainFile(target, fault=known, copied=True)


def _make_room(target: Path) -> None:
    """Remove the copies that were not used for longest, until the rest takes no more room than copies may.

    What was used within a day stays, however large: someone may be reading it.
    """
    found = []
    for path in target.parent.iterdir():
        with contextlib.suppress(OSError):  # another process may be clearing up too
            info = path.stat()
            found.append((info.st_mtime, info.st_size, path))
    room = _ROOM - sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if room >= 0 or used > time.time() - _DAY:
            return
        if path != target and path.suffix != ".fault":
            path.unlink(missing_ok=True)  # first the copy: one without its fault would pass for whole
            path.with_name(path.name + ".fault").unlink(missing_ok=True)
            room += size
