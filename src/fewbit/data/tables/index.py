# SPDX-License-Identifier: Apache-2.0
"""Where each row of a text file begins: eight bytes a row, kept in the user's cache by the file's content.

The scan that finds the rows also computes the content's digest, so a file is read once; a second open finds
the index by the file's size and time of change and maps it into memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import orjson

from fewbit.data import cache
from fewbit.data.tables.plain import PlainFile
from fewbit.data.tables.table import Fault

_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Index:
    """The rows of one file.

    Args:
        offsets: `(n + 1,)` uint64: where each row begins in the plain text (a byte-order mark not counted), and
            where the last one ends.
        lines: `(n + 1,)` uint64, the line each row begins on; `None` when row `i` is on line `i + 1`.
        fault: what is wrong at the end of the file, which then counts as one more row.
    """

    offsets: np.ndarray
    lines: np.ndarray | None = None
    fault: Fault | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def line(self, index: int) -> int:
        """The line a row begins on, from 1."""
        return index + 1 if self.lines is None else int(self.lines[index])


def stored(path: Path, plain: PlainFile, layout: str, scan: Callable[[Iterator[bytes]], Index]) -> Index:
    """The index of a file from the cache, or made now by `scan` and kept.

    Args:
        path: the file as the user has it.
        plain: its plain text (`plain.plain_file(path)`).
        layout: everything besides the content that decides where rows begin: kind, delimiter, encoding.
        scan: makes the index from the pieces of the plain text.
    """
    try:
        digest = cache.digest(path) if plain.copied else cache.known_digest(path)
        found = None if digest is None else _load(cache.entry_of("rows", digest, layout))
        before = path.stat()
    except OSError:
        return scan(_pieces(plain, cache.hasher()))  # no cache to be had: the index lives in memory
    if found is not None:
        return found
    state = cache.hasher()
    pieces = _pieces(plain, state)
    index = scan(pieces)
    for _ in pieces:  # a scan may stop early; the digest may not
        pass
    with contextlib.suppress(OSError):
        if digest is None:  # then the file is its own plain text, and that was read just now
            digest = state.hexdigest()
            cache.remember_digest(path, before, digest)
        _keep(cache.entry_of("rows", digest, layout), index)
    return index


def _pieces(plain: PlainFile, state: blake2b) -> Iterator[bytes]:
    """The plain text, all that is read of the file going through the hash too."""
    with plain.path.open("rb", buffering=0) as file:
        state.update(file.read(plain.start))
        while chunk := file.read(_SIZE):
            state.update(chunk)
            yield chunk


def _load(target: Path) -> Index | None:
    array, aside = target.with_suffix(".npy"), target.with_suffix(".fault")
    try:
        table = np.load(array, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None  # not there, or not whole: made again
    fault = Fault(**orjson.loads(aside.read_bytes())) if aside.exists() else None
    return Index(table[0], table[1] if len(table) == 2 else None, fault)


def _keep(target: Path, index: Index) -> None:
    if index.fault is not None:
        content = orjson.dumps(asdict(index.fault))
        cache.keep(target.with_suffix(".fault"), lambda temporary: temporary.write_bytes(content))
    table = np.stack([index.offsets] if index.lines is None else [index.offsets, index.lines])
    cache.keep(target.with_suffix(".npy"), lambda temporary: np.save(temporary, table, allow_pickle=False))
