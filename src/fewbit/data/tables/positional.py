# SPDX-License-Identifier: Apache-2.0
"""A file read at positions: opened on first use, closed with its owner, and never carried into another process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Positional:
    """Reads bytes at offsets without moving a shared position, so that threads do not disturb one another."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = None

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from an offset on."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return os.pread(self._descriptor, size, offset)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_descriptor": None}

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)
