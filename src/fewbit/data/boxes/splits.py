# SPDX-License-Identifier: Apache-2.0
"""Where the images of each split are said to lie: folders and list files, from a data.yaml or from folder names.

A relative `path:` is taken from the data.yaml's own folder, never from the working directory. Without a
data.yaml, the folder names decide, in whatever case they are spelled:

    images/train  labels/train     "images/{split}"
    train/images  train/labels     "{split}/images"
    images        labels           "images", one set without splits
    a.jpg         a.txt            "beside": labels lie beside their images
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from fewbit.data.boxes.description import Description, describe
from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.places import folder_named, split_of
from fewbit.data.findings import Code, Severity
from fewbit.data.images.sniff import is_image_name
from fewbit.data.sample import Place
from fewbit.data.split_names import SPLITS, UNSPLIT
from fewbit.data.walk import ignored, nfc
from fewbit.errors import UsageError

CODES = {
    "split-missing": Code(
        Severity.ERROR,
        "a folder or list file of the data.yaml is not there",
        "correct the path; it is taken relative to `path:`, and that relative to the data.yaml",
        "raise",
        ("drop",),
    ),
    "split-too-wide": Code(
        Severity.ERROR, "a split names a folder that holds the dataset itself", "name the images' own folder", "raise"
    ),
    "path-guessed": Code(
        Severity.WARN,
        "a path of the data.yaml leads nowhere, but a near one does",
        "correct the path; `--fix` does it",
        "keep",
        ("raise",),
    ),
    "path-outside": Code(
        Severity.INFO, "a path leads out of the dataset's folder", "copy its files if the folder will travel"
    ),
    "image-unassigned": Code(
        Severity.WARN, "images lie beside the folders of the splits and belong to none", "move them into a split"
    ),
    "yaml-ambiguous": Code(
        Severity.WARN, "several YAML files describe the dataset", "name the one to use instead of the folder"
    ),
}

_USUAL = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")


@dataclass(frozen=True, slots=True)
class Ref:
    """One folder or list file of a split; `path` is absolute."""

    split: str
    path: str
    is_list: bool


@dataclass
class Splits:
    """Where the images lie.

    Args:
        root: the dataset's folder; names in messages are relative to it.
        base: where relative lines of list files start.
        kind: the layout's name.
        refs: folders and list files, in the order of the splits.
        description: the data.yaml, when there is a valid one.
    """

    root: Path
    base: Path
    kind: str
    refs: list[Ref] = field(default_factory=list)
    description: Description | None = None
    faults: list[Fault] = field(default_factory=list)

    def name(self, path: str) -> str:
        """A path for messages: relative to the dataset when it lies inside, NFC and posix."""
        root = os.path.join(str(self.root), "")
        return nfc((path[len(root) :] if path.startswith(root) else path).replace(os.sep, "/"))

    def fault(self, code: str, message: str, path: str, split: str | None = None) -> None:
        """Note a fault at a path."""
        self.faults.append(Fault(code, message, Place(self.name(path) or "."), split=split))


def find_splits(source: Path) -> Splits:
    """Where the images of each split lie.

    Args:
        source: the dataset's folder, or its data.yaml.

    Raises:
        UsageError: it is not there.
    """
    source = Path(os.path.abspath(source))
    if not source.exists():
        raise UsageError(f"there is no file or folder {str(source)!r}", expected="a dataset's folder or its data.yaml")
    root = source if source.is_dir() else source.parent
    found = Splits(root, root, "data.yaml")
    file = _yaml_of(source, found)
    told = None if file is None else describe(file, found.name(str(file)))
    if told is not None:
        found.faults += told.faults
    if told is not None and told.valid:
        found.description = told
        if told.splits:
            _from_description(told, found)
            return found
    _from_folders(found)
    if root != source and found.kind == "beside":
        found.refs.clear()  # a stray file says nothing about the folder that it lies in
    return found


def yaml_files(folder: Path) -> list[Path]:
    """The YAML files of a folder that may describe a dataset, the usual names first."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith((".yaml", ".yml")) and not ignored(name)]
    except OSError:
        return []
    order = {name: place for place, name in enumerate(_USUAL)}
    return [folder / name for name in sorted(names, key=lambda name: (order.get(name, len(order)), name))]


