# SPDX-License-Identifier: Apache-2.0
"""Pixels of a Pillow image as people see them: uint8 RGB without what a plain `convert("RGB")` loses, and upright.

The orientation is not read through Pillow's EXIF classes: those warn about damaged blocks and cost more than decoding a
small image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Color = tuple[int, int, int]
SIDEWAYS = frozenset((5, 6, 7, 8))
"""Orientations that swap width and height."""
_ORIENTATION_TAG = 0x0112
_MOST_TAGS = 1_024  # a real directory has a few dozen
_MOST_EXIF = 1 << 20


def to_rgb(image: Image.Image, background: Color) -> np.ndarray:
    """The pixels of a loaded image of any mode: uint8 [H, W, 3], writable, transparent ones over the background."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _deep_grey(image, background)
    from PIL import Image

    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (*background, 255))
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas
    elif image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        # Pillow inverts every CMYK JPEG; without Adobe's marker the stored values are plain amounts of ink.
        image = Image.frombytes("CMYK", image.size, (255 - np.asarray(image)).tobytes())
    if image.mode != "RGB":
        image = image.convert("RGB")
    return np.frombuffer(bytearray(image.tobytes()), np.uint8).reshape(image.height, image.width, 3)


def _deep_grey(image: Image.Image, background: Color) -> np.ndarray:
    values = np.asarray(image)
    # Pillow opens 16-bit PNG and PPM files as 32-bit "I" in some versions.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        # 65535 = 255 * 257, so white stays white, and one value is the same grey in every file.
        grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    else:
        grey = _scale_unknown_range(values)
    rgb = np.repeat(grey[:, :, None], 3, axis=2)
    color_key = image.info.get("transparency")
    if isinstance(color_key, int):
        rgb[values == color_key] = background
    return rgb


def _scale_unknown_range(values: np.ndarray) -> np.ndarray:
    """32-bit integers and floats, whose scale no file states: the narrowest common range that holds them."""
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite.min()), float(finite.max())
    if low < 0 or high > 65535:
        scaled = (finite - low) * (255 / (high - low)) if high > low else finite * 0
    elif high > 255:
        scaled = finite / 257
    else:
        scaled = finite * 255 if high <= 1 and values.dtype.kind == "f" else finite
    return np.rint(scaled).astype(np.uint8)


def turn_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels [H, W, ...] as they are meant to be seen."""
    if orientation == 1:
        return pixels
    if orientation in SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    row_step = -1 if orientation in (3, 4, 7, 8) else 1
    column_step = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::row_step, ::column_step])


def orientation_of(image: Image.Image, stream: BinaryIO | None = None) -> int:
    """The orientation, 1 to 8, in EXIF, PNG text or XMP; 1 if there is none that is valid.

    A PNG that is not loaded yet needs its stream: the EXIF block may be behind the pixels.
    """
    if image.format == "TIFF":
        return 1  # Pillow rotates a TIFF automatically while loading it
    info = image.info
    exif = info.get("exif")
    if exif is None and stream is not None and image.format == "PNG":
        exif = _late_exif(stream)
    if exif is None and (text := info.get("Raw profile type exif")):
        exif = _from_hex(str(text))
    if isinstance(exif, bytes) and (orientation := exif_orientation(exif)) is not None:
        return orientation
    return _xmp_orientation(info)


def exif_orientation(block: bytes) -> int | None:
    """The orientation in an EXIF block, with or without its `Exif` prefix; `None` if there is none.

    >>> exif_orientation(b"MM\\0*\\0\\0\\0\\x08\\0\\x01" + b"\\x01\\x12\\0\\x03\\0\\0\\0\\x01\\0\\x06\\0\\0")
    6
    """
    tiff = block.removeprefix(b"Exif\0\0")
    if tiff[:2] not in (b"II", b"MM"):
        return None
    byte_order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"
    start = int.from_bytes(tiff[4:8], byte_order)
    count = int.from_bytes(tiff[start : start + 2], byte_order)
    for position in range(start + 2, start + 2 + 12 * min(count, _MOST_TAGS), 12):
        entry = tiff[position : position + 12]
        if int.from_bytes(entry[:2], byte_order) == _ORIENTATION_TAG:
            width = 4 if int.from_bytes(entry[2:4], byte_order) == 4 else 2  # LONG instead of SHORT
            value = int.from_bytes(entry[8 : 8 + width], byte_order)
            return value if 1 <= value <= 8 else None
    return None


def _late_exif(stream: BinaryIO) -> bytes | None:
    """The EXIF block of a PNG, also behind its pixels, without decoding them; the stream stays where it is."""
    before = stream.tell()
    stream.seek(8)
    exif = None
    while len(head := stream.read(8)) == 8 and head[4:] != b"IEND":
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"eXIf":
            exif = stream.read(min(length, _MOST_EXIF))
            break
        stream.seek(length + 4, 1)
    stream.seek(before)
    return exif


def _from_hex(text: str) -> bytes | None:
    # ImageMagick's text profile: an empty line, the word, the length, then hexadecimal digits.
    try:
        return bytes.fromhex("".join(text.split("\n")[3:]))
    except ValueError:
        return None


def _xmp_orientation(info: Mapping[Any, Any]) -> int:
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
    content = xmp.encode(errors="replace") if isinstance(xmp, str) else bytes(xmp)
    match = re.search(rb"""tiff:Orientation(?:=["']|>)([1-8])\b""", content)
    return int(match[1]) if match else 1
