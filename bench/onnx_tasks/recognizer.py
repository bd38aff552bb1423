# SPDX-License-Identifier: Apache-2.0
"""Reading a line of text: PP-OCRv4's mobile recognizer (convolutions, then attention; opset 12, dynamic shapes)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

import assets

from ._pixels import same

TITLE = "text recognizer (PP-OCRv4)"
MAIN = "words"
COUNTS = {"calibration": 200, "judging": 400, "final": 400}
HEIGHT, NARROWEST = 48, 320


def model() -> Path:
    return assets.onnx_model("ch_PP-OCRv4_rec_infer.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, str]]:
    """Words in changing typefaces and sizes, badly photographed."""
    from . import _rendering as draw

    for _ in range(COUNTS[part]):
        text = draw.some_words(part, random, 1)
        font = draw.font(int(random.integers(100)), int(random.integers(20, 44)))
        ink, paper = draw.colours(random)
        left, top, right, bottom = map(int, font.getbbox(text))
        margin = int(random.integers(4, 10))
        image, pen = draw.canvas(right - left + 2 * margin, bottom - top + 2 * margin, paper)
        pen.text((margin - left, margin - top), text, ink, font)
        pixels = draw.scanned(image, random, blur=1.4, noise=28, turn=3)
        height, width = pixels.shape[:2]
        yield draw.resized(pixels, math.ceil(HEIGHT * width / height), HEIGHT), text


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    """Blue first, from -1 to 1, and on the right zeros up to 320 pixels."""
    scaled = (raw[:, :, ::-1].astype(np.float32) / 255 - 0.5) / 0.5
    padded = np.zeros((1, 3, HEIGHT, max(NARROWEST, raw.shape[1])), np.float32)
    padded[0, :, :, : raw.shape[1]] = scaled.transpose(2, 0, 1)
    return {"x": padded}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """How many words are read without a fault, and how many as the float model reads them."""
    found, wanted = ([read(outputs[0]) for outputs in part] for part in (answers, expected))
    return {"words": same(found, labels), "agreement": same(found, wanted)}


def read(probabilities: np.ndarray) -> str:
    """The text: the best character of each step, repetitions and blanks left out. `[1, steps, characters]`"""
    best = probabilities[0].argmax(-1)
    kept = best[(best != 0) & (best != np.concatenate([[-1], best[:-1]]))]
    return "".join(characters()[i] for i in kept).strip()


@cache
def characters() -> list[str]:
    """The model's own alphabet: nothing, its metadata's lines, the space."""
    import onnxruntime

    opened = onnxruntime.InferenceSession(str(model()), providers=["CPUExecutionProvider"])
    return ["", *opened.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]
