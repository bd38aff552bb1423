# SPDX-License-Identifier: Apache-2.0
"""What tables of text have in common: a file that may be packed or in another encoding, read also at positions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fewbit.data.tables import compression, plain
from fewbit.data.tables.table import Fault, Table
from fewbit.errors import DataError


class TextTable(Table):
    """One file of text.

    Args:
        path: the file.
        name: its name relative to the dataset's root.
        encoding: the user's own word about its encoding.
    """

    def __init__(self, path: Path, name: str, *, encoding: str | None = None):
        super().__init__(path, name)
        self.encoding = encoding
        self._meter = compression.Meter()

    def chunks(self) -> Iterator[bytes]:
        """The file's plain text in pieces, from its beginning."""
        return plain.chunks(self.path, self.encoding, self._meter)

    def progress(self, rows: int) -> tuple[str, int, int | None]:
        """In bytes of the file as it lies on the disk."""
        return "bytes", self._meter.done, self._meter.total

    @cached_property
    def _beginning(self) -> plain.Beginning:
        return plain.beginning(self.path, self.encoding)

    @cached_property
    def _plain(self) -> plain.PlainFile:
        return plain.plain_file(self.path, self.encoding)

    @cached_property
    def _file(self) -> Positional:
        return Positional(self._plain.path)

    def notes(self) -> Sequence[Fault]:
        """That the file's name and its first bytes disagree about how it is packed."""
        named = compression.SUFFIXES.get(self.path.suffix.lower())
        found = self._beginning.packing
        if named == found or not self._beginning.first:
            return ()
        really = f"packed with {found}" if found else "not packed"
        return [Fault("packing-mismatch", f"{self.path.name} is {really}; read as what it is")]


class Positional:
    """Reads bytes at offsets without moving a shared position, so that threads do not disturb one another.

    Opened on first use, closed with its owner, and never carried into another process.
    """

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = None

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from an offset on.

        Raises:
            DataError: the file is not there any more.
        """
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise DataError(
                f"cannot read it any more: {error.strerror or error}",
                code="unreadable",
                where=self.path,
                try_="open the dataset again",
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_descriptor": None}

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the interpreter's exit `os` may be gone
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)
