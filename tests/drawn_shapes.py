# SPDX-License-Identifier: Apache-2.0
"""Pictures of shapes, drawn: whose class, box and outline are known because they were drawn so.

A shape is a bright disc, square or triangle somewhere on dark noise. The same seed draws the same pictures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

KINDS = ("disc", "square", "triangle")
_COLOURS = ((255, 90, 60), (80, 230, 90), (90, 130, 255))


@dataclass(frozen=True)
class Shape:
    """One drawn object, in pixels.

    Args:
        kind: the number of its kind.
        x: of its middle.
        y: of its middle.
        reach: from its middle to the sides of its box.
    """

    kind: int
    x: float
    y: float
    reach: float

    @property
    def outline(self) -> np.ndarray:
        """Its corners `[k, 2]`; a disc has twenty-four of them."""
        if KINDS[self.kind] == "disc":
            angles = np.arange(24) / 24 * 2 * math.pi
            unit = np.stack([np.cos(angles), np.sin(angles)], 1)
        elif KINDS[self.kind] == "square":
            unit = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], float)
        else:
            unit = np.array([[0, -1], [1, 1], [-1, 1]], float)
        return unit * self.reach + [self.x, self.y]

    def inside(self, size: int) -> np.ndarray:
        """Which pixels of a picture are in it."""
        y, x = np.mgrid[:size, :size] + 0.5
        right, down = (x - self.x) / self.reach, (y - self.y) / self.reach
        if KINDS[self.kind] == "disc":
            return right**2 + down**2 <= 1
        if KINDS[self.kind] == "square":
            return np.maximum(abs(right), abs(down)) <= 1
        return (abs(down) <= 1) & (2 * abs(right) <= down + 1)


def draw(seed: int, size: int = 32, count: int = 1, kinds: int = len(KINDS), coloured: bool = True) -> Any:
    """A picture `[size, size, 3]` of uint8 and the shapes in it, which do not overlap.

    Args:
        seed: decides everything.
        size: of a side.
        count: how many shapes; one that finds no room is left out.
        kinds: so many of them are drawn.
        coloured: each kind in a colour of its own, so that even a tiny model can tell them; else all in white.
    """
    rng = np.random.default_rng(seed)
    picture = rng.integers(0, 50, (size, size, 3))
    shapes: list[Shape] = []
    for _ in range(count):
        reach = rng.uniform(0.14, 0.25) * size
        x, y = rng.uniform(reach + 1, size - reach - 1, 2)
        shape = Shape(int(rng.integers(kinds)), float(x), float(y), float(reach))
        if any(max(abs(x - o.x), abs(y - o.y)) < reach + o.reach + 1 for o in shapes):
            continue
        colour = _COLOURS[shape.kind] if coloured else (230, 230, 230)
        picture[shape.inside(size)] = np.array(colour) - rng.integers(0, 25)
        shapes.append(shape)
    return picture.astype(np.uint8), shapes


def write_folder(folder: Path, train: int = 48, val: int = 24, **drawn: Any) -> Path:
    """A folder of pictures with one folder a class: `train/disc/0.png` …"""
    for number in range(train + val):
        picture, (shape,) = draw(number, **drawn)
        place = folder / ("train" if number < train else "val") / KINDS[shape.kind]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{number}.png")
    return folder


def write_yolo(folder: Path, train: int = 48, val: int = 24, outlines: bool = False, **drawn: Any) -> Path:
    """Pictures with label files as YOLO has them: a box a row, or an outline."""
    names = KINDS[: drawn.get("kinds", len(KINDS))]
    for number in range(train + val):
        picture, shapes = draw(number, **drawn)
        split, size = "train" if number < train else "val", len(picture)
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / "images" / split / f"{number}.png")
        rows = []
        for shape in shapes:
            box = [shape.x, shape.y, 2 * shape.reach, 2 * shape.reach]
            values = shape.outline.ravel().tolist() if outlines else box
            rows.append(" ".join([str(shape.kind), *(f"{value / size:.6f}" for value in values)]))
        (folder / "labels" / split / f"{number}.txt").write_text("\n".join(rows) + "\n")
    lines = ["train: images/train", "val: images/val", "names:", *(f"  {n}: {name}" for n, name in enumerate(names))]
    (folder / "data.yaml").write_text("\n".join(lines) + "\n")
    return folder
