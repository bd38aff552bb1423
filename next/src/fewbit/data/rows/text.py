# SPDX-License-Identifier: Apache-2.0
"""The plain text of a file: unpacked, in UTF-8, in pieces of complete lines ended by LF.

Encodings are never guessed from letters: UTF-8, the encoding of a byte-order mark, or the one the user names. Files
that are UTF-8 already are read in place, so offsets are those of the file; others are streamed, and copied into the
cache on the first random access.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol

import zstandard

from fewbit.data.cache import cached_file
from fewbit.data.files import FILE_UNREADABLE
from fewbit.data.types import Action, DataReport, Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import UsageError

FIRST_BLOCK, BLOCK = 1 << 16, 1 << 20
HEAD = 1 << 16
"""Bytes that decide on encoding, delimiter and shape."""
MOST_RECORD = 64 << 20
"""Bytes of one record; a longer one is the wrong file, or a line that never ends."""
MOST_EXPANSION, LEAST_BOMB = 1000, 16 << 20
"""A packed file may grow a thousandfold, and to 16 MB whatever it was: blank text packs very well."""
PACKED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
_PACKED = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
_FEED = 2048  # four bytes of zstd may become 128 KB
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UNDECODABLE = "fewbit-undecodable"
codecs.register_error(_UNDECODABLE, lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


def row_error(
    code: str,
    meaning: str,
    hint: str,
    *actions: Action,
    aliases: tuple[str, ...] = (),
    by_code: tuple[Action, ...] = (),
) -> IssueType:
    """An issue that makes a row unusable: reading stops, or the row is left out."""
    return IssueType(
        code, Severity.ERROR, meaning, hint, "raise", ("drop", *actions), "leaves the row out", aliases, by_code
    )


BAD_ENCODING = row_error(
    "bad-encoding", "bytes that are not in the text's encoding",
    "save the file as UTF-8, or name its encoding: {data_option=encoding=cp1252}",
)  # fmt: skip
NUL_BYTE = row_error(
    "nul-byte", "NUL byte in a text file",
    "copy the file again; if it is UTF-16 without a mark, {data_option=encoding=utf-16}",
)  # fmt: skip
ROW_TOO_LONG = row_error(
    "row-too-long", f"row longer than {MOST_RECORD >> 20} MB", "check that this is a table, one row per line"
)
EMPTY_FILE = IssueType("empty-file", Severity.WARNING, "file without a row", "remove the file, or write it again")
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
ISSUES = (
    BAD_ENCODING, NUL_BYTE, ROW_TOO_LONG, EMPTY_FILE, BAD_COMPRESSION, EXPANSION_BOMB, PACKING_MISMATCH, FILE_CHANGED,
)  # fmt: skip


@dataclass(frozen=True)
class TextFile:
    """How to read one file as plain text; made by `open_text`."""

    files: Files  # the dataset
    name: str  # of the file
    packing: str | None  # `gzip`, `zstd` or `None`
    encoding: str = "utf-8"  # `utf-8`, or what it is to be decoded from
    mark: int = 0  # bytes of the byte-order mark
    carriage: bool = False  # lines end with CR, and LF does not occur

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
        return _plain(pieces, self.encoding, self.mark)


def open_text(files: Files, name: str, report: DataReport, encoding: str | None = None) -> TextFile | None:
    """Find out how a file is packed and encoded by its first bytes; `None` after reporting that it cannot be opened.

    Raises:
        UsageError: there is no such encoding.
    """
    requested = _codec(encoding) if encoding else None
    try:
        start = files.read(name, 4)
    except SampleError as error:
        report.add_error(error)
        return None
    packing = next((kind for magic, kind in _PACKED if start.startswith(magic)), None)
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    if start and packing != PACKED_SUFFIXES.get(suffix):
        state = f"compressed with {packing}" if packing else "not compressed"
        report.add(PACKING_MISMATCH, f"{state}, but called {suffix or name}", Location(name))
    head = text_head(_unpacked(files, name, packing), HEAD)[0]
    detected, mark = next(((kind, len(magic)) for magic, kind in _MARKS if head.startswith(magic)), ("utf-8", 0))
    codec = requested or detected
    if codec == "utf-16" and detected.startswith("utf-16"):
        codec = detected
    mark = mark if codec == detected else 0
    sample = b"".join(_plain(iter([head]), codec, mark))
    return TextFile(files, name, packing, codec, mark, b"\r" in sample[:-1] and b"\n" not in sample)


def text_head(pieces: Iterator[bytes], size: int) -> tuple[bytes, bool]:
    """At least so many bytes of a text, as far as it can be read, and whether that is all of it."""
    head = b""
    try:
        for piece in pieces:
            head += piece
            if len(head) >= size:
                return head, False
    except SampleError:
        pass  # reported where the text is read
    return head, True


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


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _unpacked(files: Files, name: str, packing: str | None) -> Iterator[bytes]:
    """The bytes of a file, unpacked; a small piece first. Whatever a decoder raises becomes an issue here."""
    with files.open(name) as stream:
        limit = max(LEAST_BOMB, MOST_EXPANSION * files.size(name)) if packing else None
        unpacked: _Stream = stream
        if packing:
            unpacked = gzip.GzipFile(fileobj=stream) if packing == "gzip" else _Zstd(stream)
        total, size = 0, FIRST_BLOCK
        try:
            while piece := unpacked.read(size):
                total, size = total + len(piece), BLOCK
                if limit is not None and total > limit:
                    message = f"more than {limit:,} bytes from {files.size(name):,}"
                    raise SampleError(Issue(EXPANSION_BOMB, message, Location(name)))
                yield piece
        except (EOFError, OSError, MemoryError, zlib.error, zstandard.ZstdError) as error:
            reason = "the file is cut off" if isinstance(error, EOFError) else str(error)
            raise SampleError(Issue(BAD_COMPRESSION, reason, Location(name))) from error


class _Zstd:
    """Reads zstd frames one after another; unlike the library's stream it notices a file that is cut off."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._decoder: Any = None
        self._ended = False
        self._damage: BaseException | None = None

    def read(self, size: int) -> bytes:
        plain = bytearray()
        while len(plain) < size and not self._ended:
            try:
                plain += self._decode(self._stream.read(_FEED))
            except (EOFError, OSError, MemoryError, zstandard.ZstdError) as error:
                self._ended, self._damage = True, error
        if self._damage is not None and not plain:  # what came before the damage is given first
            raise self._damage
        return bytes(plain)

    def _decode(self, packed: bytes) -> bytes:
        self._ended = not packed
        if self._ended and self._decoder is not None:
            raise EOFError
        plain = b""
        while packed:
            self._decoder = self._decoder or zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            plain += self._decoder.decompress(packed)
            packed = b""
            if self._decoder.eof:
                packed, self._decoder = self._decoder.unused_data, None
        return plain


