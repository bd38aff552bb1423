# SPDX-License-Identifier: Apache-2.0
"""From pixels to a network's input, in numpy alone."""

from __future__ import annotations

import numpy as np

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def imagenet(pixels: np.ndarray) -> np.ndarray:
    """`[height, width, 3]` of uint8 as `[1, 3, height, width]`, with ImageNet's mean and deviation."""
    scaled = (pixels.astype(np.float32) / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def overlap(found: np.ndarray, wanted: np.ndarray) -> float:
    """Intersection over union of two masks; two empty ones agree."""
    union = np.logical_or(found, wanted).sum()
    return float(np.logical_and(found, wanted).sum() / union) if union else 1.0


def same(answers: list, expected: list) -> float:
    """The share of equal answers."""
    return float(np.mean([a == b for a, b in zip(answers, expected)]))
