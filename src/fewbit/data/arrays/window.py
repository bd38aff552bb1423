# SPDX-License-Identifier: Apache-2.0
"""A stretch of a file that can be read anywhere: a whole `.npz`, or one that lies inside a `.tar`."""

from __future__ import annotations

import os
from types import TracebackType

from fewbit.data.arrays.faults import ArrayFault

_WHOLE = 64 << 10


class Window:
    """Bytes `start` to `start + size` of an open file; a small one is read at once, a large one piece by piece.

    Leaving its `with` block closes the file.

    Args:
        file: a descriptor; opening thousands of small files as file objects takes twice the time.
        start: the first byte.
        size: how many bytes belong to it.
    """

    __slots__ = ("_content", "_file", "_start", "size")

    def __init__(self, file: int, start: int, size: int):
        self._file, self._start, self.size = file, start, size
        self._content: bytes | None = None
        if size <= _WHOLE:
            self._content = self._fetch(0, size)
            self.size = len(self._content)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        os.close(self._file)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at an offset, fewer when the window ends before."""
        if self._content is not None:
            return self._content[offset : offset + size]
        return self._fetch(offset, min(size, self.size - offset))

    def _fetch(self, offset: int, size: int) -> bytes:
        if size <= 0:
            return b""
        try:
            os.lseek(self._file, self._start + offset, os.SEEK_SET)
            data = os.read(self._file, size)
            while len(data) < size:  # one system call gives at most 2 GiB
                more = os.read(self._file, size - len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise ArrayFault("unreadable", f"cannot be read: {error.strerror or error}") from error
        return data
