# SPDX-License-Identifier: Apache-2.0
"""Whether a folder or file looks like a YOLO dataset: by names, and where these leave it open by the first bytes
of a few texts. Never looks at more than a few hundred files."""

from __future__ import annotations

import codecs
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from fewbit.data.boxes.description import describe
from fewbit.data.boxes.places import dataset_root, folder_named, label_folder, stem
from fewbit.data.boxes.splits import find_splits, yaml_files
from fewbit.data.images.sniff import is_image_name
from fewbit.data.walk import ignored

_IMAGES, _PEEK, _HEAD = 500, 8, 4_096
_FOLDERS, _DEPTH, _LISTED = 32, 3, 1_000


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
        return _by_label_files(found.root)
    if found.kind == "data.yaml":
        return 0.8, "a data.yaml names splits"
    parents = [str(source), *(str(folder.parent) for folder in folders)]
    if any(os.path.isdir(folder_named(parent, "labels")) for parent in parents):
        return 0.92, f"folders of images and labels, laid out as {found.kind}"
    return 0.4, f"images laid out as {found.kind}, but no labels folder"


def _by_label_files(root: Path) -> tuple[float, str] | None:
    """Texts where labels belong prove it when they hold rows: where most images have one, nothing else is as likely."""
    images = list(itertools.islice(_images(str(root), _DEPTH), _IMAGES))
    homes = {folder: label_folder(folder, str(root)) for folder in {os.path.dirname(image) for image in images}}
    texts = {image: text for image in images if os.path.isfile(text := _label_of(image, homes))}
    filled = (text for text in texts.values() if os.path.getsize(text))
    if not any(map(_is_label, itertools.islice(filled, _PEEK))):
        return None
    folders = next((os.path.dirname(image), os.path.dirname(text)) for image, text in texts.items())
    reason = "images with label files of the same names beside them"
    if folders[0] != folders[1]:
        labels, above = os.path.relpath(folders[1], root), dataset_root(*folders)
        reason = f"images with their label files in {labels}; the dataset's own folder may be {above}"
    return 1.0 if 2 * len(texts) > len(images) else 0.85, reason


def _label_of(image: str, homes: dict[str, str]) -> str:
    folder, file = os.path.split(image)
    return os.path.join(homes[folder], f"{stem(file)}.txt")


def _images(folder: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as scan:
            entries = [entry for entry in itertools.islice(scan, _LISTED) if not ignored(entry.name)]
            folders = sorted(entry.path for entry in entries if entry.is_dir())[:_FOLDERS]
    except OSError:
        return
    yield from sorted(entry.path for entry in entries if is_image_name(entry.name))
    for inner in folders if depth else ():
        yield from _images(inner, depth - 1)


def _is_label(path: str) -> bool:
    """Whether a text begins like a label file, commas and all: a caption beside an image is a text too."""
    with open(path, "rb") as file:
        head = file.read(_HEAD).removeprefix(codecs.BOM_UTF8).lstrip()
    words = re.split(rb"[\s,;]+", head.partition(b"\n")[0].strip())
    return len(words) >= 5 and all(re.fullmatch(rb"[-+.0-9eE]+", word) for word in words[1:])