def _plain(pieces: Iterator[bytes], encoding: str, mark: int) -> Iterator[bytes]:
    """The pieces without the mark and in UTF-8; an undecodable byte becomes one that is not UTF-8 either."""
    decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)(errors=_UNDECODABLE)
    for piece in pieces:
        skipped = min(mark, len(piece))
        mark, piece = mark - skipped, piece[skipped:] if skipped else piece
        plain = piece if decoder is None else decoder.decode(piece).encode("utf-8", "surrogatepass")
        if plain:
            yield plain
    if decoder is not None and (text := decoder.decode(b"", True)):
        yield text.encode("utf-8", "surrogatepass")


class Lines(NamedTuple):
    """Complete lines of a text."""

    data: bytes | None  # the bytes; `None` for a line that is too long for memory
    offset: int  # of the first byte in the plain text
    line: int  # of the first byte, from 1
    last: bool  # no text follows


def complete_lines(pieces: Iterable[bytes], offset: int, max_bytes: int | None = None) -> Iterator[Lines]:
    """Regroup pieces of any size into pieces of complete lines; a line beyond the limit is skipped.

    >>> [(lines.data, lines.line, lines.last) for lines in complete_lines([b"a\\nb", b"c\\nd"], 0)]
    [(b'a\\n', 1, False), (b'bc\\n', 2, False), (b'd', 3, True)]
    """
    limit = MOST_RECORD if max_bytes is None else max_bytes
    incomplete: list[bytes] = []
    size, line, skipping = 0, 1, False
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if not end:
            size += len(piece)
            skipping = skipping or size > limit
            incomplete = [] if skipping else [*incomplete, piece]
            continue
        if skipping:
            first = piece.find(b"\n") + 1
            yield Lines(None, offset, line, False)
            offset, line, skipping = offset + size + first, line + 1, False
            data = piece[first:end]
        else:
            data = b"".join((*incomplete, piece[:end]))
        if data:
            yield Lines(data, offset, line, False)
        offset, line = offset + len(data), line + data.count(b"\n")
        incomplete, size = ([piece[end:]], len(piece) - end) if end < len(piece) else ([], 0)
    yield Lines(None if skipping else b"".join(incomplete), offset, line, True)


def readable(pieces: Iterator[bytes], report: DataReport) -> Iterator[bytes]:
    """The pieces up to where the file is damaged, which is reported."""
    try:
        yield from pieces
    except SampleError as error:
        report.add_error(error)


def usable(report: DataReport, kind: IssueType, message: str, location: Location) -> bool:
    """Report a problem of a record; whether the record can be used all the same."""
    return report.add(kind, message, location) in ("keep", "repair")


def short_repr(text: str, max_length: int = 40) -> str:
    """A value in a message, cut to a readable length.

    >>> short_repr("a" * 50)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'"
    """
    return repr(text if len(text) <= max_length else text[: max_length - 1] + "…")


def encoding_message(raw: bytes, error: UnicodeDecodeError) -> str:
    """What is wrong with a byte, for an issue."""
    return f"byte 0x{raw[error.start]:02x} is not UTF-8"
