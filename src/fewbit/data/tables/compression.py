# SPDX-License-Identifier: Apache-2.0
"""The bytes of a file as they were before `.gz` or `.zst`, in pieces, with a bound on how much they may grow.

What a file is packed with is told by its first bytes, not by its name: neither JSON nor CSV can begin like that.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fewbit.data import limits
from fewbit.data.tables.table import Broken

SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
# One block of four bytes may stand for 128 KB, so a piece this long cannot become more than 64 MB at a time.
_ZSTD_PIECE = 2048
_GZIP_PIECE = 1 << 16
_OUT = 1 << 18


def packing(head: bytes) -> str | None:
    """What a file that begins like this is packed with: `gzip`, `zstd` or nothing.

    >>> packing(b"\\x1f\\x8b\\x08"), packing(b"{}")
    ('gzip', None)
    """
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


@dataclass
class Meter:
    """How many bytes of a file have been read, and how many it has."""

    done: int = 0
    total: int | None = None


def unpacked(path: Path, first: int, size: int, meter: Meter | None = None) -> Iterator[bytes]:
    """The unpacked bytes of a file in pieces; of a file that is not packed, `first` bytes and then `size` at a time.

    Raises:
        Broken: the file cannot be read, is damaged or cut off, or grows beyond all reason.
    """
    try:
        with path.open("rb", buffering=0) as file:
            kind = packing(file.read(4))
            file.seek(0)
            if kind == "gzip":
                pieces = _bounded(_gunzip(file), file)
            elif kind == "zstd":
                pieces = _bounded(_unzstd(file), file)
            else:
                pieces = _plain(file, first, size)
            meter = meter or Meter()
            meter.total = os.fstat(file.fileno()).st_size
            for chunk in pieces:
                meter.done = file.tell()
                yield chunk
    except OSError as error:
        raise Broken("unreadable", f"cannot read it: {error.strerror or error}") from error


def _plain(file: BinaryIO, first: int, size: int) -> Iterator[bytes]:
    amount = first
    while chunk := file.read(amount):
        yield chunk
        amount = size


def _gunzip(file: BinaryIO) -> Iterator[bytes]:
    done, data = 0, b""
    member = None
    full = False  # the last step filled its room, so more may be waiting inside
    while full or data or (data := file.read(_GZIP_PIECE)):
        if member is None:
            data = data.lstrip(b"\0") if done else data  # zeros between members are padding
            if not data:
                continue
            member = zlib.decompressobj(wbits=31)
        try:
            out = member.decompress(data, _OUT)
        except zlib.error as error:
            raise _damaged("gzip", str(error), done) from error
        full, data = len(out) == _OUT, member.unconsumed_tail
        if member.eof:
            full, data, member = False, member.unused_data, None
        done += len(out)
        if out:
            yield out
    if member is not None:
        raise _damaged("gzip", "the file is cut off", done)


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    done = 0
    frame = None
    while piece := file.read(_ZSTD_PIECE):
        while piece:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                out = frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise _damaged("zstd", str(error), done) from error
            piece = b""
            if frame.eof:
                piece, frame = frame.unused_data, None
            done += len(out)
            if out:
                yield out
    if frame is not None:
        raise _damaged("zstd", "the last frame is cut off", done)


def _damaged(kind: str, message: str, offset: int) -> Broken:
    return Broken("bad-compression", f"damaged {kind} data: {message}", offset=offset)


def _bounded(chunks: Iterator[bytes], file: BinaryIO) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        if done > limits.EXPANSION_FLOOR and done > limits.EXPANSION * file.tell():
            raise Broken(
                "expansion-bomb",
                f"{file.tell():,} packed bytes became more than {done:,}",
                offset=done - len(chunk),
            )
        yield chunk
