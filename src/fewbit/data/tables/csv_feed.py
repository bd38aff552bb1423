# SPDX-License-Identifier: Apache-2.0
"""The bytes of a file in pieces of one size, for a scan that may hand some of them back.

A `\\r\\n` is never torn apart: such a piece is one byte longer. A stream that breaks off ends the feed like the
end of the file, and `fault` says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from fewbit.data.tables.broken import Broken
from fewbit.data.tables.table import Fault

PIECE = 1 << 21
"""Large enough that whole-array operations pay off, small enough that their arrays stay in the processor's cache."""


class Feed:
    """Pieces of `size` bytes.

    Args:
        chunks: the bytes of the file in chunks of any size.
        size: how many bytes a piece has at most.
        fault: why the chunks end before their time, when that is known beforehand.

    >>> feed = Feed([b"a\\r", b"\\nbcd"], size=2)
    >>> feed.next(), feed.next(), feed.push(b"!"), feed.next(), feed.next(), feed.next()
    (b'a\\r\\n', b'bc', None, b'!d', b'', b'')
    """

    def __init__(self, chunks: Iterable[bytes], size: int = PIECE, fault: Fault | None = None):
        self.fault = fault
        self._chunks: Iterator[bytes] = iter(chunks)
        self.size = size
        self._waiting: deque[memoryview] = deque()

    def push(self, data: bytes) -> None:
        """Hand bytes back; they come first in the next pieces."""
        if data:
            self._waiting.appendleft(memoryview(data))

    def next(self, most: int | None = None) -> bytes:
        """The next piece, of at most so many bytes, or no bytes at the end."""
        piece = self._take(self.size if most is None else min(most, self.size))
        if piece.endswith(b"\r"):
            more = self._take(1)
            if more == b"\n":
                return piece + more
            self.push(more)
        return piece

    def _take(self, size: int) -> bytes:
        parts: list[memoryview] = []
        while size:
            chunk = self._waiting.popleft() if self._waiting else memoryview(self._read())
            if not chunk:
                break
            if len(chunk) > size:
                self._waiting.appendleft(chunk[size:])
            parts.append(chunk[:size])
            size -= len(parts[-1])
        return b"".join(parts)

    def _read(self) -> bytes:
        try:
            return next((chunk for chunk in self._chunks if chunk), b"")
        except Broken as broken:
            self.fault = broken.fault
            self._chunks = iter(())
            return b""
