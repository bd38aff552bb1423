# SPDX-License-Identifier: Apache-2.0
"""Whether a table has rules around its cells: a MobileNetV3 type with squeeze-and-excite blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

from ._pixels import imagenet, same

TITLE = "table classifier (MobileNetV3 type)"
MAIN = "accuracy"
COUNTS = {"calibration": 200, "judging": 400, "final": 400}


def model() -> Path:
    return assets.onnx_model("table_cls.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, int]]:
    """Tables with rules (0) or with few or none (1)."""
    from . import _pages
    from . import _rendering as draw

    for _ in range(COUNTS[part]):
        bare = int(random.integers(2))
        ink, paper = draw.colours(random)
        image, pen = draw.canvas(int(random.integers(300, 560)), 400, paper)
        place, size = (12, 12, image.width - 12, image.height), int(random.integers(12, 20))
        end = _pages.table(part, random, pen, int(random.integers(100)), place, size, ink, ruled=not bare)
        pixels = draw.scanned(image.crop((0, 0, image.width, end + 12)), random, blur=0.8, noise=20, turn=1.5)
        yield draw.resized(pixels, 224, 224), bare


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    return {"input": imagenet(raw)}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """How many tables are told right, and how many as the float model does."""
    found, wanted = ([int(outputs[0].argmax()) for outputs in part] for part in (answers, expected))
    return {"accuracy": same(found, labels), "agreement": same(found, wanted)}
