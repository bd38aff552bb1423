# SPDX-License-Identifier: Apache-2.0
"""Any Pillow image as (H, W, 3) uint8 RGB, without losing what a plain `convert("RGB")` loses.

Deep greys are scaled, not clipped; transparency is laid over a background, so that hidden colours stay hidden;
a CMYK JPEG is inverted only when Adobe's marker says that it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Array = np.ndarray[Any, Any]
Background = tuple[int, int, int]


def to_rgb(image: Image.Image, background: Background) -> Array:
    """The pixels of a loaded image.

    Args:
        image: loaded, of any mode.
        background: what shows through where the image is transparent.

    Returns:
        A writable array (H, W, 3) of uint8.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return _array(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _deep_grey(image, background)
    from PIL import Image

    if image.has_transparency_data:
        base = Image.new("RGBA", image.size, (*background, 255))
        base.alpha_composite(image.convert("RGBA"))
        return _array(base.convert("RGB"))
    if image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        # Pillow inverts every CMYK JPEG; without the marker the stored values were plain ink amounts.
        image = Image.frombytes("CMYK", image.size, (255 - np.asarray(image)).tobytes())
    return _array(image.convert("RGB"))


def _array(image: Image.Image) -> Array:
    # A bytearray makes the array writable; `np.array(image)` does the same by a longer way.
    width, height = image.size
    return np.frombuffer(bytearray(image.tobytes()), np.uint8).reshape(height, width, 3)


def _deep_grey(image: Image.Image, background: Background) -> Array:
    values = np.asarray(image)
    sixteen_bits = image.mode != "F" and (image.mode != "I" or image.format in ("PNG", "PPM"))
    grey = _by_257(values) if sixteen_bits else _by_range(values)
    rgb = np.repeat(grey[:, :, None], 3, axis=2)
    hidden = image.info.get("transparency")
    if isinstance(hidden, int):
        rgb[values == hidden] = background
    return rgb


def _by_257(values: Array) -> Array:
    # 65535 = 255 * 257: white stays white, and the same value gives the same grey in every file.
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _by_range(values: Array) -> Array:
    """Whole or real numbers whose scale the file does not state: the narrowest usual range that holds them."""
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 1 and values.dtype.kind == "f":
        scaled = finite * 255
    elif low >= 0 and high <= 255:
        scaled = finite
    elif low >= 0 and high <= 65535:
        scaled = finite / 257
    else:
        scaled = (finite - low) * (255 / (high - low)) if high > low else finite * 0
    return np.rint(scaled).astype(np.uint8)
