# SPDX-License-Identifier: Apache-2.0
"""Writes the demo, then checks every dataset and quantizes the model, each as a command would."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from fewbit.api.data import check_dataset
from fewbit.api.quantize import quantize
from fewbit.data.report_text import verdict_line
from fewbit.demo import classifier, datasets
from fewbit.demo.language_model import write_language_model
from fewbit.errors import DataError, MissingLibraryError, UsageError
from fewbit.output import RECORD, open_output
from fewbit.record.schema import Record
from fewbit.record.screen import LABELS

_TITLES = {
    "npz": "npz samples", "image_folder": "class folders", "yolo": "YOLO boxes", "coco": "COCO", "voc": "Pascal VOC",
    "masks": "masks", "rows/csv": "CSV", "rows/jsonl": "JSONL", "text": "text", "webdataset": "WebDataset",
    "table.parquet": "Parquet", "data.sqlite": "SQLite", "damaged": "damaged images", "model.onnx": "ONNX model",
    "model.py": "PyTorch model", "model-llama": "language model",
}  # fmt: skip
_PRESET = "w8a16"
_LIST = ".fewbit-demo.json"
"""In the demo: its files. Others that lie there are the user's."""


@dataclass(frozen=True)
class DemoStep:
    """One line of the demo: what, the command if there is one, what came out, and whether that was expected."""

    title: str
    command: str
    result: str
    expected: bool = True


def run_demo(folder: Path) -> Iterator[DemoStep]:
    """Write the demo and try it; files of an earlier demo are replaced, others stay.

    Raises:
        UsageError: the folder is there and is no demo.
        MissingLibraryError: scikit-learn is not installed.
    """
    left_out, accuracy = write_demo(folder)
    for name, title in _TITLES.items():
        if name in left_out:
            yield DemoStep(title, "", f"left out: {left_out[name].what}; {left_out[name].hint}")
        elif not name.startswith("model"):
            yield _check(folder / name, title, ok=name != "damaged")
    if "model.onnx" not in left_out:
        yield DemoStep("ONNX model", "", f"right on {accuracy:.1%} of held-out digits")
        yield _quantize(folder / "model.onnx", folder / "npz")


def write_demo(folder: Path) -> tuple[dict[str, MissingLibraryError], float]:
    """Every file of the demo; returns what could not be written, and the model's accuracy on held-out digits."""
    _check_earlier(folder)
    images, labels = datasets.load_digits()
    flat, count = images.reshape(len(images), 64), datasets.TRAINING
    weights = classifier.train(flat[:count], labels[:count])
    accuracy = float(np.mean(classifier.predict(weights, flat[count:]).argmax(1) == labels[count:]))
    writers: dict[str, Callable[[Path], None]] = {
        "npz": partial(datasets.write_npz_samples, images),
        "image_folder": partial(datasets.write_image_folder, images, labels),
        "yolo": partial(datasets.write_yolo, images, labels),
        "damaged": partial(datasets.write_damaged, images, labels),
        "model.onnx": partial(classifier.write_onnx, weights),
        "model.py": partial(classifier.write_torch, weights),
        "model-llama": write_language_model,
        **{name: partial(datasets.write_example, format) for name, format in datasets.EXAMPLES.items()},
    }
    left_out: dict[str, MissingLibraryError] = {}
    with open_output(folder, overwrite=True, is_file=False, merge=True) as output:
        for leftover in (entry for entry in output.work.iterdir() if entry.is_dir()):  # of a run that was killed
            shutil.rmtree(leftover)
        for name, write in writers.items():
            try:
                write(output.work / name)
            except MissingLibraryError as error:
                left_out[name] = error
        record = Record("demo", output=str(folder), quality={"accuracy": accuracy})
        (output.work / RECORD).write_bytes(record.to_json())
        files = [path.relative_to(output.work) for path in output.work.rglob("*") if path.is_file()]
        names = sorted(path.as_posix() for path in files if path.name != ".lock")
        earlier = set(_listed(folder)) - set(names)
        (output.work / _LIST).write_bytes(orjson.dumps(names))
    for name in earlier:  # of a demo that wrote more
        (folder / name).unlink(missing_ok=True)
    return left_out, accuracy


def _listed(folder: Path) -> Iterator[str]:
    """The files that an earlier demo wrote, as far as they are plain files below the folder."""
    try:
        names = orjson.loads((folder / _LIST).read_bytes())
    except (OSError, ValueError):
        return
    for name in names if isinstance(names, list) else ():
        path = folder / str(name)
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            yield str(name)


def _check_earlier(folder: Path) -> None:
    """Other results of fewbit are not replaced by a demo."""
    if not (folder / RECORD).is_file():
        return
    try:
        command = Record.read(folder).command
    except DataError:
        command = "another version of fewbit"
    if command != "demo":
        raise UsageError(
            f"{folder} was written by {command}", code="output-foreign", param="output",
            expected="a new path, or an earlier demo", hint="another {output}",
        )  # fmt: skip


def _check(path: Path, title: str, *, ok: bool) -> DemoStep:
    command = f"fewbit check {path}"
    try:
        report = check_dataset(str(path), progress=False)
    except MissingLibraryError as error:
        return DemoStep(title, "", f"left out: {error.what}; {error.hint}")
    return DemoStep(title, command, verdict_line(report), report.ok == ok)


def _quantize(model: Path, data: Path) -> DemoStep:
    command = f"fewbit quantize {model} --data {data} --preset {_PRESET}"
    with tempfile.TemporaryDirectory() as work:
        _, record = quantize(
            str(model), str(data), preset=_PRESET, output=Path(work) / "small.onnx", progress=False, return_record=True
        )
    return DemoStep("quantization", command, f"{LABELS[record.verdict]}  {record.summary}", record.verdict == "ok")
