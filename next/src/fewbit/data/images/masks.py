# SPDX-License-Identifier: Apache-2.0
"""One segmentation mask file as class numbers: palette indices and grey values as stored, never as colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from fewbit.data.images.decode import open_image
from fewbit.data.images.pixels import Color, orientation_of, turn_upright
from fewbit.data.types import NOWHERE, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import plural

if TYPE_CHECKING:
    from PIL import Image

IGNORE = 255
"""The common value of pixels without a class."""
MASK_MISSING = IssueType(
    "mask-missing", Severity.ERROR, "image without a mask", "add the mask or remove the image", "raise", ("drop",),
    "leaves the image out",
)  # fmt: skip
STEM_TWICE = IssueType(
    "stem-twice", Severity.ERROR, "images that differ only in their suffix and share a mask or label file",
    "rename or remove one", "raise", ("drop", "keep"), "keeps the first",
)  # fmt: skip
MASK_SIZE = IssueType(
    "mask-size", Severity.ERROR, "mask of another size than its image", "export the mask again", "raise", ("drop",),
    "leaves the image out",
)  # fmt: skip
MASK_VALUE = IssueType(
    "mask-value", Severity.ERROR, "mask with values beyond the classes",
    "correct the mask, or add names to {data_option=classes=a,b,c}", "raise", ("drop",), "leaves the image out",
)  # fmt: skip
MASK_COLORS = IssueType(
    "mask-colors", Severity.ERROR, "mask of colors instead of class numbers",
    "{data_option=colors=#000000,#ff0000} names the color of each class, from class 0", "raise", ("drop",),
    "leaves the image out",
)  # fmt: skip
_MOST_SHOWN = 6


def decode_mask(
    content: bytes | BinaryIO, location: Location = NOWHERE, *, colors: Sequence[Color] | None = None
) -> np.ndarray:
    """Decode one mask: int32 [H, W], its palette indices, grey values, or positions in `colors`.

    Raises:
        SampleError: damaged, or RGB with colors that are not in `colors`.
    """
    with open_image(content, location) as (image, _):
        image.load()
        return turn_upright(_class_numbers(image, location, colors), orientation_of(image))


def check_mask(mask: np.ndarray, size: tuple[int, int] | None, class_count: int, location: Location) -> None:
    """Raise a `SampleError` if a mask does not have the width and height of its image, or the classes (0: any)."""
    height, width = mask.shape
    if size not in (None, (width, height)):
        message = f"{width} x {height}, the image {size[0]} x {size[1]}"
        raise SampleError(Issue(MASK_SIZE, message, location))
    if class_count and len(wrong := np.setdiff1d(mask, [*range(class_count), IGNORE])):
        message = f"{shown_values(wrong.tolist())}; there are {plural(class_count, 'class')}"
        raise SampleError(Issue(MASK_VALUE, message, location))


def shown_values(values: Sequence[int]) -> str:
    """Values for a message, of many the first."""
    return _shown([str(value) for value in values])


def _class_numbers(image: Image.Image, location: Location, colors: Sequence[Color] | None) -> np.ndarray:
    if image.mode in ("1", "L", "LA", "La", "I") or image.mode.startswith("I;16") or (image.mode == "P" and not colors):
        values = np.asarray(image).astype(np.int32)
        return values if values.ndim == 2 else values[:, :, 0]
    red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(np.int32), 2, 0)
    if colors is None and (red == green).all() and (green == blue).all():
        return np.ascontiguousarray(red)  # grey values saved as RGB
    values, inverse = np.unique(red << 16 | green << 8 | blue, return_inverse=True)
    numbers = {packed[0] << 16 | packed[1] << 8 | packed[2]: number for number, packed in enumerate(colors or ())}
    if unknown := [f"#{value:06x}" for value in values.tolist() if value not in numbers]:
        prefix = f"not among the {plural(len(colors), 'color')}: " if colors else ""
        message = f"{prefix}{plural(len(unknown), 'color')}: {_shown(unknown)}"
        raise SampleError(Issue(MASK_COLORS, message, location))
    return np.array([numbers[value] for value in values.tolist()], np.int32)[inverse].reshape(red.shape)


def _shown(values: list[str]) -> str:
    return ", ".join(values[:_MOST_SHOWN]) + (", ..." if len(values) > _MOST_SHOWN else "")
