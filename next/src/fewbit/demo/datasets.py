# SPDX-License-Identifier: Apache-2.0
"""The demo's datasets: digits as samples, class folders and boxes; of other formats their own small example."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fewbit import registry
from fewbit.data.formats.npz import write_npz
from fewbit.errors import require
from fewbit.rng import generator

TRAINING = 1200
"""Of 1,797 digits; the others measure."""
SAMPLES = 200
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
EXAMPLES = {
    "coco": "coco", "voc": "voc", "masks": "image_masks", "rows/csv": "csv", "rows/jsonl": "json", "text": "text",
    "webdataset": "webdataset", "table.parquet": "parquet", "data.sqlite": "sql",
}  # fmt: skip
"""Path in the demo: the format whose example it is."""


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits that scikit-learn brings along: images [1797, 8, 8], 0 to 1, and labels."""
    datasets: Any = require("sklearn.datasets", extra="demo", purpose="the data of the demo")
    digits = datasets.load_digits()
    return (digits.images / 16).astype(np.float32), digits.target


def write_npz_samples(images: np.ndarray, folder: Path) -> None:
    """One file per sample, the array named as the model's input."""
    folder.mkdir(parents=True)
    for index, image in enumerate(images[TRAINING : TRAINING + SAMPLES]):
        write_npz(folder / f"digit{index:03}.npz", {"pixels": image[..., None]})


def write_image_folder(images: np.ndarray, labels: np.ndarray, folder: Path) -> None:
    """48 images to train and 12 to validate, one folder per class."""
    for index in range(60):
        path = folder / ("train" if index < 48 else "val") / CLASSES[labels[index]] / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(_enlarged(images[index]), path)


def write_damaged(images: np.ndarray, labels: np.ndarray, folder: Path) -> None:
    """The same with a cut-off image, an empty one and a misspelt class."""
    write_image_folder(images, labels, folder)
    truncated = folder / "train" / "eight" / "008.png"
    truncated.write_bytes(truncated.read_bytes()[:60])
    (folder / "train" / "eight" / "018.png").write_bytes(b"")
    (folder / "val" / "seven").rename(folder / "val" / "sevn")


def write_yolo(images: np.ndarray, labels: np.ndarray, folder: Path) -> None:
    """Scenes of two or three digits with their boxes."""
    random = generator(0, 3)
    for scene in range(20):
        canvas, rows = np.zeros((80, 80), np.uint8), []
        for corner in random.permutation(4)[: 2 + scene % 2]:
            digit = int(random.integers(len(images)))
            x, y = corner % 2 * 40 + int(random.integers(9)), corner // 2 * 40 + int(random.integers(9))
            canvas[y : y + 32, x : x + 32] = _enlarged(images[digit])
            rows.append(f"{labels[digit]} {(x + 16) / 80} {(y + 16) / 80} 0.4 0.4")
        split = "train" if scene < 15 else "val"
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        _save(canvas, folder / "images" / split / f"{scene:02}.png")
        (folder / "labels" / split / f"{scene:02}.txt").write_text("\n".join(rows) + "\n")
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(CLASSES))
    (folder / "data.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames:\n{names}")


def write_example(format: str, path: Path) -> None:
    """The example of a format; of several files the first, if `path` is a file."""
    example = registry.get("data_formats", format).example
    if not path.suffix:
        example(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        written = Path(example(Path(folder) / "example"))
        shutil.move(written if written.is_file() else min(written.iterdir()), path)


def _enlarged(image: np.ndarray) -> np.ndarray:
    return np.kron((image * 255).round().astype(np.uint8), np.ones((4, 4), np.uint8))


def _save(pixels: np.ndarray, path: Path) -> None:
    from PIL import Image

    Image.fromarray(pixels).save(path)
