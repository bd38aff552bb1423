# SPDX-License-Identifier: Apache-2.0
"""One image file as uint8 [H, W, 3] RGB, upright, or a `SampleError` that says why not.

The first bytes choose the decoder, not the name, and no other decoder sees the data. The header's size is judged before
anything is decoded. Neither Pillow's global settings nor warning filters are touched, so threads may decode at once.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from fewbit.data.images.pixels import SIDEWAYS, Color, orientation_of, to_rgb, turn_upright
from fewbit.data.images.signatures import HEAD, SUFFIXES_BY_FORMAT, image_format
from fewbit.data.types import NOWHERE, DataReport, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import plural

if TYPE_CHECKING:
    from PIL import ImageFile

MOST_PIXELS = 178_956_970  # where Pillow itself raises; its warning at half of that is not asked for
MOST_BYTES = 8 * MOST_PIXELS  # the largest image, uncompressed, with four channels of 16 bits
MOST_READS = 2_000_000  # calls for one file: a gigabyte of padding would be stepped over byte by byte
TINY = 10
WHITE: Color = (255, 255, 255)
_SMALL_FILE = 4 << 20


def _damage(code: str, meaning: str, hint: str = "restore or remove it") -> IssueType:
    return IssueType(code, Severity.ERROR, meaning, hint, "raise", ("drop",), "leaves the image out")


def _doubt(code: str, meaning: str, hint: str, **fields: Any) -> IssueType:
    return IssueType(code, Severity.WARNING, meaning, hint, **fields)


IMAGE_EMPTY = _damage("image-empty", "empty image file")
IMAGE_TRUNCATED = _damage("image-truncated", "truncated image file")
IMAGE_UNREADABLE = _damage("image-unreadable", "file that cannot be decoded as an image")
IMAGE_BOMB = _damage("image-bomb", "image that is too large to decode", "resize or remove it")
IMAGE_FORMAT_UNSUPPORTED = _damage(
    "image-kind-unsupported", "image of a format that is not read", "convert it to PNG or JPEG"
)
IMAGE_SUFFIX = _doubt(
    "image-extension-mismatch", "image whose name says another format", "rename it", actions=("repair",),
    fix="gives the file the suffix of its format",
)  # fmt: skip
IMAGE_ANIMATED = _doubt(
    "image-animated", "animation, of which only the first frame is used", "save its frames as images"
)
IMAGE_MULTIPAGE = _doubt(
    "image-multipage", "several pages, of which only the first is used", "save its pages as images"
)
IMAGE_TINY = _doubt(
    "image-tiny", f"image of fewer than {TINY} pixels on one side", "check whether it is a thumbnail or an icon"
)
IMAGE_ISSUES = (
    IMAGE_EMPTY, IMAGE_TRUNCATED, IMAGE_UNREADABLE, IMAGE_BOMB, IMAGE_FORMAT_UNSUPPORTED, IMAGE_SUFFIX, IMAGE_ANIMATED,
    IMAGE_MULTIPAGE, IMAGE_TINY,
)  # fmt: skip
"""What decoding and inspecting images can report; formats that hold images list these among their issues."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What a file says of its image before decoding: Pillow's format name, upright size, frames or pages."""

    format: str
    width: int
    height: int
    frames: int = 1


def decode_image(
    content: bytes | BinaryIO,
    location: Location = NOWHERE,
    *,
    background: Color = WHITE,
    report: DataReport | None = None,
) -> np.ndarray:
    """Decode one image.

    Args:
        content: the bytes of the file, or a seekable stream of it.
        location: of the file, for errors.
        background: the color behind transparent pixels.
        report: takes a warning about an animation or several pages.

    Returns:
        uint8 [H, W, 3], RGB, upright, writable.

    Raises:
        SampleError: empty, truncated, no image, too large, or of a format that is not read.
    """
    with open_image(content, location) as (image, stream):
        if report is not None:
            report_frames(read_header(image, stream), location, report)
        image.load()
        return turn_upright(to_rgb(image, background), orientation_of(image))


def image_size(content: bytes | BinaryIO, location: Location = NOWHERE) -> tuple[int, int]:
    """Width and height of the upright image, from the header alone; raises as `decode_image`."""
    with open_image(content, location, header_only=True) as (image, stream):
        return _upright_size(image, stream)


def read_header(image: ImageFile.ImageFile, stream: BinaryIO) -> ImageHeader:
    """The header of an image that is open and not loaded yet."""
    return ImageHeader(str(image.format), *_upright_size(image, stream), int(getattr(image, "n_frames", 1)))


def _upright_size(image: ImageFile.ImageFile, stream: BinaryIO) -> tuple[int, int]:
    width, height = image.size
    return (height, width) if orientation_of(image, stream) in SIDEWAYS else (width, height)


