# SPDX-License-Identifier: Apache-2.0
"""One image file as an array: (H, W, 3) uint8 RGB, upright, or an `ImageFault` that says why not.

The file's own first bytes choose the decoder, not its name, so that only the one decoder ever sees the data.
Size is judged from the header before anything is decoded. Pillow's global settings and Python's warning filters
stay as the caller has them.
"""

from __future__ import annotations

import importlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fewbit.data import limits
from fewbit.data.findings import Code, Severity
from fewbit.data.images import orientation, sniff
from fewbit.data.images.pixels import Array, Background, to_rgb

if TYPE_CHECKING:
    from PIL import ImageFile

_BROKEN = "restore the file from its origin, or remove it"


def _unfit(meaning: str, fix: str = _BROKEN) -> Code:
    return Code(Severity.ERROR, meaning, fix, policy="raise", policies=("drop",))


CODES: dict[str, Code] = {
    "image-empty": _unfit("an image file has no bytes"),
    "image-truncated": _unfit("an image file ends before its pixels do"),
    "image-unreadable": _unfit("a file cannot be decoded as an image"),
    "image-denied": _unfit("the system refuses to read an image file", "check the file's owner and permissions"),
    "image-bomb": _unfit("an image claims to be larger than anything sane", "resize it, or remove it"),
    "image-kind-unsupported": _unfit("an image of a kind that is not read", "convert it to PNG or JPEG"),
    "image-extension-mismatch": Code(
        Severity.WARN, "a file's name says one kind of image and its content another", "rename the file"
    ),
    "image-animated": Code(
        Severity.WARN, "an animation; only its first frame is used", "save the frames you want as images of their own"
    ),
    "image-multipage": Code(
        Severity.WARN, "several pages in one file; only the first is used", "save the pages as images of their own"
    ),
    "image-tiny": Code(
        Severity.WARN, "an image is smaller than 10 pixels", "look whether it is a thumbnail or an icon"
    ),
}

WHITE: Background = (255, 255, 255)
TINY = 10
"""Below this many pixels on a side an image is suspect."""

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WHOLE = 4 << 20
_READS = 2_000_000
_FILE_BYTES = limits.IMAGE_PIXELS * 8  # the largest allowed image, stored plainly with 16 bits a channel
_PLUGINS = {
    "jpeg": ("JpegImagePlugin", "JpegImageFile"),
    "png": ("PngImagePlugin", "PngImageFile"),
    "ppm": ("PpmImagePlugin", "PpmImageFile"),
    "bmp": ("BmpImagePlugin", "BmpImageFile"),
    "tiff": ("TiffImagePlugin", "TiffImageFile"),
    "webp": ("WebPImagePlugin", "WebPImageFile"),
    "gif": ("GifImagePlugin", "GifImageFile"),
}


class ImageFault(Exception):
    """Why one image file cannot be used: a code of `CODES` and a sentence; the caller knows the place."""

    def __init__(self, code: str, message: str):
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


@dataclass(frozen=True, slots=True)
class Header:
    """What an image file says of itself before it is decoded; width and height are those of the upright image."""

    kind: str
    width: int
    height: int
    frames: int


def read_image(path: str | Path, *, background: Background = WHITE) -> Array:
    """Decode one image file.

    Args:
        path: the file.
        background: the colour laid under transparent pixels.

    Returns:
        A writable array (H, W, 3) of uint8, RGB, turned upright by its EXIF orientation.

    Raises:
        ImageFault: empty, truncated, not an image, too large or of a kind that is not read.
    """
    with _opened(path) as (kind, image, _):
        image.load()
        # Pillow turns a TIFF by itself while it loads it.
        turn = orientation.UPRIGHT if kind == "tiff" else orientation.orientation(image.info)
        return orientation.upright(to_rgb(image, background), turn)


def image_size(path: str | Path) -> tuple[int, int]:
    """Width and height of the upright image, from the header alone; raises as `read_image` does."""
    header = read_header(path, count_frames=False)
    return header.width, header.height


