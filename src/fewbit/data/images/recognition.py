# SPDX-License-Identifier: Apache-2.0
"""Whether a folder looks like one of images, in classes or not: a few names are looked at, never the whole tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fewbit.data.images.sniff import is_image_name
from fewbit.data.split_names import split_word
from fewbit.data.walk import ignored

_LOOK = 2_000
_FOLDERS = 32
_DEPTH = 3
_OTHER_LAYOUTS = frozenset({"data.yaml", "data.yml", "dataset.yaml", "dataset.yml", "dataset_dict.json", "state.json"})
_ROWS = (".jsonl", ".json", ".csv", ".parquet", ".arrow", ".npz", ".npy")


def recognise(root: Path) -> tuple[float, str] | None:
    """How sure one can be that the folder holds images, in classes or not, and why; `None` when it does not.

    Says no to the layouts of boxes (`images/` with `labels/`, `train/images`, a `data.yaml`) and to folders
    without images. Images with label files beside them are surer of being boxes than they ever are here.
    """
    folders, files = _look(str(root))
    names = {os.path.basename(folder).lower() for folder in folders}
    if _OTHER_LAYOUTS & {os.path.basename(file).lower() for file in files} or _boxes(names):
        return None
    splits = [folder for folder in folders if split_word(os.path.basename(folder))]
    for folder in splits:
        inside = {os.path.basename(inner).lower() for inner in _look(folder)[0]}
        if _boxes(inside):
            return None
    with_images = [folder for folder in folders[:_FOLDERS] if _has_image(folder, _DEPTH)]
    if not with_images:
        return _flat(files)
    if splits and all(folder in splits for folder in with_images):
        return 0.9, f"images below {' and '.join(sorted(os.path.basename(folder) for folder in splits))}"
    doubt = len(with_images) * 2 <= len(folders[:_FOLDERS]) or _has_rows(files)
    shown = ", ".join(sorted(os.path.basename(folder) for folder in with_images)[:3])
    return (0.5 if doubt else 0.8), f"images in folders named {shown}{' …' if len(with_images) > 3 else ''}"


def _flat(files: list[str]) -> tuple[float, str] | None:
    """Images directly in the folder; a table beside them may well be where their labels are, so the user is asked."""
    images = sum(map(is_image_name, files))
    if images == 0 or images * 2 < len(files):
        return None
    return (0.35 if _has_rows(files) else 0.6), f"{images:,} images without class folders"


def _has_rows(files: list[str]) -> bool:
    return any(file.lower().endswith(_ROWS) for file in files)


def _boxes(names: set[str]) -> bool:
    return "images" in names and (names <= {"images", "annotations"} or "labels" in names)


def _look(folder: str) -> tuple[list[str], list[str]]:
    """The folders and the files at the start of a folder's listing, sorted."""
    folders: list[str] = []
    files: list[str] = []
    for path, is_folder in islice(_entries(folder), _LOOK):
        (folders if is_folder else files).append(path)
    return sorted(folders), sorted(files)


def _entries(folder: str) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                if not ignored(entry.name):
                    yield entry.path, entry.is_dir()
    except OSError:
        return


def _has_image(folder: str, depth: int) -> bool:
    folders, files = _look(folder)
    if any(is_image_name(file) for file in files):
        return True
    return depth > 0 and any(_has_image(inner, depth - 1) for inner in folders[:_FOLDERS])
