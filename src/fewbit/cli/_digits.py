# SPDX-License-Identifier: Apache-2.0
"""Small real datasets in every format, made from the handwritten digits that scikit-learn brings along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fewbit.errors import require

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_COUNT = 60
_SCALE = 4


def load() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 8, 8) from 0 to 1, and labels (n,): a mix of all ten classes."""
    datasets = require("sklearn.datasets", extra="demo", purpose="the demo's digits")
    digits = datasets.load_digits()
    return (digits.images / 16.0).astype(np.float32), digits.target.astype(np.int64)


def image_folder(folder: Path) -> Path:
    """`train/zero/*.png`, `val/zero/*.png` …"""
    from PIL import Image

    for index, (pixels, label) in enumerate(_digits(_COUNT)):
        part = "val" if index % 5 == 4 else "train"
        target = folder / part / NAMES[label] / f"{index:03}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_enlarged(pixels)).save(target)
    return folder


def yolo(folder: Path) -> Path:
    """Two digits on each canvas: one marked by a box, one by a polygon."""
    from PIL import Image

    for part in ("images/train", "images/val", "labels/train", "labels/val"):
        (folder / part).mkdir(parents=True)
    side = 8 * _SCALE
    digits = list(_digits(_COUNT))
    for index, ((left, a), (right, b)) in enumerate(zip(digits[::2], digits[1::2])):
        canvas = np.zeros((side * 2, side * 2), np.uint8)
        canvas[:side, :side], canvas[side:, side:] = _enlarged(left), _enlarged(right)
        part = "val" if index % 5 == 4 else "train"
        Image.fromarray(canvas).save(folder / "images" / part / f"{index:03}.png")
        rows = f"{a} 0.25 0.25 0.5 0.5\n{b} 0.5 0.5 1 0.5 1 1 0.5 1\n"
        (folder / "labels" / part / f"{index:03}.txt").write_text(rows)
    names = "".join(f"  {index}: {name}\n" for index, name in enumerate(NAMES))
    (folder / "data.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames:\n{names}")
    return folder


def rows(folder: Path) -> Path:
    """`train.jsonl` and `test.jsonl`: a digit drawn in characters, and its name as the label."""
    folder.mkdir(parents=True)
    for part, start in (("train", 0), ("test", _COUNT)):
        lines = [{"text": _drawn(pixels), "label": NAMES[label]} for pixels, label in _digits(_COUNT, start)]
        (folder / f"{part}.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return folder


def npz(folder: Path) -> Path:
    """One sample a file, as the model below takes it."""
    from fewbit.data.arrays.npz_writer import write_npz

    folder.mkdir(parents=True)
    for index, (pixels, _) in enumerate(_digits(_COUNT)):
        write_npz(folder / f"input{index:04}.npz", {"pixels": pixels.reshape(64)})
    return folder


def huggingface(folder: Path) -> Path:
    """A dataset as `save_to_disk` leaves it."""
    datasets = require("datasets", extra="hf", purpose="the demo's Hugging Face dataset")
    pairs = list(_digits(_COUNT))
    table = datasets.Dataset.from_dict(
        {"pixels": [pixels.reshape(64).tolist() for pixels, _ in pairs], "label": [label for _, label in pairs]}
    )
    datasets.disable_progress_bars()
    try:
        table.save_to_disk(str(folder))
    finally:
        datasets.enable_progress_bars()
    return folder


def objects(folder: Path) -> Any:
    """A PyTorch loader in memory, batches of 16."""
    torch = require("torch", extra="torch", purpose="the demo's loader")
    pixels, labels = load()
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(pixels.reshape(-1, 64)), torch.from_numpy(labels))
    return torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=True)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "image_folder": image_folder,
    "yolo": yolo,
    "rows": rows,
    "npz": npz,
    "huggingface": huggingface,
    "objects": objects,
}


def model(path: Path) -> Path:
    """A real classifier as an ONNX file: ridge regression from 64 pixels to 10 scores, solved in closed form."""
    onnx = require("onnx", extra="onnx", purpose="the demo's model")
    pixels, labels = load()
    flat = pixels.reshape(len(pixels), 64)
    weight = np.linalg.solve(flat.T @ flat + np.eye(64), flat.T @ np.eye(10)[labels]).astype(np.float32)
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["pixels", "weight"], ["scores"])],
        "digits",
        [helper.make_tensor_value_info("pixels", kind, ["batch", 64])],
        [helper.make_tensor_value_info("scores", kind, ["batch", 10])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def as_model_input(element: Any) -> dict[str, np.ndarray]:
    """The `transform_fn` of the demo: whatever a format yields, as what the digits model takes."""
    if isinstance(element, list | tuple):
        return {"pixels": np.asarray(element[0], np.float32)}
    if "pixels" in element:
        return {"pixels": np.asarray(element["pixels"], np.float32)[None]}
    if "text" in element:
        lines = [line.ljust(8) for line in element["text"].split("\n")]
        return {"pixels": np.array([[_SHADES.index(c) / 3 for c in line] for line in lines], np.float32).reshape(1, 64)}
    gray = element["image"][..., 0].astype(np.float32) / 255
    step = gray.shape[0] // 8
    return {"pixels": gray.reshape(8, step, 8, step).mean((1, 3)).reshape(1, 64)}


_SHADES = " .o#"


def _digits(count: int, start: int = 0) -> Iterator[tuple[np.ndarray, int]]:
    pixels, labels = load()
    for index in range(start, start + count):
        yield pixels[index], int(labels[index])


def _enlarged(pixels: np.ndarray) -> np.ndarray:
    return np.kron((pixels * 255).astype(np.uint8), np.ones((_SCALE, _SCALE), np.uint8))


def _drawn(pixels: np.ndarray) -> str:
    shades = (pixels * 3.999).astype(int)
    return "\n".join("".join(_SHADES[shade] for shade in row).rstrip() for row in shades)
