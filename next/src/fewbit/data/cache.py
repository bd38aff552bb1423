# SPDX-License-Identifier: Apache-2.0
"""The user's cache: files named by a hash of their sources, at most 16 GB, the least recently used go first.

It is in `FEWBIT_CACHE_DIR`, else in `~/.cache/fewbit`. A file is written under a temporary name and renamed, so a
reader never sees half of one. A cache that cannot be written is replaced by a temporary folder for this process.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import BinaryIO

from fewbit.errors import ResourceError

MOST_BYTES = 16 << 30
_ABANDONED = 86_400
"""Seconds after which an unfinished file belongs to a process that died."""


def cached_file(key: str, write: Callable[[BinaryIO], None]) -> Path:
    """The file made from a key; written on first use.

    Args:
        key: everything the content depends on: fingerprints of the sources, settings, version of the code.
        write: writes the content; its exceptions propagate, and nothing is kept.

    Raises:
        ResourceError: the disk is full.
    """
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
    folder = cache_folder() / digest[:2]
    if _touch(folder / digest):
        return folder / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f"{digest}.", suffix=".tmp", dir=folder)
    except OSError:
        folder = _process_folder()
        if (folder / digest).exists():
            return folder / digest
        descriptor, temporary = tempfile.mkstemp(prefix=f"{digest}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, folder / digest)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise ResourceError(
                f"the disk is full: {shutil.disk_usage(folder).free:,} bytes are free in {folder}", code="disk-full",
                where=str(folder), hint="free some space, or set FEWBIT_CACHE_DIR to a folder on another disk",
            ) from error  # fmt: skip
        raise
    trim(cache_folder(), keep=folder / digest)
    return folder / digest


def cache_folder() -> Path:
    """The folder of the cache; it need not exist."""
    configured = os.environ.get("FEWBIT_CACHE_DIR")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "fewbit"


def trim(folder: Path, keep: Path | None = None, max_bytes: int | None = None) -> None:
    """Delete the least recently used files until the cache is within its limit, and the leftovers of dead processes.

    Args:
        folder: the cache.
        keep: a file that must stay.
        max_bytes: 16 GB by default.
    """
    files = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    excess = sum(size for _, size, _ in files) - (MOST_BYTES if max_bytes is None else max_bytes)
    for used, size, path in sorted(files):
        unfinished = path.suffix == ".tmp"
        if used < time.time() - _ABANDONED if unfinished else excess > 0 and path != keep:
            with contextlib.suppress(OSError):
                path.unlink()
                excess -= size


def _touch(path: Path) -> bool:
    """Mark a file as used now; whether it exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:  # a cache that may be read but not written
        return path.exists()
    return True


@cache
def _process_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fewbit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
