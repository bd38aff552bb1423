# SPDX-License-Identifier: Apache-2.0
"""Pixels of a Pillow image as people see them: uint8 RGB without what a plain `convert("RGB")` loses, and upright.

The orientation is not read through Pillow's EXIF classes: those warn about damaged blocks and cost more than decoding a
small image.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Color = tuple[int, int, int]
SIDEWAYS = frozenset((5, 6, 7, 8))
"""Orientations that swap width and height."""
_ORIENTATION_TAG, _LONG = 0x0112, 4
_MOST_TAGS = 1_024  # a real directory has a few dozen
_MOST_EXIF = 1 << 20


def to_rgb(image: Image.Image, background: Color) -> np.ndarray:
    """The pixels of a loaded image of any mode: uint8 [H, W, 3], writable, transparent ones over the background."""
    from PIL import Image

    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _deep_grey(image, background)
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (*background, 255))
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas
    elif image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        # Pillow inverts every CMYK JPEG; without Adobe's marker the stored values are plain amounts of ink.
        image = Image.frombytes("CMYK", image.size, (255 - np.asarray(image)).tobytes())
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _deep_grey(image: Image.Image, background: Color) -> np.ndarray:
    """16-bit images by their own range; 32-bit integers and floats by the narrowest common range that holds them."""
    values = np.asarray(image)
    exact = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(exact.min()), float(exact.max())
    # Pillow opens 16-bit PNG and PPM files as 32-bit "I" in some versions.
    if image.mode != "F" and (image.mode != "I" or image.format in ("PNG", "PPM")):
        scale = 1 / 257  # 65535 = 255 * 257: white stays white, and one value is the same grey in every file
    elif low < 0 or high > 65535:
        exact, scale = exact - low, 255 / (high - low) if high > low else 0.0
    elif high > 255:
        scale = 1 / 257
    else:
        scale = 255.0 if high <= 1 and image.mode == "F" else 1.0
    rgb = np.repeat(np.rint(exact * scale).astype(np.uint8)[:, :, None], 3, axis=2)
    color_key = image.info.get("transparency")
    if isinstance(color_key, int):
        rgb[values == color_key] = background
    return rgb


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
    if exif is None and "Raw profile type exif" in info:  # ImageMagick's text: a word, a length, hexadecimal digits
        digits = re.findall(r"[0-9a-fA-F]{2}", "".join(str(info["Raw profile type exif"]).split("\n")[3:]))
        exif = bytes.fromhex("".join(digits))
    if isinstance(exif, bytes) and (orientation := exif_orientation(exif)) is not None:
        return orientation
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
    content = xmp.encode(errors="replace") if isinstance(xmp, str) else bytes(xmp)
    match = re.search(rb"""tiff:Orientation(?:=["']|>)([1-8])\b""", content)
    return int(match[1]) if match else 1


def exif_orientation(block: bytes) -> int | None:
    """The orientation in an EXIF block, with or without its `Exif` prefix; `None` if there is none.

    >>> exif_orientation(b"MM\\0*\\0\\0\\0\\x08\\0\\x01" + b"\\x01\\x12\\0\\x03\\0\\0\\0\\x01\\0\\x06\\0\\0")
    6
    """
    tiff = block.removeprefix(b"Exif\0\0")
    if tiff[:2] not in (b"II", b"MM"):
        return None
    order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"

    def number(position: int, width: int = 2) -> int:
        return int.from_bytes(tiff[position : position + width], order)

    directory = number(4, 4)
    for index in range(min(number(directory), _MOST_TAGS)):
        entry = directory + 2 + 12 * index
        if number(entry) == _ORIENTATION_TAG:
            value = number(entry + 8, 4 if number(entry + 2) == _LONG else 2)
            return value if 1 <= value <= 8 else None
    return None


def _late_exif(stream: BinaryIO) -> bytes | None:
    """The EXIF block of a PNG, also behind its pixels, without decoding them; the stream stays where it is."""
    before, exif = stream.tell(), None
    stream.seek(8)
    while exif is None and len(head := stream.read(8)) == 8 and head[4:] != b"IEND":
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"eXIf":
            exif = stream.read(min(length, _MOST_EXIF))
        stream.seek(length + 4, 1)
    stream.seek(before)
    return exif
