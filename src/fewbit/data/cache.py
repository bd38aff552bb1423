# SPDX-License-Identifier: Apache-2.0
"""The user's cache: small derived files (row offsets, class lists), kept by the content they were made from.

A dataset's folder is never written to. An entry is found by the content's digest; a second table remembers
which digest a path had at a size and time of change, so that an unchanged file is not read again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 20


def folder() -> Path:
    """Where the cache lies: `$FEWBIT_CACHE`, else the platform's usual place. Made on first use."""
    chosen = os.environ.get("FEWBIT_CACHE")
    if chosen:
        path = Path(chosen)
    elif sys.platform == "darwin":
        path = Path.home() / "Library" / "Caches" / "fewbit"
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewbit"
    path.mkdir(parents=True, exist_ok=True)
    return path


def known_digest(path: Path) -> str | None:
    """The digest remembered for the file as it is now, or `None`: nothing is read."""
    try:
        return _memo(path).read_text()
    except FileNotFoundError:
        return None


def remember_digest(path: Path, before: os.stat_result, digest: str) -> None:
    """Keep a digest someone computed while reading the file for another purpose (see `hasher`).

    Args:
        path: the file.
        before: its `stat` from before it was read; a file that changed meanwhile is not remembered.
        digest: `hasher().hexdigest()` over its whole content.
    """
    after = path.stat()
    if (before.st_size, before.st_mtime_ns, before.st_ino) == (after.st_size, after.st_mtime_ns, after.st_ino):
        memo = _memo(path)
        keep(memo, lambda temporary: temporary.write_text(digest))


def hasher() -> hashlib.blake2b:
    """A fresh state of the hash that `digest` uses."""
    return hashlib.blake2b(digest_size=16)


def digest(path: Path) -> str:
    """The BLAKE2b digest of a file's content, remembered while its size and time of change stay the same.

    Cost: one read of the file the first time, two `stat` calls after that.
    """
    known = known_digest(path)
    if known is not None:
        return known
    before = path.stat()
    state = hasher()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    remember_digest(path, before, state.hexdigest())
    return state.hexdigest()


def entry(kind: str, path: Path, *detail: str) -> Path:
    """Where a derived file of this kind belongs for this content; it may not be there yet.

    Args:
        kind: what is derived, such as `rows`; change the word when its layout changes.
        path: the file it is derived from.
        detail: options that change the result.
    """
    return entry_of(kind, digest(path), *detail)


def entry_of(kind: str, name: str, *detail: str) -> Path:
    """The same for a digest that is known already."""
    if detail:
        name += "-" + hashlib.blake2b("\0".join(detail).encode(), digest_size=8).hexdigest()
    return _shelf(kind) / name


def keep(target: Path, write: Callable[[Path], object]) -> Path:
    """Put a file into the cache whole: `write` fills a temporary file beside it, which then takes its place."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".tmp-", suffix=target.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target


def _memo(path: Path) -> Path:
    stat = path.stat()
    key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}"
    return _shelf("digests") / hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _shelf(kind: str) -> Path:
    path = folder() / kind
    path.mkdir(parents=True, exist_ok=True)
    return path
