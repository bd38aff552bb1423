# SPDX-License-Identifier: Apache-2.0
"""How a camera was held: the EXIF orientation of an image, and an array turned upright by it.

Read here and not through Pillow's EXIF classes: those warn on damaged blocks and cost more than a small decode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

UPRIGHT = 1
SIDEWAYS = frozenset({5, 6, 7, 8})
"""Orientations by which width and height change places."""

_TAG = 0x0112
_ENTRIES = 1_024  # a real directory has a few dozen


def orientation(info: Mapping[Any, Any]) -> int:
    """The orientation (1 to 8) that an opened image's `info` speaks of; 1 when it says nothing usable.

    Args:
        info: Pillow's `Image.info`: raw EXIF, a PNG's textual EXIF profile, or XMP.
    """
    exif = info.get("exif")
    if exif is None and (text := info.get("Raw profile type exif")):
        exif = _from_profile(text)
    if isinstance(exif, bytes) and (found := from_exif(exif)) is not None:
        return found
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
    return _from_xmp(xmp.encode(errors="replace") if isinstance(xmp, str) else xmp)


def from_exif(block: bytes) -> int | None:
    """The orientation in an EXIF block (with or without its `Exif` mark), or `None`.

    >>> from_exif(b"MM\\0*\\0\\0\\0\\x08\\0\\x01" + b"\\x01\\x12\\0\\x03\\0\\0\\0\\x01\\0\\x06\\0\\0")
    6
    """
    tiff = block.removeprefix(b"Exif\0\0")
    orders = {b"II": "little", b"MM": "big"}
    order: Any = orders.get(tiff[:2])
    if order is None:
        return None
    start = int.from_bytes(tiff[4:8], order)
    count = int.from_bytes(tiff[start : start + 2], order)
    for at in range(start + 2, start + 2 + 12 * min(count, _ENTRIES), 12):
        entry = tiff[at : at + 12]
        if len(entry) < 12:
            break
        if int.from_bytes(entry[:2], order) == _TAG:
            width = 4 if int.from_bytes(entry[2:4], order) == 4 else 2
            value = int.from_bytes(entry[8 : 8 + width], order)
            return value if 1 <= value <= 8 else None
    return None


def late_exif(file: IO[bytes]) -> bytes | None:
    """The EXIF block that a PNG may carry behind its pixels, found without decoding them."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if kind == b"eXIf":
            return file.read(length)
        if kind == b"IEND":
            break
        file.seek(length + 4, 1)
    return None


def upright(pixels: np.ndarray[Any, Any], turn: int) -> np.ndarray[Any, Any]:
    """The pixels (H, W, C) as they were meant to be seen, given the EXIF orientation."""
    if turn == UPRIGHT:
        return pixels
    if turn in SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    rows, columns = _FLIPS[turn]
    return np.ascontiguousarray(pixels[::rows, ::columns])


_FLIPS = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}


def _from_profile(text: object) -> bytes | None:
    # ImageMagick's form: a blank line, the word, the length, then hexadecimal digits.
    try:
        return bytes.fromhex("".join(str(text).split("\n")[3:]))
    except ValueError:
        return None


def _from_xmp(xmp: bytes) -> int:
    found = re.search(rb"""tiff:Orientation(?:=["']|>)([1-8])\b""", xmp)
    return int(found[1]) if found else UPRIGHT
