# SPDX-License-Identifier: Apache-2.0
"""Files behind URLs through fsspec: `s3://`, `gs://`, `hf://`, `https://` and other schemes of fsspec.

Files are read by ranges with a bounded read-ahead and a bounded cache; random access never downloads an entire file.
Credentials and endpoints are fsspec's: environment variables such as `AWS_PROFILE`, `FSSPEC_S3_ENDPOINT_URL`.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

from fewbit.data.archives import expand_braces, is_archive, listed_files, open_archive
from fewbit.data.files import folder_order
from fewbit.data.hub import is_database_url
from fewbit.data.streams import RangeStream
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import DataError, MissingLibraryError, UsageError, nearest, require

BLOCK = 64 << 10
"""The smallest range that is read."""
READ_AHEAD = 1 << 20
"""The largest range that is read beyond what was asked for, while a file is read in order."""
CACHE_BYTES = 64 << 20
ATTEMPTS = 3

REMOTE_UNREADABLE = IssueType(
    "remote-unreadable", Severity.ERROR, "remote file that cannot be read",
    "check the address, the credentials and the network", "raise", ("drop",), "leaves the file out",
)  # fmt: skip
ISSUES = (REMOTE_UNREADABLE,)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"(s3a?|gc?s|hf|https?):/(?!/)", re.IGNORECASE)
_LIBRARIES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp",
    "https": "aiohttp",
}  # fmt: skip
_SECRETS = re.compile(
    r"(?P<user>://[^/\s:@]+:)[^@/\s]+(?=@)"
    r"|(?P<query>[?&](?:[\w-]*(?:token|secret|signature|credential|password|key|sig)[\w-]*)=)[^&\s'\"]+"
    r"|(?P<known>\bhf_|\bAKIA|Bearer )[\w.-]{8,}",
    re.IGNORECASE,
)
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, ValueError, TypeError)


def is_url(data: str) -> bool:
    """Whether a text is meant as a URL of files; URLs of databases are not.

    >>> is_url("s3://bucket/data"), is_url("postgresql://host/db"), is_url("C:/data"), is_url("s3:/bucket")
    (True, False, False, True)
    """
    return bool(_SCHEME.match(data) or _ONE_SLASH.match(data)) and not is_database_url(data)


def open_url(url: str, report: DataReport) -> Files:
    """The files behind a URL: a prefix, one file, an archive, or a pattern such as `s3://b/train-{000..099}.tar`.

    Args:
        url: as the user wrote it.
        report: takes issues of single files.

    Raises:
        MissingLibraryError: the library of this scheme is not installed.
        DataError: there is nothing, or it cannot be reached.
    """
    report.source = mask_secrets(url)
    if _ONE_SLASH.match(url):  # also what pathlib makes of a URL
        raise UsageError(
            "a URL with one slash", code="url-unknown", param="data", where=mask_secrets(url),
            expected=mask_secrets(url.replace(":/", "://", 1)), hint="write two slashes, and give a text, not a Path",
        )  # fmt: skip
    base, _, last = url.rpartition("/")
    if "{" not in last:
        files = RemoteFiles(url)
        single = files.names()[0] if len(files.names()) == 1 else ""
        return open_archive(files, single, files.root, report) if is_archive(single) else files
    if url.startswith("http"):  # a web server has no listing
        return RemoteFiles(base, names=expand_braces(last), root=url)
    shards = listed_files(RemoteFiles(base), last, mask_secrets(url), report)
    if shards is None:
        raise _missing(url)
    return shards


def mask_secrets(text: str) -> str:
    """A text without passwords, tokens and signatures; everything else stays as it is.

    >>> mask_secrets("https://me:pw@host/a.zip?x=1&X-Amz-Signature=abc&y=2")
    'https://me:***@host/a.zip?x=1&X-Amz-Signature=***&y=2'
    """
    return _SECRETS.sub(lambda match: f"{match['user'] or match['query'] or match['known'] or ''}***", text)


class RemoteFiles:
    """The files below a URL, or one file.

    Args:
        url: a prefix or a file.
        names: the files below it, where the server has no listing.
        root: how the user named it, if not by `url`.
    """

    def __init__(self, url: str, names: Sequence[str] | None = None, root: str | None = None):
        self._url, self.root = url, mask_secrets(root or url)
        self._details: dict[str, tuple[int | None, str]] = {}  # size and tag
        self._start()
        self._folder, self._names = self._list() if names is None else (self._path.rstrip("/") + "/", tuple(names))

    def __getstate__(self) -> dict[str, Any]:
        return {key: self.__dict__[key] for key in ("_url", "root", "_details", "_folder", "_names")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self._process, self._lock = os.getpid(), threading.RLock()
        self._system, self._path = _connect(self._url)
        self._streams: OrderedDict[str, Any] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._next: dict[str, tuple[int, int]] = {}  # block behind the last request, read-ahead

    def _list(self) -> tuple[str, tuple[str, ...]]:
        """The path that names are relative to, and the names."""
        path = self._path
        try:
            if self._url.startswith(("http://", "https://")) or self._system.isfile(path):
                folder, _, name = path.rpartition("/")
                self._details[name] = _size_and_tag(self._system.info(path))
                return folder + "/", (name,)
            listing = self._system.find(path, detail=True)
        except Exception as error:
            raise _unreachable(self._url, error) from error
        prefix = path.rstrip("/") + "/"
        self._details = {
            name[len(prefix) :]: _size_and_tag(detail)
            for name, detail in listing.items()
            if name.startswith(prefix) and detail.get("type", "file") == "file"
        }
        if not self._details:
            raise _missing(self._url)
        return prefix, tuple(folder_order(self._details))

    def names(self) -> Sequence[str]:
        """Every file below the URL."""
        return self._names

    def folders(self) -> Sequence[str]:
        """Every folder that holds a file; object stores have no empty ones."""
        return folder_order({name[:end] for name in self._names for end, sign in enumerate(name) if sign == "/"})

    def open(self, name: str) -> BinaryIO:
        """A seekable stream that reads ranges."""
        return cast(BinaryIO, io.BufferedReader(_RemoteStream(self, name), BLOCK))

    def size(self, name: str) -> int:
        """Bytes of one file."""
        size, _ = self._detail(name)
        if size is None:
            raise self._unreadable(name, "the server does not say how long it is")
        return size

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of one file."""
        return self.read_range(name, 0, min(limit, self.size(name)))

    def fingerprint(self, name: str) -> str:
        """The server's tag, version or date, and the size."""
        size, tag = self._detail(name)
        return f"{tag}-{size}"

    def path(self, name: str) -> str | None:
        """No file is on this machine."""
        return None

    def location(self, name: str) -> str:
        """The URL of a file, without secrets."""
        return f"{self.root.rstrip('/')}/{name}" if self._folder == self._path.rstrip("/") + "/" else self.root

    def read_range(self, name: str, start: int, count: int) -> bytes:
        """Bytes of one file, from the cache where they are in it.

        Raises:
            SampleError: the server does not give them; the message has URL and offset.
        """
        if self._process != os.getpid():  # connections do not survive a fork
            self._start()
        first, last = start // BLOCK, (start + max(count, 1) - 1) // BLOCK
        with self._lock:
            blocks = {number: self._blocks.get((name, number)) for number in range(first, last + 1)}
            missing = [number for number, block in blocks.items() if block is None]
            fetched = self._fetch_blocks(name, missing[0], missing[-1]) if missing and count > 0 else {}
            content = b"".join(fetched.get(number) or block or b"" for number, block in blocks.items())
            for number in blocks:
                if (name, number) in self._blocks:
                    self._blocks.move_to_end((name, number))
        return content[start - first * BLOCK : start - first * BLOCK + max(count, 0)]

    def _fetch_blocks(self, name: str, first: int, last: int) -> dict[int, bytes]:
        """One request; what follows is read too while a file is read in order, up to a limit that doubles."""
        expected, ahead = self._next.pop(name, (-1, 0))
        ahead = min(max(2 * ahead, 1), READ_AHEAD // BLOCK) if first == expected else 0
        content = self._fetch(name, first * BLOCK, min(self.size(name), (last + 1 + ahead) * BLOCK))
        blocks = {first + offset // BLOCK: content[offset : offset + BLOCK] for offset in range(0, len(content), BLOCK)}
        self._next[name] = (first + len(blocks), ahead)
        if len(self._next) > 1000:
            self._next.pop(next(iter(self._next)))
        for number, block in blocks.items():
            self._blocks[name, number] = block
        while len(self._blocks) * BLOCK > CACHE_BYTES:
            self._blocks.popitem(last=False)
        return blocks

    def _fetch(self, name: str, start: int, end: int) -> bytes:
        """One range, tried several times unless the answer will not change."""
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(0.1 * 4 ** (attempt - 1))
            try:
                stream = self._stream(name)
                stream.seek(start)
                content = cast(bytes, stream.read(end - start))
                if len(content) == end - start:
                    return content
                reason = f"{len(content):,} of {end - start:,} bytes"
            except Exception as error:  # each file system raises the errors of its library
                reason = f"{type(error).__name__}: {error}"
                if "range requests" in reason:
                    reason = "the server does not support range requests; download the file"
                if isinstance(error, _PERMANENT):
                    break
            finally:
                if reason:
                    self._streams.pop(name, None)
        raise self._unreadable(name, f"bytes {start:,} to {end:,}: {reason}")

    def _stream(self, name: str) -> Any:
        if name not in self._streams:
            stream = self._system.open(self._folder + name, "rb", cache_type="none")
            if not stream.seekable() or type(stream).__name__ == "HTTPStreamFile":
                raise NotImplementedError("no range requests")
            self._streams[name] = stream
            if len(self._streams) > 16:
                self._streams.popitem(last=False)
        return self._streams[name]

    def _detail(self, name: str) -> tuple[int | None, str]:
        if name not in self._details:
            try:
                self._details[name] = _size_and_tag(self._system.info(self._folder + name))
            except Exception as error:
                raise self._unreadable(name, f"{type(error).__name__}: {error}") from error
        return self._details[name]

    def _unreadable(self, name: str, reason: str) -> SampleError:
        return SampleError(Issue(REMOTE_UNREADABLE, mask_secrets(reason)[:300], Location(self.location(name))))


def _size_and_tag(detail: Mapping[str, Any]) -> tuple[int | None, str]:
    size = detail.get("size")
    tag = next((str(detail[key]) for key in _TAGS if detail.get(key)), "")
    return None if size is None else int(size), tag


_TAGS = ("ETag", "etag", "md5Hash", "blob_id", "generation", "LastModified", "mtime", "created")


class _RemoteStream(RangeStream):
    """One remote file."""

    def __init__(self, files: RemoteFiles, name: str):
        super().__init__(files.size(name))
        self._files, self._name = files, name

    def content(self, position: int, count: int) -> bytes:
        """A range of the file."""
        return self._files.read_range(self._name, position, count)


def _connect(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, with timeouts, and the path in it."""
    scheme = url.partition("://")[0].lower()
    fsspec = require("fsspec", extra="remote", purpose="URLs")
    if scheme in _LIBRARIES:
        require(_LIBRARIES[scheme], extra="remote", purpose=f"{scheme}:// URLs")
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        names = nearest(scheme, _LIBRARIES) or ("s3", "gs", "hf", "https")
        raise UsageError(
            f"no file system is called {scheme}://", code="url-unknown", param="data", where=mask_secrets(url),
            expected=", ".join(f"{name}://" for name in names), hint="check the spelling",
        ) from error  # fmt: skip
    except ImportError as error:
        raise MissingLibraryError(
            f"{scheme}:// URLs need a library", code="library-missing", where=mask_secrets(url), hint=str(error)
        ) from error
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url, **_timeouts(scheme)))
    except Exception as error:
        raise _unreachable(url, error) from error


def _timeouts(scheme: str) -> dict[str, Any]:
    if scheme in ("s3", "s3a"):
        return {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": ATTEMPTS}}}
    if scheme in ("http", "https"):
        timeout = require("aiohttp", extra="remote", purpose="https:// URLs").ClientTimeout(connect=10, sock_read=60)
        return {"client_kwargs": {"timeout": timeout, "trust_env": True}}
    return {"requests_timeout": 60} if scheme in ("gs", "gcs") else {}


def _missing(url: str) -> DataError:
    return DataError(
        "there are no files at this address", code="data-missing", where=mask_secrets(url),
        expected="a prefix, file or archive", hint="check the spelling; list it with the tool of your provider",
    )  # fmt: skip


def _unreachable(url: str, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return _missing(url)
    denied = isinstance(error, PermissionError) or "credentials" in str(error).lower()
    hint = "check the network and the address"
    if denied:
        hint = "log in with the tool of your provider, or FSSPEC_S3_ANON=true for a public bucket"
    return DataError(
        "access denied" if denied else "the address cannot be reached",
        code="url-denied" if denied else "url-unreachable",
        where=mask_secrets(f"{url} ({type(error).__name__}: {error})")[:500],
        expected="a readable URL",
        hint=hint,
    )
