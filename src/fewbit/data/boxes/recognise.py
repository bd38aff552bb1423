# SPDX-License-Identifier: Apache-2.0
"""Whether a folder or file looks like a YOLO dataset: by names, and where these leave it
open by the first bytes of a few texts."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from fewbit.data.boxes.description import describe
from fewbit.data.boxes.places import stem
from fewbit.data.boxes.splits import find_splits, yaml_files
from fewbit.data.images.sniff import is_image_name

_LOOK_AT, _PEEK, _HEAD = 1_000, 8, 4_096


def recognise(source: Path) -> tuple[float, str] | None:
    """How sure, from 0 to 1, and why; `None` for something else altogether."""
    try:
        return _recognise(source)
    except OSError:  # a folder that may not be looked into: whoever can say more about it will
        return None


def _recognise(source: Path) -> tuple[float, str] | None:
    if source.is_file() and source.suffix.lower() in (".yaml", ".yml"):
        told = describe(source, source.name)
        return (0.95, f"{source.name} names the splits {', '.join(told.splits)}") if told.splits else None
    if not source.is_dir():
        return None
    for file in yaml_files(source)[:20]:
        told = describe(file, file.name)
        if told.splits and (told.names or told.nc):
            return 0.95, f"{file.name} names splits and classes"
    found = find_splits(source)
    folders = [Path(ref.path) for ref in found.refs]
    if found.kind == "beside":
        return next((match for match in map(_beside, folders) if match), None)
    if found.kind == "data.yaml":
        return 0.8, "a data.yaml names splits"
    if any((folder / "labels").is_dir() for folder in [source, *(folder.parent for folder in folders)]):
        return 0.92, f"folders of images and labels, laid out as {found.kind}"
    return 0.4, f"images laid out as {found.kind}, but no labels folder"


def _beside(folder: Path) -> tuple[float, str] | None:
    try:
        with os.scandir(folder) as scan:
            names = [entry.name for entry in itertools.islice(scan, _LOOK_AT)]
    except OSError:
        return None
    images = {stem(name) for name in names if is_image_name(name)}
    labels = {stem(name) for name in names if name.endswith(".txt") and (folder / name).is_file()}
    both = sorted(images & labels)[:_PEEK]
    if not any(_is_label(folder / f"{name}.txt") for name in both):
        return None
    return 0.95, "images with label files of the same names beside them"


def _is_label(path: Path) -> bool:
    """Whether a text begins like a label file: a caption beside an image is a text too."""
    with open(path, "rb") as file:
        words = file.read(_HEAD).partition(b"\n")[0].split()
    return len(words) >= 5 and all(re.fullmatch(rb"[-+.0-9eE]+", word) for word in words[:5])
