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


def _class_numbers(image: Image.Image, location: Location, colors: Sequence[Color] | None) -> np.ndarray:
    if image.mode in ("1", "L", "LA", "La", "I") or image.mode.startswith("I;16") or (image.mode == "P" and not colors):
        values = np.asarray(image).astype(np.int32)
        return values if values.ndim == 2 else values[:, :, 0]
    red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(np.int32), 2, 0)
    if colors is None and (red == green).all() and (green == blue).all():
        return np.ascontiguousarray(red)  # grey values saved as RGB
    values, inverse = np.unique(red << 16 | green << 8 | blue, return_inverse=True)
    numbers = {packed[0] << 16 | packed[1] << 8 | packed[2]: number for number, packed in enumerate(colors or ())}
    unknown = [value for value in values.tolist() if value not in numbers]
    if unknown:
        prefix = f"not among the {plural(len(colors), 'color')}: " if colors else ""
        examples = [f"#{value:06x}" for value in unknown[:_MOST_SHOWN]] + ["..."] * (len(unknown) > _MOST_SHOWN)
        message = f"{prefix}{plural(len(unknown), 'color')}: {', '.join(examples)}"
        raise SampleError(Issue(MASK_COLORS, message, location))
    return np.array([numbers[value] for value in values.tolist()], np.int32)[inverse].reshape(red.shape)
