# SPDX-License-Identifier: Apache-2.0
"""Pictures as a model's own image processor makes them: size, crop, range and order of the colours.

`image` becomes `pixel_values`. Masks follow their picture, pixel by pixel; boxes are shares of the picture, and stay. A
sample without a picture stays as it is. The processor is that of transformers, with Pillow's arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, is_text
from fewbit.data.sample import Sample
from fewbit.data.steps._base import NOTHING, Context, SampleStep
from fewbit.data.steps._image_processor import has_image_processor, open_image_processor
from fewbit.data.steps.rescaling import pixels_of
from fewbit.errors import DataError

AFTER = ("augmentation",)
NEEDS: tuple[str, ...] = ()
DROPS = False
KEYS = (
    Key("processor", None, "a model's folder", is_text, "whose preprocessor_config.json says what pictures become"),
)

_NEAREST = 0  # as Pillow numbers it
_COLOURS = ("do_rescale", "do_normalize", "do_flip_channel_order", "do_grayscale", "rescale_offset", "include_top")
"""What changes numbers, and not where they are."""
_PLACES = ("boxes", "polygons")
_MOST = (1 << 24) - 1
"""Numbers that three bytes tell apart, beside the one for where there is no picture."""


def faults(options: Mapping[str, Any]) -> list[str]:
    """Nobody says which processor, or it is not there."""
    folder = options.get("processor")
    if folder is None:
        return ["processor: 'processing' needs it; expected a model's folder with preprocessor_config.json"]
    if not has_image_processor(Path(folder).expanduser()):
        return [f"processor={folder!r}: there is no preprocessor_config.json of an image processor"]
    return []


def make(context: Context) -> SampleStep:
    """What makes a picture `pixel_values`."""
    step = Processing(str(context.options["processor"]))
    context.record.note("picture-step", step.described, where=context.options["processor"])
    if step.reduces:
        told = "do_reduce_labels is not carried out: the classes in masks are taken as they are"
        context.record.note("picture-step", told, where=context.options["processor"])
    return step


class Processing:
    """Makes pictures what a model takes.

    Args:
        folder: of the model.
    """

    def __init__(self, folder: str):
        self._folder = folder

    def __reduce__(self) -> Any:
        return Processing, (self._folder,)  # each worker opens its own

    @cached_property
    def _processor(self) -> Any:
        return open_image_processor(Path(self._folder).expanduser())

    @property
    def reduces(self) -> bool:
        """Whether the processor would count classes of masks from 1, as one dataset does."""
        return bool(getattr(self._processor, "do_reduce_labels", False))

    @property
    def described(self) -> str:
        """What the processor does, in words."""
        said = self._processor.to_dict()
        parts = [_size(said.get("size")) if said.get("do_resize") else "their own size"]
        if said.get("do_center_crop"):
            parts.append(f"the middle {_size(said.get('crop_size'))}")
        elif self._crops:
            parts.append(f"the middle {said['crop_pct']:.1%}")
        if said.get("do_normalize"):
            parts.append(f"mean {said.get('image_mean')}, std {said.get('image_std')}")
        return f"pictures as {said.get('image_processor_type')} makes them: {', '.join(parts)}"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample with `pixel_values` in the place of its picture.

        Raises:
            DataError: boxes that a crop would cut, a picture that is none, classes of masks too far apart to paint.
        """
        if sample.get("image") is None:
            return sample
        made = {name: value for name, value in sample.items() if name != "image"}
        masks = [name for name in ("mask", "masks") if made.get(name) is not None]
        if self._crops:
            self._refuse_boxes(sample, bool(masks))
            made = {name: value for name, value in made.items() if name not in _PLACES}
        made["pixel_values"] = self._processed(pixels_of(sample))
        for name in masks:
            painted = np.asarray(made[name])
            _refuse_wide(sample, name, painted)
            made[name] = self._followed(painted, made["pixel_values"].shape[1:])
        return Sample(made, place=getattr(sample, "place", None))

    @property
    def _crops(self) -> bool:
        return any(getattr(self._processor, name, None) for name in ("do_center_crop", "crop_pct"))

    def _refuse_boxes(self, sample: dict[str, Any], masked: bool) -> None:
        if not masked and any(sample.get(name) is not None for name in _PLACES):
            raise DataError(
                f"{type(self._processor).__name__} cuts off the sides of pictures, and of their boxes",
                code="picture-crop",
                where=getattr(sample, "place", None),
                expected="a processor that shows all of a picture, as those of detectors do",
                try_="the step 'rescaling' with image_size, image_mean and image_std",
            )

    def _processed(self, pixels: NDArray[np.uint8], **more: Any) -> NDArray[Any]:
        from PIL import Image

        shown = Image.fromarray(pixels if pixels.shape[2] in (3, 4) else pixels[:, :, 0]).convert("RGB")
        found = self._processor(images=shown, return_tensors="np", **more)
        values: NDArray[Any] = np.ascontiguousarray(found["pixel_values"][0])
        mask = found.get("pixel_mask")
        if mask is None or mask[0].all():
            return values
        height, width = (int(mask[0].any(axis).sum()) for axis in (1, 0))  # what was added is the collator's to add
        return np.ascontiguousarray(values[:, :height, :width])

    def _followed(self, masks: NDArray[Any], size: tuple[int, ...]) -> NDArray[Any]:
        """Masks `(…, H, W)` as their picture went; where there was no picture, nothing is known."""
        if masks.ndim == 3:
            made = [self._followed(each, size) for each in masks]
            return np.stack(made) if made else np.zeros((0, *size), masks.dtype)
        # Numbers from 1 up in the three bytes of a pixel: 0 is where there was nothing.
        first = int(masks.min())
        number = masks.astype(np.int64) - first + 1
        painted = np.stack([number & 255, number >> 8 & 255, number >> 16], 2).astype(np.uint8)
        off = {name: False for name in _COLOURS if hasattr(self._processor, name)}
        low, middle, high = self._processed(painted, resample=_NEAREST, **off).astype(np.int64)
        moved = low | middle << 8 | high << 16
        nothing = 0 if masks.dtype == bool else NOTHING
        return np.where(moved > 0, moved + first - 1, nothing).astype(bool if masks.dtype == bool else np.int64)


def _refuse_wide(sample: dict[str, Any], name: str, masks: NDArray[Any]) -> None:
    if masks.size and int(masks.max()) - int(masks.min()) >= _MOST:
        raise DataError(
            f"{name!r} has numbers from {masks.min()} to {masks.max()}",
            code="mask-range",
            where=getattr(sample, "place", None),
            expected=f"numbers of classes that lie less than {_MOST:,} apart",
            try_="a step of your own before this one that numbers them from 0 up",
        )


def _size(size: Any) -> str:
    if isinstance(size, Mapping):
        given = {name: value for name, value in size.items() if value is not None}
        if given.keys() == {"height", "width"}:
            return f"{given['width']} x {given['height']}"
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())
    return str(size)
