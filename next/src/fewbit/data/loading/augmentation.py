# SPDX-License-Identifier: Apache-2.0
"""Augmentation and rescaling: random changes that keep the meaning of a sample, and images as models take them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.loading.views import Context, View
from fewbit.data.text.content import CHATS
from fewbit.data.types import Sample
from fewbit.errors import DataError, UsageError
from fewbit.rng import generator

if TYPE_CHECKING:
    from fewbit.data.loading.config import CustomConfig

Array = np.ndarray
LEAST_VISIBLE = 0.2
"""Objects of which a smaller share of the box remains in the image are dropped."""
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


def augment(view: View, context: Context) -> View:
    """Samples that differ in every epoch; only what is trained on."""
    if context.split != "train":
        return view
    augmented = view.map_by_position(Augmentation(context.settings), varies=True)
    if len(view):
        augmented.get(0)  # a sample without anything to change is an error now, not in the first epoch
    return augmented


@dataclass(frozen=True)
class Augmentation:
    """Random changes that depend on seed, epoch and position only, so that every worker makes the same ones."""

    settings: CustomConfig

    def __call__(self, sample: Sample, position: int, epoch: int) -> Sample:
        settings, random = self.settings, generator(self.settings.seed, epoch, position)
        # Prompts, the user's turns and texts with a label may change; never what is to be learned.
        names = settings.augment_columns or ("prompt", *CHATS, *(("text",) if "label" in sample else ()))
        texts = {name: _augment_field(sample[name], settings, random) for name in names if name in sample}
        if "image" in sample:
            return augment_image(sample | texts, settings, random)
        if not texts:
            raise UsageError(
                f"augmentation found nothing to change in a sample with {', '.join(sample)}", code="augmentation",
                param="preprocessing_steps", expected="an image, a prompt, a chat, or text with a label",
                hint="put 'augmentation' before 'tokenization', or name the columns: augment_columns=['text']",
            )  # fmt: skip
        return sample | texts


def _augment_field(value: Any, settings: CustomConfig, random: np.random.Generator) -> Any:
    """A text, or the user's turns of a chat."""
    if isinstance(value, str):
        text = drop_words(value, settings.augment_words, random)
        return change_case(slip_letters(text, settings.augment_characters, random), settings.augment_case, random)
    if isinstance(value, dict) and value.get("role", value.get("from")) in ("user", "human"):
        texts = {key: value[key] for key in ("content", "value") if isinstance(value.get(key), str)}
        return value | {key: _augment_field(text, settings, random) for key, text in texts.items()}
    if isinstance(value, list | tuple):
        return [_augment_field(turn, settings, random) if isinstance(turn, dict) else turn for turn in value]
    return value


def drop_words(text: str, share: float, random: np.random.Generator) -> str:
    """Leave out a share of the words; at least one stays, and so does white space at both ends.

    >>> drop_words(" one two three\\n", 0.5, np.random.default_rng(0))
    ' one\\n'
    """
    start, body, end = re.fullmatch(r"(\s*)(.*?)(\s*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    words = re.findall(r"\S+\s*", body)
    remaining = [word for word in words if random.random() >= share] or words[:1]
    return text if len(remaining) == len(words) else start + "".join(remaining).rstrip() + end


def slip_letters(text: str, share: float, random: np.random.Generator) -> str:
    """Drop, double or replace a share of the letters; new ones come from the text, so its script stays.

    >>> slip_letters("call 555 0199 now", 0.0, np.random.default_rng(0))
    'call 555 0199 now'
    """
    letters = [letter for letter in text if letter.isalpha()]

    def slip(letter: str) -> str:
        other = letters[int(random.integers(len(letters)))]
        return ("", letter * 2, other)[int(random.integers(3))]

    return "".join(slip(letter) if letter.isalpha() and random.random() < share else letter for letter in text)


def change_case(text: str, share: float, random: np.random.Generator) -> str:
    """With a probability of `share`, the text in lower case, upper case, or with its case swapped."""
    if random.random() >= share:
        return text
    return (text.lower, text.upper, text.swapcase)[int(random.integers(3))]()


def augment_image(sample: Sample, settings: CustomConfig, random: np.random.Generator) -> Sample:
    """A sample with a random window of its image enlarged, flipped and recolored, and its boxes and masks with it."""
    pixels = np.asarray(sample["image"])
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] > 4):
        raise DataError(
            f"augmentation cannot use an image of shape {list(pixels.shape)} and type {pixels.dtype}",
            code="not-an-image", expected="uint8 [H, W] or [H, W, channels]",
            hint="put 'augmentation' before 'rescaling'",
        )  # fmt: skip
    height, width = pixels.shape[:2]
    share = settings.augment_crop + (1 - settings.augment_crop) * random.random()
    rows, columns = max(1, round(height * share)), max(1, round(width * share))
    top, left = int(random.integers(height - rows + 1)), int(random.integers(width - columns + 1))
    steps = [
        -1 if random.random() < chance else 1 for chance in (settings.augment_flip_vertical, settings.augment_flip)
    ]
    moved = move(sample, (top, left, rows, columns), (steps[0], steps[1]))
    return moved | {"image": recolor(moved["image"], settings.augment_color, random)}


