# SPDX-License-Identifier: Apache-2.0
"""The bytes of a file in pieces of about one size, for a scan that may hand some of them back.

A `\\r\\n` is never torn apart: such a piece is one byte longer. A stream that breaks off ends the feed like the
end of the file, and `fault` says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from fewbit.data.tables.table import Broken, Fault

PIECE = 1 << 20
"""Large enough that whole-array operations pay off, small enough that their arrays stay in the processor's cache."""


class Feed:
    """Pieces of about `size` bytes: chunks are passed on as they are, unless they are much larger or smaller.

    Args:
        chunks: the bytes of the file in chunks of any size.
        size: how many bytes a piece should have.
        fault: why the chunks end before their time, when that is known beforehand.

    >>> feed = Feed([b"a\\r", b"\\nbcd"], size=2)
    >>> feed.next(), feed.next(), feed.push(b"!"), feed.next(), feed.next(), feed.next()
    (b'a\\r\\n', b'bc', None, b'!', b'd', b'')
    """

    def __init__(self, chunks: Iterable[bytes], size: int = PIECE, fault: Fault | None = None):
        self.fault = fault
        self.size = size
        self._chunks: Iterator[bytes] = iter(chunks)
        self._waiting: deque[bytes | memoryview] = deque()

    def push(self, data: bytes) -> None:
        """Hand bytes back; they come first in the next pieces."""
        if data:
            self._waiting.appendleft(data)

    def next(self, most: int | None = None) -> bytes:
        """The next piece, of at most `most` bytes and perhaps a `\\n`; no bytes at the end."""
        piece = self._take(self.size + self.size // 4 if most is None else min(most, self.size))
        if piece.endswith(b"\r"):
            more = self._take(1)
            if more == b"\n":
                return piece + more
            self.push(more)
        return piece

    def _take(self, most: int) -> bytes:
        parts: list[bytes | memoryview] = []
        size = 0
        while size < most and size <= self.size // 4:
            chunk = self._waiting.popleft() if self._waiting else self._read()
            if not chunk:
                break
            if len(chunk) > most - size:
                view = memoryview(chunk)
                self._waiting.appendleft(view[most - size :])
                chunk = view[: most - size]
            parts.append(chunk)
            size += len(chunk)
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)

    def _read(self) -> bytes:
        try:
            return next((chunk for chunk in self._chunks if chunk), b"")
        except Broken as broken:
            self.fault = broken.fault
            self._chunks = iter(())
            return b""
