# SPDX-License-Identifier: Apache-2.0
"""Files next to a model that say how its inputs are made: preprocessing, labels, tokenizer; and texts in its metadata.

preprocessing.json         written by fewbit: option names, labels, text settings
preprocessor_config.json   written by transformers
tokenizer files            also one folder above: `onnx/model.onnx` is a common layout
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from fewbit.model_info import as_labels, parse_text

_MOST_BYTES = 16 << 20
_IMAGE_KEYS = {"image_size", "resize", "resize_to", "mean", "std", "scale", "layout", "channels", "preprocess"}
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

    Settings of `preprocessing.json` win over those of `preprocessor_config.json`, which it need not repeat.
    """
    folder = (path if path.is_dir() else path.parent).absolute()
    folders = [folder, folder.parent] if folder.name == "onnx" else [folder]
    files = [] if path.is_dir() else [folder / f"{path.stem}.preprocessing.json"]
    files += [parent / "preprocessing.json" for parent in folders]
    files += [parent / "preprocessor_config.json" for parent in folders]
    settings: dict[str, Any] = {}
    sources: list[str] = []
    for file in files:
        content = read_json(file)
        if file.name == "preprocessor_config.json":
            content = _from_processor(content)
            if _IMAGE_KEYS & settings.keys():
                continue  # one file decides about images
        elif any(name.endswith("preprocessing.json") for name in sources):
            continue
        if content:
            settings = content | settings
            sources.append(file.name)
    labels = as_labels(settings.pop("labels", None))
    return SidecarFiles(settings, " and ".join(sources) or None, labels, _tokenizer(path))


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


def _from_processor(config: Mapping[str, Any]) -> dict[str, Any]:
    from fewbit.data.images.processor_config import from_preprocessor_config

    return from_preprocessor_config(config)


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
