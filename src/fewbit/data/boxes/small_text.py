# SPDX-License-Identifier: Apache-2.0
"""Small files read whole: label files, list files, class names, a data.yaml. What is large or no file is refused."""

from __future__ import annotations

import os
import stat

from fewbit.data import limits


class Unreadable(Exception):
    """A small text file that cannot be read whole; the message says why, `offset` at which byte if it is one."""

    def __init__(self, message: str, offset: int | None = None):
        super().__init__(message)
        self.offset = offset


def read_small(path: str, most: int = limits.TEXT_BYTES) -> bytes:
    """The bytes of a file; anything else than a regular file of at most so many is `Unreadable`."""
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            raise Unreadable("is not a regular file")
        if info.st_size > most:
            raise Unreadable(f"has {info.st_size:,} bytes; at most {most:,} are read")
        with open(path, "rb") as file:
            return file.read(most)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: str, most: int = limits.TEXT_BYTES) -> str:
    """The same as text: strict UTF-8, with or without a byte order mark."""
    content = read_small(path, most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"has the byte {content[error.start]:#04x}, which is not UTF-8", error.start) from None
