# SPDX-License-Identifier: Apache-2.0
"""The plain text of a file: unpacked, in UTF-8, lines ended by LF.

Encodings are never guessed from letters: UTF-8, the encoding of a byte-order mark, or the one the user names. Files
that are UTF-8 already are read in place, so offsets are those of the file; others are streamed, and copied into the
cache on the first random access.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import zstandard

from fewbit.data.cache import cached_file
from fewbit.data.types import Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import UsageError

FIRST_BLOCK, BLOCK = 1 << 16, 1 << 20
MOST_EXPANSION, LEAST_BOMB = 1000, 16 << 20
"""A packed file may grow a thousandfold, and to 16 MB whatever it was: blank text packs very well."""
_HEAD = 1 << 16
_FEED = 2048  # four bytes of zstd may become 128 KB
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PACKED = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
PACKED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}

BAD_COMPRESSION = IssueType(
    "bad-compression", Severity.ERROR, "compressed file that is damaged or cut off", "download the file again", "raise",
    ("drop",), "keeps the rows before the damage",
)  # fmt: skip
EXPANSION_BOMB = IssueType(
    "expansion-bomb", Severity.ERROR, "compressed file that grows beyond reason", "unpack and inspect it yourself",
    "raise", ("drop",), "keeps the rows before the limit",
)  # fmt: skip
PACKING_MISMATCH = IssueType(
    "packing-mismatch", Severity.WARNING, "compressed file whose name does not say so, or the other way round",
    "give the file the right suffix",
)  # fmt: skip
FILE_CHANGED = IssueType(
    "file-changed", Severity.ERROR, "file that changed while it was read", "open the dataset again", "raise", ("drop",)
)
ISSUES = (BAD_COMPRESSION, EXPANSION_BOMB, PACKING_MISMATCH, FILE_CHANGED)


@dataclass(frozen=True)
class TextFile:
    """How to read one file as plain text; made by `open_text`.

    Args:
        files: the dataset.
        name: of the file.
        packing: `gzip`, `zstd` or `None`.
        encoding: `utf-8`, or what it is to be decoded from.
        mark: bytes of the byte-order mark.
        carriage: lines end with CR, and LF does not occur.
    """

    files: Files
    name: str
    packing: str | None
    encoding: str
    mark: int
    carriage: bool = False

    @property
    def copied(self) -> bool:
        """Whether offsets are those of a plain copy, because the file is packed or not UTF-8."""
        return self.packing is not None or self.encoding != "utf-8"

    @property
    def begin(self) -> int:
        """Offset of the first character."""
        return 0 if self.copied else self.mark

    def pieces(self) -> Iterator[bytes]:
        """The entire text once, a small piece first.

        Raises:
            SampleError: the file cannot be opened, or is damaged from here on.
        """
        for piece in self._pieces():
            yield piece.replace(b"\r", b"\n") if self.carriage else piece

    def open(self) -> BinaryIO:
        """A seekable stream of the text, whose offsets are those of `pieces`; makes the copy if one is needed."""
        if not self.copied:
            return self.files.open(self.name)
        fingerprint = self.files.fingerprint(self.name)
        key = "\0".join((self.files.root, self.name, fingerprint, self.encoding, "plain text 1"))
        return cached_file(key, lambda stream: self._copy(stream, fingerprint)).open("rb")

    def read(self, stream: BinaryIO, offset: int, size: int) -> bytes:
        """Text at an offset of a stream from `open`."""
        try:
            stream.seek(offset)
            text = stream.read(size)
        except OSError as error:
            from fewbit.data.files import FILE_UNREADABLE

            raise SampleError(Issue(FILE_UNREADABLE, str(error), Location(self.name))) from error
        return text.replace(b"\r", b"\n") if self.carriage else text

    def _copy(self, stream: BinaryIO, fingerprint: str) -> None:
        try:
            for piece in self._pieces():
                stream.write(piece)
        except SampleError:
            pass  # the scan reports the damage; the text before it is of use
        if self.files.fingerprint(self.name) != fingerprint:  # what was read is neither the old file nor the new one
            raise SampleError(Issue(FILE_CHANGED, "it changed while it was unpacked", Location(self.name)))

    def _pieces(self) -> Iterator[bytes]:
        pieces = _unpacked(self.files, self.name, self.packing)
        if self.encoding != "utf-8":
            return _decoded(pieces, self.encoding, self.mark)
        return _without(pieces, self.mark)


def open_text(files: Files, name: str, encoding: str | None = None) -> tuple[TextFile, list[Issue]]:
    """Find out how a file is packed and encoded by its first bytes.

    Args:
        files: the dataset.
        name: of the file.
        encoding: the user's choice.

    Raises:
        SampleError: it cannot be opened.
        UsageError: there is no such encoding.
    """
    issues = []
    start = files.read(name, 4)
    packing = next((kind for magic, kind in _PACKED if start.startswith(magic)), None)
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    if start and packing != PACKED_SUFFIXES.get(suffix):
        state = f"compressed with {packing}" if packing else "not compressed"
        issues.append(Issue(PACKING_MISMATCH, f"{state}, but called {suffix or name}", Location(name)))
    head = b""
    try:
        for piece in _unpacked(files, name, packing):
            head += piece
            if len(head) >= _HEAD:
                break
    except SampleError:
        pass  # reported where the text is read
    detected, mark = next(((kind, len(magic)) for magic, kind in _MARKS if head.startswith(magic)), ("utf-8", 0))
    requested = _codec(encoding) if encoding else detected
    if requested != detected and not (requested == "utf-16" and detected.startswith("utf-16")):
        mark = 0
    codec = detected if requested == "utf-16" and mark else requested
    sample = b"".join(_decoded(iter([head]), codec, mark)) if codec != "utf-8" else head
    return TextFile(files, name, packing, codec, mark, b"\r" in sample[:-1] and b"\n" not in sample), issues


def _codec(encoding: str) -> str:
    """The canonical name of a text encoding."""
    try:
        info = codecs.lookup(encoding)
        if not getattr(info, "_is_text_encoding", True):
            raise LookupError(encoding)
    except (LookupError, ValueError):
        raise UsageError(
            f"no encoding is called {encoding!r}", code="encoding-unknown", param="data_option",
            expected="utf-8, cp1252, latin-1, utf-16, shift_jis or another one of Python's",
            hint="{data_option=encoding=cp1252}",
        ) from None  # fmt: skip
    return "utf-8" if info.name in ("utf-8", "utf-8-sig", "ascii") else info.name


def _unpacked(files: Files, name: str, packing: str | None) -> Iterator[bytes]:
    """The bytes of a file, unpacked; a small piece first."""
    with files.open(name) as stream:
        if packing is None:
            yield from _read(stream, name)
            return
        allowed = max(LEAST_BOMB, MOST_EXPANSION * files.size(name))
        total = 0
        for piece in _gzip(stream, name) if packing == "gzip" else _zstd(stream, name):
            total += len(piece)
            if total > allowed:
                message = f"more than {allowed:,} bytes from {files.size(name):,}"
                raise SampleError(Issue(EXPANSION_BOMB, message, Location(name)))
            yield piece


def _read(stream: BinaryIO, name: str) -> Iterator[bytes]:
    size = FIRST_BLOCK
    try:
        while piece := stream.read(size):
            yield piece
            size = BLOCK
    except OSError as error:
        raise SampleError(Issue(BAD_COMPRESSION, f"reading failed: {error}", Location(name))) from error


def _gzip(stream: BinaryIO, name: str) -> Iterator[bytes]:
    size = FIRST_BLOCK
    try:
        with gzip.GzipFile(fileobj=stream) as unpacked:  # reads across members and zero padding
            while piece := unpacked.read(size):
                yield piece
                size = BLOCK
    except (EOFError, OSError, zlib.error) as error:
        raise SampleError(Issue(BAD_COMPRESSION, _reason(error), Location(name))) from error


def _zstd(stream: BinaryIO, name: str) -> Iterator[bytes]:
    decoder: Any = None
    pieces: list[bytes] = []
    size, limit = 0, FIRST_BLOCK
    try:
        while packed := stream.read(_FEED):
            while packed:
                decoder = decoder or zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
                pieces.append(decoder.decompress(packed))
                size += len(pieces[-1])
                packed = b""
                if decoder.eof:
                    packed, decoder = decoder.unused_data, None
            if size >= limit:
                yield b"".join(pieces)
                pieces, size, limit = [], 0, BLOCK
    except (zstandard.ZstdError, OSError, MemoryError) as error:
        if pieces:
            yield b"".join(pieces)
        raise SampleError(Issue(BAD_COMPRESSION, _reason(error), Location(name))) from error
    if pieces:
        yield b"".join(pieces)
    if decoder is not None:
        raise SampleError(Issue(BAD_COMPRESSION, "the file ends inside a frame", Location(name)))


def _reason(error: BaseException) -> str:
    return "the file is cut off" if isinstance(error, EOFError) else str(error)


def _without(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    """The pieces without the first bytes."""
    for piece in pieces:
        skipped = min(count, len(piece))
        count -= skipped
        if len(piece) > skipped:
            yield piece[skipped:] if skipped else piece


def _decoded(pieces: Iterator[bytes], encoding: str, mark: int) -> Iterator[bytes]:
    """The pieces in UTF-8; a byte that cannot be decoded becomes one that is not UTF-8 either, and so is reported."""
    decoder = codecs.getincrementaldecoder(encoding)(errors=_UNDECODABLE)
    for piece in _without(pieces, mark):
        if text := decoder.decode(piece):
            yield text.encode("utf-8", "surrogatepass")
    if text := decoder.decode(b"", True):
        yield text.encode("utf-8", "surrogatepass")


_UNDECODABLE = "fewbit-undecodable"


def _mark_undecodable(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error(_UNDECODABLE, _mark_undecodable)