def _yaml_of(source: Path, found: Splits) -> Path | None:
    if not source.is_dir():
        return source
    files = yaml_files(source)
    telling = [file for file in files[:20] if describe(file, file.name).splits]
    if len(telling) == 1 or (telling and telling[0].name in _USUAL):
        return telling[0]
    if telling:
        names = ", ".join(file.name for file in telling)
        found.fault("yaml-ambiguous", f"{names}: none was used, the folders decide", str(source))
        return None
    return files[0] if files and files[0].name in _USUAL else None


def _from_description(told: Description, found: Splits) -> None:
    folder = told.file.parent
    found.base = Path(os.path.normpath(folder / told.path.replace("\\", "/")))
    for split, texts in told.splits.items():
        for text in texts:
            tried = [os.path.normpath(path) for path in _candidates(text, found.base, folder)]
            there = next((path for path in tried if os.path.isdir(path) or os.path.isfile(path)), None)
            if there is None:
                message = f"`{split}: {text[:200]}` leads to {tried[0]}, which is not there"
                found.fault("split-missing", message, str(told.file), split)
                continue
            if there != tried[0]:
                message = f"`{split}: {text}` leads to {tried[0]}, which is not there; {found.name(there)} was used"
                found.fault("path-guessed", message, str(told.file), split)
            if _may_be_read(there, text, split, found):
                found.refs.append(Ref(split, there, not os.path.isdir(there)))


def _candidates(text: str, base: Path, folder: Path) -> list[Path]:
    plain = text.replace("\\", "/")
    # Roboflow writes "../train/images" where it means the folder beside the data.yaml.
    inner = re.sub(r"^(\.\./)+", "", plain)
    return [base / plain, base / inner, folder / plain, folder / inner]


def _may_be_read(path: str, text: str, split: str, found: Splits) -> bool:
    real, root = os.path.realpath(path), os.path.realpath(found.root)
    if os.path.commonpath([real, root]) == root:
        return True
    if os.path.commonpath([real, root]) == real:
        found.fault("split-too-wide", f"`{split}: {text}` is {real}, which holds the dataset's own folder", path, split)
        return False
    found.fault("path-outside", f"`{split}: {text}` leads to {real}", path, split)
    return True


def _from_folders(found: Splits) -> None:
    images = Path(folder_named(str(found.root), "images"))
    below, beside = _split_folders(images), _split_folders(found.root)
    inner = [(split, folder_named(path, "images")) for split, path in beside]
    inner = [(split, path) for split, path in inner if os.path.isdir(path)]
    if below:
        found.kind, folders = "images/{split}", below
        _tell_unassigned(images, {path for _, path in below}, found)
    elif images.is_dir():
        found.kind, folders = "images", [(UNSPLIT, str(images))]
    elif inner:
        found.kind, folders = "{split}/images", inner
    else:
        found.kind, folders = "beside", beside or [(UNSPLIT, str(found.root))]
    found.refs = [Ref(split, path, False) for split, path in folders]


def _split_folders(folder: Path) -> list[tuple[str, str]]:
    """The folders inside that are named like splits (`train`, `valid`, `val2017` …), in the order of the splits."""
    try:
        with os.scandir(folder) as scan:  # knows what a folder is without asking for each of a million files
            names = sorted(entry.name for entry in scan if entry.is_dir())
    except OSError:
        return []
    splits = [(split_of(name), str(folder / name)) for name in names]
    return sorted(((split, path) for split, path in splits if split), key=lambda found: SPLITS.index(found[0]))


def _tell_unassigned(folder: Path, used: set[str], found: Splits) -> None:
    for name in sorted(os.listdir(folder)):
        path = str(folder / name)
        if path in used or ignored(name):
            continue
        if os.path.isdir(path):
            found.fault("image-unassigned", "the folder is not named like a split and was left out", path)
        elif is_image_name(name):
            found.fault("image-unassigned", "the image lies in no split and was left out", path)
