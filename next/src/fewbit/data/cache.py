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
from collections.abc import Callable, Iterator
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
    folder = cache_folder()
    path = folder / digest[:2] / digest
    if _touch(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f"{digest}.", suffix=".tmp", dir=path.parent)
    except OSError:
        folder = _process_folder()
        path = folder / digest
        if path.exists():
            return path
        descriptor, temporary = tempfile.mkstemp(prefix=f"{digest}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            free = shutil.disk_usage(folder).free
            raise ResourceError(
                f"the disk is full: {free:,} bytes are free in {folder}",
                code="disk-full",
                where=str(folder),
                hint="free some space, or set FEWBIT_CACHE_DIR to a folder on another disk",
            ) from error
        raise
    trim(folder, keep=path)
    return path


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
    limit = MOST_BYTES if max_bytes is None else max_bytes
    files = sorted(_files(folder))
    total = sum(size for _, size, _ in files)
    for used, size, path in files:
        abandoned = path.suffix == ".tmp" and used < time.time() - _ABANDONED
        if abandoned or (total > limit and path != keep and path.suffix != ".tmp"):
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Time of last use, size and path of each file."""
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path


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
