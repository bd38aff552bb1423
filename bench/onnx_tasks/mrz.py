# SPDX-License-Identifier: Apache-2.0
"""Where the machine-readable lines of an identity document are: a small U-Net that reads `[N, 256, 256, 3]`."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

from ._pixels import overlap

TITLE = "document segmentation (U-Net)"
MAIN = "iou"
COUNTS = {"calibration": 40, "judging": 60, "final": 60}
THRESHOLD = 0.25  # fastmrz's


def model() -> Path:
    return assets.onnx_model("mrz_seg.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, list[float]]]:
    """A passport's data page: a photograph, fields, two lines of 44 characters; the label is the band they lie in."""
    from . import _pages
    from . import _rendering as draw

    letters = np.array([*string.ascii_uppercase, *string.digits, *"<<<<<<<<"])
    for _ in range(COUNTS[part]):
        ink, paper = draw.colours(random)
        width, height = 640, int(random.integers(400, 500))
        image, pen = draw.canvas(width, height, paper)
        photo = _pages.photos()[int(random.integers(2))].resize((150, 190))
        image.paste(photo, (30, 60))
        for y in range(60, height - 160, int(random.integers(28, 40))):
            text = draw.some_words(part, random, int(random.integers(1, 4)))
            pen.text((210, y), text, ink, draw.font(int(random.integers(100)), int(random.integers(12, 20))))
        font = draw.font(3, int(random.integers(20, 23)))
        lines = ["P<" + "".join(random.choice(letters, 42)), "".join(random.choice(letters, 44))]
        top, left = height - int(random.integers(70, 110)), int(random.integers(15, 30))
        for i, line in enumerate(lines):
            pen.text((left, top + i * 32), line, ink, font)
        pixels = draw.scanned(image, random, blur=0.6, noise=6, turn=1)
        box = [0, (top - 16) / height, 1, (top + 72) / height]  # the network marks the whole band
        yield draw.resized(pixels, 256, 256), box


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    """Blue first, from 0 to 1."""
    return {"input_4": raw[None, :, :, ::-1].astype(np.float32) / 255}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """The mean overlap with the lines' band, and with the float model's mask."""
    found, wanted = ([outputs[0][0, :, :, 0] > THRESHOLD for outputs in part] for part in (answers, expected))
    return {
        "iou": float(np.mean([overlap(mask, _filled(box)) for mask, box in zip(found, labels)])),
        "agreement": float(np.mean([overlap(mask, other) for mask, other in zip(found, wanted)])),
    }


def _filled(box: list[float]) -> np.ndarray:
    mask = np.zeros((256, 256), bool)
    left, top, right, bottom = (round(256 * edge) for edge in box)
    mask[top:bottom, left:right] = True
    return mask