def move(sample: Sample, window: tuple[int, int, int, int], steps: tuple[int, int]) -> Sample:
    """A window of an image at the size of the image, with the boxes and masks that are in it.

    Args:
        sample: with `image`, and perhaps `boxes`, `classes`, `masks`, `mask`.
        window: top, left, height and width in pixels.
        steps: of rows and columns; -1 flips.

    Returns:
        Boxes clipped to the window; an object of which too little is visible is dropped with all its fields.
    """
    image = np.asarray(sample["image"])
    size = (image.shape[0], image.shape[1])
    top, left, height, width = window
    moved = sample | {"image": _resize(image[top : top + height, left : left + width], size)[:: steps[0], :: steps[1]]}
    for name in ("mask", "masks"):
        if sample.get(name) is None:
            continue
        mask = np.asarray(sample[name])
        if mask.shape[-2:] != size:
            raise DataError(
                f"{name} is {list(mask.shape)}, the image {list(size)}", code="mask-size",
                expected="the size of the image", hint="`fewbit check` lists such samples",
            )  # fmt: skip
        part = _resize_mask(mask[..., top : top + height, left : left + width], size)
        moved[name] = part[..., :: steps[0], :: steps[1]]
    if sample.get("boxes") is None:
        return moved
    boxes = np.asarray(sample["boxes"], np.float64).reshape(-1, 4)
    scale, origin = np.array([size[1] / width, size[0] / height]), np.array([left / size[1], top / size[0]])
    centres, extents = (boxes[:, :2] - origin) * scale, boxes[:, 2:] * scale
    centres = np.where(np.array(steps[::-1]) < 0, 1 - centres, centres)
    low, high = np.clip(centres - extents / 2, 0, 1), np.clip(centres + extents / 2, 0, 1)
    moved["boxes"] = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
    visible = np.flatnonzero(np.prod(high - low, axis=1) > LEAST_VISIBLE * np.prod(extents, axis=1))
    for name in ("boxes", "classes", "masks"):
        if moved.get(name) is not None and len(moved[name]) == len(boxes):
            moved[name] = np.asarray(moved[name])[visible]
    return moved


def recolor(pixels: Array, strength: float, random: np.random.Generator) -> Array:
    """Brightness, contrast and saturation, each by a factor between `1 - strength` and `1 + strength`.

    A fourth channel is transparency and stays.
    """
    if not strength:
        return pixels
    brightness, contrast, saturation = (1 + strength * (2 * random.random(3) - 1)).astype(np.float32)
    channels = pixels.reshape(*pixels.shape[:2], -1)
    colors = 3 if channels.shape[2] >= 3 else 1
    luminance = _LUMINANCE if colors == 3 else np.ones(1, np.float32)
    values = channels[:, :, :colors].astype(np.float32) * brightness
    mean = (values @ luminance).mean()
    values = mean + (values - mean) * contrast
    grey = (values @ luminance)[:, :, None]
    values = grey + (values - grey) * saturation
    result = channels.copy()
    result[:, :, :colors] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return np.asarray(result.reshape(pixels.shape))


def rescale(view: View, context: Context) -> View:
    """Images as `pixel_values`: one size, mean and standard deviation, channels first."""
    settings = context.settings
    size = (settings.image_size,) * 2 if isinstance(settings.image_size, int) else settings.image_size
    return view.map(Rescaling(size, settings.image_mean or (0.0,), settings.image_std or (1.0,)))


@dataclass(frozen=True)
class Rescaling:
    """Stretches an image to one size and normalizes it; boxes are relative and stay, masks are resized.

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
        image = np.asarray(sample["image"])
        pixels = image[:, :, None] if image.ndim == 2 else image
        for name, values in (("image_mean", self.mean), ("image_std", self.std)):
            if len(values) not in (1, pixels.shape[2]):
                raise DataError(
                    f"{name} has {len(values)} values for {pixels.shape[2]} channels", code="image-channels",
                    param=name, expected=f"1 or {pixels.shape[2]} values", hint="correct the setting",
                )  # fmt: skip
        result = {name: value for name, value in sample.items() if name != "image"}
        if self.size is not None:
            pixels = _resize(pixels, self.size)
            masks = {name: np.asarray(result[name]) for name in ("mask", "masks") if result.get(name) is not None}
            result |= {name: _resize_mask(mask, self.size) for name, mask in masks.items()}
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        scaled = (pixels.astype(np.float32) / np.float32(255) - mean) / std
        return result | {"pixel_values": np.ascontiguousarray(scaled.transpose(2, 0, 1))}


def _resize(pixels: Array, size: tuple[int, int]) -> Array:
    """An image of another size, bilinear; channel by channel, since Pillow would mix transparency into the colors."""
    from PIL import Image

    if pixels.shape[:2] == size:
        return pixels
    if pixels.ndim == 3:
        return np.stack([_resize(channel, size) for channel in np.moveaxis(pixels, 2, 0)], axis=2)
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size[::-1], Image.Resampling.BILINEAR))


def _resize_mask(mask: Array, size: tuple[int, int]) -> Array:
    """Masks [..., H, W] of another size, nearest pixel."""
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for new, old in zip(size, mask.shape[-2:]))
    return np.asarray(mask[..., rows[:, None], columns])
