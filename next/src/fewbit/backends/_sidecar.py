# SPDX-License-Identifier: Apache-2.0
"""Files next to a model that say how its inputs are made: preprocessing, labels, tokenizer; and texts in its metadata.

preprocessing.json         written by fewbit: option names, labels, text settings
preprocessor_config.json   written by transformers
tokenizer files            also one folder above: `onnx/model.onnx` is a common layout
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

_MOST_BYTES = 16 << 20
_MOST_LABELS = 1_000_000
_LABEL_KEYS = ("names", "labels", "classes", "class_names", "id2label")
_ULTRALYTICS_TASKS = {"detect": "object-detection", "segment": "segmentation", "classify": "image-classification"}


@dataclass(frozen=True)
class SidecarFiles:
    """What the files next to a model say."""

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    preprocessing_source: str | None = None
    labels: tuple[str, ...] | None = None
    tokenizer: str | None = None


def read_sidecar_files(path: Path) -> SidecarFiles:
    """Read what lies next to a model file, or in a model folder; damaged files count as absent.

    Args:
        path: the model's file or folder.
    """
    folder = (path if path.is_dir() else path.parent).absolute()
    folders = [folder, folder.parent] if folder.name == "onnx" else [folder]
    tokenizer = _tokenizer(path)
    candidates = [] if path.is_dir() else [folder / f"{path.stem}.preprocessing.json"]
    candidates += [parent / "preprocessing.json" for parent in folders]
    for file in candidates:
        if content := read_json(file):
            labels = as_labels(content.pop("labels", None))
            return SidecarFiles(content, file.name, labels, tokenizer)
    for parent in folders:
        if (content := read_json(parent / "preprocessor_config.json")) and (settings := _from_processor(content)):
            return SidecarFiles(settings, "preprocessor_config.json", None, tokenizer)
    return SidecarFiles(tokenizer=tokenizer)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size; empty if there is none."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        content = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _tokenizer(path: Path) -> str | None:
    from fewbit.data.text.tokenizer import tokenizer_folder

    folder = tokenizer_folder(path)
    return None if folder is None else str(folder)


def _from_processor(config: Mapping[str, Any]) -> Mapping[str, Any]:
    from fewbit.data.images.preprocess import from_preprocessor_config

    settings: Mapping[str, Any] = from_preprocessor_config(dict(config))
    return settings


def as_labels(value: Any) -> tuple[str, ...] | None:
    """Class names from a list, a mapping of numbers to names, or a text that holds one of these.

    >>> as_labels("{0: 'cat', 1: 'dog'}"), as_labels(["a", "b"]), as_labels({"1": "b", "0": "a"}), as_labels("cat,dog")
    (('cat', 'dog'), ('a', 'b'), ('a', 'b'), ('cat', 'dog'))
    """
    if isinstance(value, str):
        parsed = parse_text(value)
        if isinstance(parsed, str):
            separator = "\n" if "\n" in parsed.strip() else ","
            parsed = [label.strip() for label in parsed.strip().split(separator)]
        value = parsed
    if isinstance(value, Mapping):
        try:
            numbered = {int(key): str(name) for key, name in value.items()}
        except (TypeError, ValueError):
            return None
        if sorted(numbered) != list(range(len(numbered))):
            return None
        value = [numbered[index] for index in range(len(numbered))]
    if not isinstance(value, Sequence) or not 0 < len(value) <= _MOST_LABELS:
        return None
    labels = tuple(str(name) for name in value)
    generic = all(name == f"LABEL_{index}" for index, name in enumerate(labels))
    return None if generic or not all(labels) else labels


def parse_text(text: str) -> Any:
    """A number, list or dict written as JSON or as Python's repr; otherwise the text itself."""
    if len(text) > _MOST_BYTES:
        return ""
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def numbers_in(value: Any) -> tuple[float, ...] | None:
    """One to four finite numbers from a list or a text.

    >>> numbers_in("123.675 116.28 103.53"), numbers_in("[0.5]"), numbers_in("x")
    ((123.675, 116.28, 103.53), (0.5,), None)
    """
    if isinstance(value, str):
        parsed = parse_text(value)
        value = parsed.replace(",", " ").split() if isinstance(parsed, str) else parsed
    values = list(value) if isinstance(value, list | tuple) else [value]
    try:
        numbers = tuple(float(item) for item in values)
    except (TypeError, ValueError):
        return None
    return numbers if 1 <= len(numbers) <= 4 and all(abs(number) < 1e6 for number in numbers) else None


def from_metadata(metadata: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...] | None, str | None]:
    """Preprocessing, labels and task from the texts that exporters store in a model.

    Args:
        metadata: keys and texts, such as Ultralytics' `names`, `imgsz`, `task`.

    >>> from_metadata({"names": "{0: 'cat', 1: 'dog'}", "mean": "[127.5]", "std": "[127.5]"})
    ({'mean': (0.5,), 'std': (0.5,)}, ('cat', 'dog'), None)
    """
    keys = {key.lower(): value for key, value in metadata.items()}
    labels = next((labels for key in _LABEL_KEYS if key in keys and (labels := as_labels(keys[key]))), None)
    task = _ULTRALYTICS_TASKS.get(keys.get("task", ""))
    settings: dict[str, Any] = {}
    size = next((numbers_in(keys[key]) for key in ("imgsz", "image_size", "input_size") if key in keys), None)
    if size and all(number >= 1 and number == int(number) for number in size[-2:]):
        settings["image_size"] = (int(size[-2:][0]), int(size[-1]))
    mean = next((numbers_in(keys[key]) for key in ("mean", "image_mean", "mean_values") if key in keys), None)
    std = next((numbers_in(keys[key]) for key in ("std", "image_std", "scale_values") if key in keys), None)
    settings |= on_unit_scale(mean, std)
    if "ultralytics" in keys.get("author", "").lower() and "mean" not in settings:
        letterboxed = task != "image-classification"
        settings |= {"preprocess": "yolo"} if letterboxed else {"resize": "crop", "mean": (0.0,), "std": (1.0,)}
    return settings, labels, task


def on_unit_scale(
    mean: tuple[float, ...] | None, std: tuple[float, ...] | None, divisor: float | None = None
) -> dict[str, Any]:
    """Mean and standard deviation on the 0..1 scale.

    Args:
        mean: per channel, or `None`.
        std: per channel, or `None`.
        divisor: 255 if both are for pixels of 0..255; by default their size tells.
    """
    present = [values for values in (mean, std) if values is not None]
    if not present or any(len(values) not in (1, 3) for values in present) or (std is not None and min(std) <= 0):
        return {}
    if divisor is None:
        divisor = 255.0 if max(max(values) for values in present) > 2 else 1.0
    # A mean for 0..255 without a deviation: the pixels are not divided at all, hence 1 / 255 on the 0..1 scale.
    return {
        "mean": tuple(number / divisor for number in mean or (0.0,)),
        "std": tuple(number / divisor for number in std or (1.0,)),
    }