def read_header(path: str | Path, *, count_frames: bool = True) -> Header:
    """Kind, size and number of frames, nothing decoded; raises as `read_image` does."""
    with _opened(path) as (kind, image, file):
        width, height = image.size
        if kind != "tiff" and _turn(kind, image, file) in orientation.SIDEWAYS:
            width, height = height, width
        return Header(kind, width, height, int(getattr(image, "n_frames", 1)) if count_frames else 1)


def _turn(kind: str, image: ImageFile.ImageFile, file: IO[bytes]) -> int:
    info = image.info
    if kind == "png" and "exif" not in info and (late := orientation.late_exif(file)):
        info = {**info, "exif": late}
    return orientation.orientation(info)


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[str, ImageFile.ImageFile, IO[bytes]]]:
    """The file opened as the image it is; whatever goes wrong inside the block comes out as an `ImageFault`."""
    kind = None
    try:
        with _bounded(path) as file:
            head = file.read(sniff.HEAD)
            kind = kind_of(head)
            if kind == "webp":
                _judge(kind, *_webp_canvas(head))
            file.seek(0)
            image = _plugin(kind)(file)
            _judge(kind, *image.size)
            yield kind, image, file
    except ImageFault:
        raise
    except Exception as error:  # a decoder fed with broken bytes raises anything at all
        raise _fault(kind, error) from error


def _bounded(path: str | Path) -> IO[bytes]:
    # Without O_NONBLOCK the opening of a pipe would wait for a writer that never comes.
    handle = os.open(path, _FLAGS)
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise ImageFault("image-unreadable", "is not a regular file")
        if info.st_size == 0:
            raise ImageFault("image-empty", "the file is empty (0 bytes)")
        if info.st_size > _FILE_BYTES:
            raise ImageFault("image-bomb", f"the file has {info.st_size:,} bytes; an image may have {_FILE_BYTES:,}")
        if info.st_size > _WHOLE:
            return _Counted(io.FileIO(os.dup(handle), closefd=True))
        return io.BytesIO(os.read(handle, info.st_size))
    finally:
        os.close(handle)


class _Counted(io.BufferedReader):
    """A large file that stops answering after too many reads: a gigabyte of padding is stepped over byte by byte."""

    def __init__(self, raw: io.FileIO):
        super().__init__(raw)
        self._left = _READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ImageFault("image-bomb", f"its header is not read to the end in {_READS:,} steps")
        return super().read(size)


def kind_of(head: bytes) -> str:
    """The kind of image that begins with these bytes; raises `ImageFault` when it is none that is read."""
    kind = sniff.sniff(head)
    if kind is None:
        raise ImageFault("image-unreadable", f"is not an image: the file begins with {head[:16]!r}")
    if kind not in sniff.DECODABLE:
        raise ImageFault("image-kind-unsupported", f"is a {kind.upper()} image, which is not read")
    return kind


def _webp_canvas(head: bytes) -> tuple[int, int]:
    # The decoder reserves the whole canvas as soon as it is made, so its claim is looked at before.
    if head[12:16] != b"VP8X":
        return 0, 0
    return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1


def _judge(kind: str, width: int, height: int) -> None:
    if width * height > limits.IMAGE_PIXELS:
        claim = f"the {kind.upper()} header claims {width:,} x {height:,} pixels"
        raise ImageFault("image-bomb", f"{claim}; at most {limits.IMAGE_PIXELS:,} are decoded")


@cache
def _plugin(kind: str) -> Any:
    # The class itself, not Image.open: that one tries every format and warns at a lower number of pixels.
    module, name = _PLUGINS[kind]
    return getattr(importlib.import_module(f"PIL.{module}"), name)


def refusal(error: OSError) -> ImageFault:
    """The fault of a file that the system does not hand over."""
    code = "image-denied" if isinstance(error, PermissionError) else "image-unreadable"
    return ImageFault(code, f"cannot be read: {error.strerror}")


def _fault(kind: str | None, error: Exception) -> ImageFault:
    if kind is None:
        if isinstance(error, OSError):
            return refusal(error)
        return ImageFault("image-unreadable", f"cannot be read: {error}")
    text = str(error) or type(error).__name__
    if "truncated" in text.lower() or isinstance(error, EOFError):
        return ImageFault("image-truncated", f"the {kind.upper()} ends too early: {text}")
    return ImageFault("image-unreadable", f"the {kind.upper()} cannot be decoded: {text}")
