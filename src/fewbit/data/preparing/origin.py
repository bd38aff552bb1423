# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a dataset come from: a preset, a plug-in, a path, a name on the hub, an object."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewbit import registry
from fewbit.data.detect import find_format
from fewbit.data.formats.huggingface import is_huggingface
from fewbit.data.near_paths import near_paths
from fewbit.data.opening import open_source, options_of
from fewbit.data.source import Source
from fewbit.data.tables.shards import KINDS
from fewbit.data.text.named import SETS, open_text
from fewbit.data.views import Claimed
from fewbit.errors import DataError, UsageError, nearest

CUSTOM = "custom_dataset"
_HUB = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


@dataclass(frozen=True)
class Origin:
    """Where rows come from, and what they mean.

    Args:
        preset: the member of `presets` that reads them.
        place: a path, an object, or the rows themselves.
        how: in words.
        hub: the id on the hub, where nothing is here.
        format: the user's own reader, if it was named in the place of a dataset.
        sample: whether they are rows of ours, for whoever has none.
    """

    preset: Any
    place: Any
    how: str
    hub: str | None = None
    format: str | None = None
    sample: bool = False


def find_origin(name: Any, path: str | None = None) -> Origin:
    """Where a dataset is, by its name.

    Args:
        name: a preset or plug-in, a path, `owner/name` on the hub, `"file.py:function"`, or an object.
        path: where its files lie, if somebody says.

    Raises:
        UsageError: it is nowhere.
    """
    if not isinstance(name, str | os.PathLike):
        return Origin(_custom(), name, f"a {type(name).__name__}")
    text = os.fspath(name)
    if not text:
        raise UsageError("dataset_name is empty", expected="a preset, a path, a hub id or a dataset")
    if path is not None and not Path(path).expanduser().exists():
        raise UsageError(f"path={path!r}: there is no such file or folder", expected=near_paths(path))
    if text in registry.names("presets"):
        return _of_preset(text, path)
    if registry.is_reference(text):
        return Origin(_custom(), Path(path or "."), f"the function {text}", format=text)
    if Path(path or text).expanduser().exists():
        place = Path(path or text).expanduser()
        return Origin(_custom(), place, f"files at {place}")
    if text.partition("=")[0] in SETS:
        return Origin(_custom(), text, f"the set {text}")
    if _HUB.fullmatch(text) and Path(text).parts[0] != "." and not Path(text).suffix:
        return Origin(_custom(), None, f"{text} on the hub", hub=text)
    known = nearest(text, registry.names("presets"))
    raise UsageError(
        f"dataset_name={text!r}: there is no such preset, file or folder", expected=near_paths(text) or known
    )


def open_origin(origin: Origin, options: Mapping[str, Any], split: str | None) -> Source:
    """The rows, lazily.

    Args:
        origin: where they are.
        options: `format`, `reading`, `policy`, `task` and `columns` are read.
        split: one split as the files call it, or all of them.

    Raises:
        DataError: they do not open.
    """
    reading = dict(options["reading"] or {})
    how = {"format": origin.format or options["format"], "policy": options["policy"], "split": split}
    if origin.hub is not None:
        return _from_hub(origin.hub, how, reading)
    place = open_text(origin.place) if how["format"] is None and not isinstance(origin.place, list) else origin.place
    if isinstance(place, Source):
        return place
    task = options["task"]
    if task in ("image_classification", "object_detection", "segmentation"):
        how["task"] = task.replace("_", "-")
    elif task == "sequence_classification" and _to_number(origin, options) and _are_rows(place, how["format"]):
        label = (options["columns"] or {}).get("label")
        reading = reading if label is None else {"label": label, **reading}
        how["task"] = "text-classification"  # gives classes that have names their numbers
    try:
        opened = open_source(place, **how, **reading)
    except DataError as error:
        if error.code == "no-label":  # the reader's own option is no key here
            error.try_ = "custom_config={'columns': {'text': 'your column', 'label': 'another'}}"
        raise
    # A list is usually one of batches; of pictures each is one.
    return Claimed(opened, False) if opened.batched and isinstance(place, list) and _has_picture(place[0]) else opened


