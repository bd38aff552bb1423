# SPDX-License-Identifier: Apache-2.0
"""Rendered pictures: typefaces, real text, and what a camera or scanner does to a page."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

import assets

Random = np.random.Generator


@cache
def sentences(part: str) -> tuple[str, ...]:
    """Passages of BoolQ: its development part to calibrate on, its test part to judge on."""
    path = assets.boolq_for_calibration() if part == "calibration" else assets.boolq()
    return tuple(json.loads(line)["passage"] for line in path.read_text().splitlines())


@cache
def words(part: str) -> tuple[str, ...]:
    """The words of these passages, each once; quotes are set too oddly in BoolQ to be read back."""
    found = dict.fromkeys(word for text in sentences(part) for word in text.split())
    return tuple(word for word in found if word.isascii() and not {*word} & {*"`'"} and 2 <= len(word) <= 16)


def some_words(part: str, random: Random, count: int) -> str:
    """A few of the words."""
    every = words(part)
    return " ".join(every[i] for i in random.integers(len(every), size=count))


@cache
def font(index: int, size: int) -> ImageFont.FreeTypeFont:
    """One of the typefaces."""
    every = assets.fonts()
    return ImageFont.truetype(every[index % len(every)], size)


def colours(random: Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dark ink on light paper, both nearly grey."""
    ink = random.integers(0, 60) + random.integers(0, 30, 3)
    paper = random.integers(205, 246) + random.integers(0, 10, 3)
    return tuple(map(int, ink)), tuple(map(int, paper))


def scanned(image: Image.Image, random: Random, *, blur: float, noise: float, turn: float) -> np.ndarray:
    """What is left of a picture after a lens, a sensor and an unsteady hand, `[height, width, 3]` of uint8."""
    paper = image.getpixel((0, 0))
    image = image.rotate(random.uniform(-turn, turn), Image.Resampling.BICUBIC, fillcolor=paper)
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0, blur)))
    pixels = np.asarray(image, np.float32) + random.normal(0, random.uniform(0, noise), (image.height, image.width, 1))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def resized(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """The picture at another size, bilinear."""
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def canvas(width: int, height: int, paper: tuple[int, ...]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """An empty picture and what draws on it."""
    image = Image.new("RGB", (width, height), paper)
    return image, ImageDraw.Draw(image)