def report_frames(header: ImageHeader, location: Location, report: DataReport) -> None:
    """Warn if the image is the first of several in its file."""
    if header.frames > 1:
        kind, noun = (IMAGE_MULTIPAGE, "page") if header.format == "TIFF" else (IMAGE_ANIMATED, "frame")
        report.add(kind, plural(header.frames, noun), location)


@contextmanager
def open_image(
    content: bytes | BinaryIO, location: Location, *, header_only: bool = False
) -> Iterator[tuple[ImageFile.ImageFile, BinaryIO]]:
    """A file as the Pillow image it is, not loaded; whatever fails inside the block comes out as a `SampleError`.

    For masks and checks; to get pixels, use `decode_image`.
    """
    format = None
    try:
        stream = _bounded(content, location, read_all=not header_only)
        head = stream.read(HEAD)
        stream.seek(0)
        format = _readable_format(head, location)
        if format == "WEBP":  # its decoder allocates the canvas as soon as it is created
            _check_pixels(format, _webp_canvas(head), location)
        image = _decoder(format)(stream)
        _check_pixels(format, image.size, location)
        yield image, stream
    except SampleError:
        raise
    except Exception as error:  # decoders raise anything on damaged bytes
        reason = str(error) or type(error).__name__
        if format is not None and (isinstance(error, EOFError) or "truncated" in reason.lower()):
            raise SampleError(Issue(IMAGE_TRUNCATED, f"the {format} data ends early", location)) from error
        reason = f"damaged {format} data: {reason}" if format else reason
        raise SampleError(Issue(IMAGE_UNREADABLE, reason, location)) from error


def _bounded(content: bytes | BinaryIO, location: Location, *, read_all: bool) -> BinaryIO:
    """A stream of the file that cannot be read without end; a small file is read at once if all of it is needed."""
    stream = io.BytesIO(content) if isinstance(content, bytes | bytearray | memoryview) else content
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if size == 0:
        raise SampleError(Issue(IMAGE_EMPTY, "0 bytes", location))
    if size > MOST_BYTES:
        raise SampleError(Issue(IMAGE_BOMB, f"{size:,} bytes; at most {MOST_BYTES:,} are read", location))
    if read_all and size <= _SMALL_FILE:
        return stream if isinstance(stream, io.BytesIO) else io.BytesIO(stream.read(_SMALL_FILE))
    return cast(BinaryIO, _CountedReads(stream, location))


class _CountedReads:
    """A stream that stops answering after too many reads."""

    def __init__(self, stream: BinaryIO, location: Location):
        self._stream, self._location, self._left = stream, location, MOST_READS
        self.seek, self.tell, self.readline = stream.seek, stream.tell, stream.readline

    def read(self, size: int = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise SampleError(Issue(IMAGE_BOMB, f"not read to its end in {MOST_READS:,} steps", self._location))
        return self._stream.read(size)


def _readable_format(head: bytes, location: Location) -> str:
    format = image_format(head)
    if format in SUFFIXES_BY_FORMAT:
        return format
    if format is not None:
        raise SampleError(Issue(IMAGE_FORMAT_UNSUPPORTED, f"a {format} image", location))
    start = head[:16]
    beginning = repr(start.decode()) if start.isascii() and start.decode().isprintable() else start.hex(" ")
    if head.startswith(b"version https://git-lfs"):
        beginning = "a Git LFS pointer: run `git lfs pull`"
    raise SampleError(Issue(IMAGE_UNREADABLE, f"no image; it begins with {beginning}", location))


def _webp_canvas(head: bytes) -> tuple[int, int]:
    """Width and height in the header of a WebP file: extended, lossy or lossless."""
    number = int.from_bytes(head[20:], "little")
    match head[12:16]:
        case b"VP8X":
            return (number >> 32 & 0xFFFFFF) + 1, (number >> 56 & 0xFFFFFF) + 1
        case b"VP8 ":
            return number >> 48 & 0x3FFF, number >> 64 & 0x3FFF
        case b"VP8L":
            return (number >> 8 & 0x3FFF) + 1, (number >> 22 & 0x3FFF) + 1
    return 0, 0


def _check_pixels(format: str, size: tuple[int, int], location: Location) -> None:
    width, height = size
    if width * height > MOST_PIXELS:
        message = f"the {format} header claims {width:,} x {height:,} pixels; at most {MOST_PIXELS:,} are decoded"
        raise SampleError(Issue(IMAGE_BOMB, message, location))


@cache
def _decoder(format: str) -> Any:
    # The class itself: Image.open tries every decoder there is and warns at half of our limit.
    name = "WebP" if format == "WEBP" else format.capitalize()
    return getattr(importlib.import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
