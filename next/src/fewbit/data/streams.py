# SPDX-License-Identifier: Apache-2.0
"""Seekable streams over parts of files: stored and deflated archive members, and any source read by ranges."""

from __future__ import annotations

import io
import os
import threading
import zlib
from typing import Any, BinaryIO

from fewbit.data.files import FILE_UNREADABLE
from fewbit.data.members import ARCHIVE_CORRUPT, Member
from fewbit.data.types import Files, Issue, Location, SampleError

_LARGEST = 8 << 20
"""Bytes of one read."""
_CHUNK, _PIECE = 1 << 16, 1 << 20
_CHECKPOINTS = 256


class Handle:
    """Positional reads of one file of a `Files`, for several threads, and again in a worker process."""

    def __init__(self, files: Files, name: str):
        self.files, self.name = files, name
        self.size = files.size(name)
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "name": self.name, "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __del__(self) -> None:
        if stream := getattr(self, "_stream", None):
            stream.close()

    def _start(self) -> None:
        self._stream: BinaryIO | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def read_at(self, offset: int, count: int) -> bytes:
        """Bytes at a position; fewer only at the end of the file."""
        if self._process != os.getpid():  # a fork shares the position of its parent's stream
            if self._stream is not None:
                self._stream.close()
            self._start()
        with self._lock:
            if self._stream is None:
                self._stream = self.files.open(self.name)
            try:
                self._stream.seek(offset)
                return self._stream.read(min(count, max(self.size - offset, 0)))
            except (OSError, ValueError) as error:
                message = f"byte {offset:,}: {getattr(error, 'strerror', None) or error}"
                raise SampleError(Issue(FILE_UNREADABLE, message, Location(self.name))) from error


class RangeStream(io.RawIOBase):
    """A seekable stream over `content(position, count)`, which a subclass defines."""

    def __init__(self, size: int):
        self._size, self._position = size, 0

    def content(self, position: int, count: int) -> bytes:
        """At most `count` bytes at a position before the end, at least one."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"position {position}")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer."""
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._size - self._position, _LARGEST)
        content = self.content(self._position, count) if count > 0 else b""
        view[: len(content)] = content
        self._position += len(content)
        return len(content)

    def readall(self) -> bytes:
        """Everything from the position on."""
        chunks = iter(lambda: self.read(max(min(self._size - self._position, _LARGEST), 0)), b"")
        return b"".join(chunk for chunk in chunks if chunk)


class StoredStream(RangeStream):
    """A part of a file; a checksum, if there is one, is compared when it is read in order."""

    def __init__(self, handle: Handle, start: int, member: Member, location: str):
        super().__init__(member.size)
        self._handle, self._start, self._member, self._location = handle, start, member, location
        self._summed = self._crc = 0

    def content(self, position: int, count: int) -> bytes:
        """Bytes of the file."""
        content = self._handle.read_at(self._start + position, count)
        if len(content) < count:
            raise self._corrupt("cut off")
        if self._member.crc >= 0 and position == self._summed:
            self._sum(content)
        return content

    def _sum(self, content: bytes) -> None:
        self._crc = zlib.crc32(content, self._crc)
        self._summed += len(content)
        if self._summed == self._member.size and content and self._crc != self._member.crc:
            raise self._corrupt("the checksum differs")

    def _corrupt(self, message: str) -> SampleError:
        return SampleError(Issue(ARCHIVE_CORRUPT, message, Location(self._location)))


class InflateStream(StoredStream):
    """A deflated member as a seekable stream; the decompressor is kept at intervals, so that seeking back is cheap."""

    def __init__(self, handle: Handle, start: int, member: Member, location: str):
        super().__init__(handle, start, member, location)
        self._inflater, self._consumed, self._pending = zlib.decompressobj(-15), 0, b""
        self._interval = max(_PIECE, member.size // _CHECKPOINTS)
        self._checkpoints = [(0, 0, 0, self._inflater.copy())]
        self._piece = b""  # the last one, which ends at the sum

    def content(self, position: int, count: int) -> bytes:
        """Decompressed bytes."""
        checkpoint = self._checkpoints[min(position // self._interval, len(self._checkpoints) - 1)]
        if position < self._summed - len(self._piece) or checkpoint[0] > self._summed:
            self._summed, self._consumed, self._crc, inflater = checkpoint
            self._inflater, self._pending, self._piece = inflater.copy(), b"", b""
        while self._summed <= position:
            self._piece = self._inflate()
        start = position - (self._summed - len(self._piece))
        return self._piece[start : start + count]

    def _inflate(self) -> bytes:
        """The next piece, never past a checkpoint."""
        checkpoint = (self._summed // self._interval + 1) * self._interval
        target = min(checkpoint, self._member.size, self._summed + _PIECE)
        if not self._pending:
            remaining = self._member.compressed - self._consumed
            self._pending = self._handle.read_at(self._start + self._consumed, min(_CHUNK, remaining))
            self._consumed += len(self._pending)
        ended = not self._pending
        try:
            content = self._inflater.decompress(self._pending, target - self._summed)
        except zlib.error as error:
            raise self._corrupt(f"damaged after {self._summed:,} bytes") from error
        self._pending = self._inflater.unconsumed_tail
        if not content and (ended or self._inflater.eof):
            raise self._corrupt(f"ends after {self._summed:,} of {self._member.size:,} bytes")
        self._sum(content)
        if self._summed == self._member.size and self._longer():
            raise self._corrupt(f"expands to more than the {self._member.size:,} bytes it claims")
        if self._summed == len(self._checkpoints) * self._interval:
            state = (self._summed, self._consumed - len(self._pending), self._crc, self._inflater.copy())
            self._checkpoints.append(state)
        return content

    def _longer(self) -> bool:
        if self._inflater.eof:
            return False
        remaining = min(self._member.compressed - self._consumed, _CHUNK)
        unread = self._pending + self._handle.read_at(self._start + self._consumed, remaining)
        try:
            return bool(self._inflater.copy().decompress(unread, 1))
        except zlib.error:
            return True