def _has_picture(row: Any) -> bool:
    return isinstance(row, Mapping) and "image" in row and np.ndim(row["image"]) < 4


def is_text(origin: Origin, format: str | None) -> bool:
    """Whether the rows are texts: what steps make sense if nobody says."""
    if origin.preset is not _custom() or origin.hub is not None or origin.format is not None:
        return True
    place = origin.place
    kind = _format_of(place, format) if isinstance(place, Path) else None
    if kind in ("image_folder", "yolo", "npz"):
        return False
    # What can be read once is not read to find out.
    again = isinstance(place, Path | list | Source) or isinstance(getattr(place, "source", None), Source)
    if kind not in (None, "huggingface") or not (again or is_huggingface(place)):
        return True
    return not _are_pictures(place)


def _are_pictures(place: Any) -> bool:
    """Whether rows, or a Hugging Face dataset, have pictures and no text."""
    try:
        row = next(iter(open_source(place)), None)
    except (DataError, UsageError):  # for whoever opens it to tell
        return False
    return isinstance(row, Mapping) and "image" in row and not any(isinstance(value, str) for value in row.values())


def reader_options(origin: Origin | None, format: str | None) -> list[str]:
    """The options that the reader of the files has, which are no keys of a configuration."""
    kind = _format_of(origin.place, format) if origin is not None and isinstance(origin.place, Path) else None
    return options_of(registry.get("formats", kind).read) if kind in registry.names("formats") else []


def _to_number(origin: Origin, options: Mapping[str, Any]) -> bool:
    """Whether the reader of the files is to number classes."""
    return origin.preset is _custom() and options.get("classes") is None


def _are_rows(place: Any, format: str | None) -> bool:
    return isinstance(place, Path) and _format_of(place, format) == "rows"


def _format_of(place: Path, format: str | None) -> str | None:
    try:
        return format or find_format(place)[0]
    except (DataError, UsageError):  # for whoever opens it to tell
        return None


def _of_preset(name: str, path: str | None) -> Origin:
    preset = registry.get("presets", name)
    if not callable(getattr(preset, "example", None)):
        raise UsageError(
            f"the preset {name!r} is {preset!r}", expected="a module as data/presets/_base.py describes it"
        )
    place = _beside(name) if path is None else Path(path).expanduser()
    if place is not None:
        return Origin(preset, place, f"{name}, files at {place}")
    if getattr(preset, "HUB", None):
        return Origin(preset, None, f"{name}, {preset.HUB} on the hub", hub=preset.HUB)
    rows = getattr(preset, "SAMPLE", None)
    if rows is None:
        raise UsageError(
            f"dataset_name={name!r}: it has no home on the hub, and no file of its name is here",
            expected=f"custom_config={{'path': …}} with the columns {', '.join(preset.COLUMNS)}",
        )
    return Origin(preset, [dict(row) for row in rows], f"{name}, a small sample of ours", sample=True)


def _beside(name: str) -> Path | None:
    """A folder or a file of that name in the current folder."""
    places = (Path(name), *(Path(name + suffix) for suffix in KINDS))
    return next((place for place in places if place.exists()), None)


def _from_hub(hub: str, how: Mapping[str, Any], reading: Mapping[str, Any]) -> Source:
    name, _, config = hub.partition(":")
    reading = {**({"name": config} if config else {}), **reading}
    try:
        return open_source(Path(name), **{**how, "format": "huggingface"}, **reading)
    except DataError as error:
        near = near_paths(hub)
        advice = f"{near + ' ' if near else ''}custom_config={{'path': …}} reads the same rows from files; {error.try_}"
        raise DataError(error.what, code=error.code, where=hub, expected=error.expected, try_=advice) from error


def _custom() -> Any:
    return registry.get("presets", CUSTOM)
