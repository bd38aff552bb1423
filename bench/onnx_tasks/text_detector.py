# SPDX-License-Identifier: Apache-2.0
"""Where the text of a page is: PP-OCRv4's mobile detector, a map of how likely each pixel belongs to text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

from ._pixels import overlap

TITLE = "text detector (PP-OCRv4)"
MAIN = "agreement"
COUNTS = {"calibration": 60, "judging": 60, "final": 60}
THRESHOLD = 0.3  # rapidocr's


def model() -> Path:
    return assets.onnx_model("ch_PP-OCRv4_det_infer.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, None]]:
    """Pages, half of them 480 × 640 and half 640 × 480."""
    from . import _pages
    from . import _rendering as draw

    for i in range(COUNTS[part]):
        width, height = (480, 640) if i % 2 else (640, 480)
        image, _ = _pages.page(part, random, width, height)
        yield draw.scanned(image, random, blur=0.7, noise=15, turn=2), None


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    """Blue first, from -1 to 1, as rapidocr does it."""
    return {"x": ((raw[:, :, ::-1].astype(np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].copy()}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """The mean overlap of the text found with what the float model finds."""
    found, wanted = ([outputs[0] > THRESHOLD for outputs in part] for part in (answers, expected))
    return {"agreement": float(np.mean([overlap(mask, other) for mask, other in zip(found, wanted)]))}
