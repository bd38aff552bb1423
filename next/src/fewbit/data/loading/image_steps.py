# SPDX-License-Identifier: Apache-2.0
"""Augmentation and rescaling: random changes that keep the meaning of a sample, and images as models take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.loading.augment_images import augment_image, resize_masks
from fewbit.data.loading.augment_text import augment_text
from fewbit.data.loading.views import Context, Mapped, View
from fewbit.data.text.content import CHATS
from fewbit.data.text.roles import Ints
from fewbit.data.types import Sample
from fewbit.errors import DataError, UsageError
from fewbit.rng import generator

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig


def apply_augmentation(view: View, context: Context) -> View:
    """Samples that differ in every epoch; only what is trained on."""
    if not context.training:
        return view
    augmented = Augmented(view, context.settings)
    if len(view):
        augmented.get(0)  # a sample without anything to change is an error now, not in the first epoch
    return augmented


class Augmented(View):
    """Random changes that depend on seed, epoch and position only, so that every worker makes the same ones."""

    varies = True

    def __init__(self, inner: View, settings: CustomConfig):
        super().__init__(inner)
        self._settings = settings

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample as it is in one epoch; the sample below stays as it is."""
        sample, settings = dict(self.inner.get(index, epoch)), self._settings
        random = generator(settings.seed, epoch, index)
        names = self._texts(sample)
        for name in names:
            sample[name] = _augmented_text(sample[name], settings, random)
        if "image" in sample:
            return augment_image(sample, settings, random, self.location(index))
        if not names:
            raise UsageError(
                f"augmentation found nothing to change in a sample with {', '.join(sample)}", code="augmentation",
                param="preprocessing_steps", expected="an image, a prompt, a chat, or text with a label",
                hint="put 'augmentation' before 'tokenization', or name the columns: augment_columns=['text']",
            )  # fmt: skip
        return sample

    def lengths(self) -> Ints | None:
        """They change."""
        return None

    def _texts(self, sample: Sample) -> list[str]:
        """The texts that may change: prompts, the user's turns, texts with a label; never what is to be learned."""
        named: Sequence[str] | None = self._settings.augment_columns
        if named is None:
            named = ["prompt", *CHATS, *(["text"] if "label" in sample else [])]
        return [name for name in named if name in sample]


def _augmented_text(value: Any, settings: CustomConfig, random: np.random.Generator) -> Any:
    if isinstance(value, str):
        return augment_text(value, settings, random)
    if not isinstance(value, list | tuple):
        return value
    turns = []
    for turn in value:
        role = turn.get("role", turn.get("from")) if isinstance(turn, dict) else None
        key = "content" if isinstance(turn, dict) and "content" in turn else "value"
        if role in ("user", "human") and isinstance(turn.get(key), str):
            turn = turn | {key: augment_text(turn[key], settings, random)}
        turns.append(turn)
    return turns


def apply_rescaling(view: View, context: Context) -> View:
    """Images as `pixel_values`: one size, mean and standard deviation, channels first."""
    settings = context.settings
    size = settings.image_size
    pair = (size, size) if isinstance(size, int) else size
    return Mapped(view, Rescaling(pair, settings.image_mean or (0.0,), settings.image_std or (1.0,)))


@dataclass(frozen=True)
class Rescaling:
    """Stretches images to one size and normalizes them; boxes are relative and stay, masks are resized.

    >>> sample = Rescaling((2, 2), (0.5,), (0.5,))({"image": np.full((4, 4, 3), 255, np.uint8), "label": 1})
    >>> sample["pixel_values"].shape, float(sample["pixel_values"].max()), sample["label"]
    ((3, 2, 2), 1.0, 1)
    """

    size: tuple[int, int] | None
    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, sample: Sample) -> Sample:
        if sample.get("image") is None:
            return sample
        from PIL import Image

        image = np.asarray(sample["image"])
        pixels = image[:, :, None] if image.ndim == 2 else image
        for name, values in (("image_mean", self.mean), ("image_std", self.std)):
            if len(values) not in (1, pixels.shape[2]):
                raise DataError(
                    f"{name} has {len(values)} values for {pixels.shape[2]} channels", code="image-channels",
                    param=name, expected=f"1 or {pixels.shape[2]} values", hint="correct the setting",
                )  # fmt: skip
        if self.size is not None and pixels.shape[:2] != self.size:
            height, width = self.size
            channels = [
                np.asarray(
                    Image.fromarray(np.ascontiguousarray(pixels[:, :, channel])).resize(
                        (width, height), Image.Resampling.BILINEAR
                    )
                )
                for channel in range(pixels.shape[2])
            ]
            pixels = np.stack(channels, axis=2)
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        scaled = (pixels.astype(np.float32) / np.float32(255) - mean) / std
        result = {name: value for name, value in sample.items() if name != "image"}
        for name in ("mask", "masks"):
            if result.get(name) is not None and self.size is not None:
                result[name] = resize_masks(np.asarray(result[name]), self.size)
        return result | {"pixel_values": np.ascontiguousarray(scaled.transpose(2, 0, 1))}
