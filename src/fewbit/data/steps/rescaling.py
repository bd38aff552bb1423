# SPDX-License-Identifier: Apache-2.0
"""Pictures as models take them: one size, numbers around 0, channels first. Boxes are shares of the picture, and stay.

`image` becomes `pixel_values`: bytes divided by 255, less `image_mean`, divided by `image_std`. A sample without a
picture stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, is_count
from fewbit.data.sample import Sample
from fewbit.data.steps._base import Context, SampleStep
from fewbit.errors import DataError


def _is_size(value: Any) -> bool:
    pair = isinstance(value, list | tuple) and len(value) == 2 and all(map(is_count, value))
    return value is None or is_count(value) or pair


def _are_numbers(value: Any) -> bool:
    numbers = isinstance(value, list | tuple) and 1 <= len(value) <= 4
    return value is None or (numbers and all(isinstance(x, int | float) and not isinstance(x, bool) for x in value))


def _are_above_0(value: Any) -> bool:
    return _are_numbers(value) and (value is None or min(value) > 0)


AFTER = ("augmentation",)
NEEDS: tuple[str, ...] = ()
DROPS = False
KEYS = (
    Key("image_size", None, "a number of pixels, [height, width], or none", _is_size, "of all pictures"),
    Key("image_mean", None, "a number a channel, or none", _are_numbers, "taken from every pixel, 0 to 1"),
    Key("image_std", None, "a number a channel above 0, or none", _are_above_0, "what pixels are divided by then"),
)


def make(context: Context) -> SampleStep:
    """What makes a picture `pixel_values`."""
    options = context.options
    size = options.get("image_size")
    pair = None if size is None else (size, size) if isinstance(size, int) else (size[0], size[1])
    return Rescaling(pair, tuple(options.get("image_mean") or (0.0,)), tuple(options.get("image_std") or (1.0,)))


@dataclass(frozen=True)
class Rescaling:
    """Makes pictures of one size and range.

    Args:
        size: height and width; as they are if none.
        mean: of each channel, or of all.
        std: the same.

    >>> made = Rescaling((2, 2), (0.5,), (0.5,))({"image": np.full((4, 4, 3), 255, np.uint8), "label": 1})
    >>> made["pixel_values"].shape, float(made["pixel_values"].max()), made["label"]
    ((3, 2, 2), 1.0, 1)
    """

    size: tuple[int, int] | None
    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample with `pixel_values` in the place of its picture."""
        if sample.get("image") is None:
            return sample
        pixels = pixels_of(sample)
        for each in (self.mean, self.std):
            if len(each) not in (1, pixels.shape[2]):
                raise DataError(
                    f"{len(each)} numbers for pictures with {pixels.shape[2]} channels",
                    code="picture-channels",
                    where=getattr(sample, "place", None),
                    expected="one number a channel: image_mean, image_std",
                )
        scaled = _resized(pixels, self.size).astype(np.float32) / np.float32(255)
        centred = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        made = {name: value for name, value in sample.items() if name != "image"}
        for name in ("mask", "masks"):
            if made.get(name) is not None:
                made[name] = _nearest(np.asarray(made[name]), self.size)
        made["pixel_values"] = np.ascontiguousarray(centred.transpose(2, 0, 1))
        return Sample(made, place=getattr(sample, "place", None))


def pixels_of(sample: dict[str, Any]) -> NDArray[np.uint8]:
    """The picture of a sample as bytes, `[height, width, channels]`.

    Raises:
        DataError: it is none.
    """
    image = sample["image"]
    if hasattr(image, "convert"):  # one of Pillow's
        image = np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))
    array = np.asarray(image)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or array.dtype != np.uint8 or not array.size or array.shape[2] > 4:
        raise DataError(
            f"a picture is {array.dtype} {array.shape}",
            code="not-a-picture",
            where=getattr(sample, "place", None),
            expected="bytes: height, width, up to four channels",
            try_="'pixel_values' as the name of what is a model's input already, channels first",
        )
    return array


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    if size is None or pixels.shape[:2] == size:
        return pixels
    from PIL import Image

    height, width = size
    channels = [Image.fromarray(pixels[:, :, channel]) for channel in range(pixels.shape[2])]
    return np.stack([np.asarray(each.resize((width, height), Image.Resampling.BILINEAR)) for each in channels], 2)


def _nearest(masks: NDArray[Any], size: tuple[int, int] | None) -> NDArray[Any]:
    """Masks `(…, H, W)` of another size: of each new pixel the old one under its middle."""
    if size is None or masks.shape[-2:] == size:
        return masks
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for new, old in zip(size, masks.shape[-2:]))
    return np.ascontiguousarray(masks[..., rows[:, None], columns])
