# SPDX-License-Identifier: Apache-2.0
"""How a folder of images is laid out: which folders are splits, which are classes, which image belongs where.

    root/class/**.jpg     or     root/{train,val,test}/class/**.jpg     or     root/*.jpg, which have no class

A class's index is its place among all class names of all splits, sorted by code point: never per split, so an
empty or missing folder in one split cannot shift the labels of another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fewbit.data.findings import Code, Severity
from fewbit.data.images.sniff import EXTENSIONS, suffix
from fewbit.data.sample import Place
from fewbit.data.split_names import SPLITS, UNSPLIT, split_word
from fewbit.data.walk import Entry, Problem, ignored, nfc, quietly, walk
from fewbit.errors import UsageError

NO_CLASS = ""
"""Stands where a class's name would, for images that have none; no folder can be called so."""

CODES = {
    "no-images": Code(
        Severity.ERROR,
        "no image lies in a class folder",
        "put the images into one folder a class: root/cat/1.jpg, or root/train/cat/1.jpg",
        policy="raise",
    ),
    "no-classes": Code(
        Severity.INFO,
        "images without classes: they can calibrate a model, not train or score one",
        "nothing, for calibration; else put the images into one folder a class: root/cat/1.jpg",
    ),
    "split-ambiguous": Code(
        Severity.ERROR,
        "folders named like splits could also be classes",
        "say which: splits=True when they are splits, splits=False when they are classes",
        policy="raise",
    ),
    "split-twice": Code(
        Severity.WARN, "two folders stand for the same split; both are read", "merge them into one folder"
    ),
    "split-beside": Code(
        Severity.WARN, "a folder of images beside the splits is left out", "move it into a split", policy="drop"
    ),
    "image-outside-class": Code(
        Severity.WARN, "an image lies in no class folder and is left out", "move it into its class", policy="drop"
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a layout; `split` and `name` say which class of which split, when it is one."""

    code: str
    message: str
    place: Place
    split: str | None = None
    name: str | None = None


@dataclass
class Layout:
    """What lies where.

    Args:
        root: the folder.
        images: entries by split and class; every class folder has its list, an empty one too. Without splits the
            only split is `"all"`, and images without classes are its `NO_CLASS`.
        outside: images that belong to no class and are left out.
        others: files that do not end like an image we read.
        class_folders: where the class folders lie, relative to the root, by split and class.
        spellings: how the folders of a class are spelled on disk, by the class's name in NFC.
        faults: what is wrong with it.
    """

    root: Path
    images: dict[str, dict[str, list[Entry]]] = field(default_factory=dict)
    outside: list[Entry] = field(default_factory=list)
    others: list[Entry] = field(default_factory=list)
    class_folders: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    spellings: dict[str, set[str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def split(self) -> bool:
        """Whether there are splits."""
        return UNSPLIT not in self.images

    @property
    def labelled(self) -> bool:
        """Whether the images have classes."""
        return NO_CLASS not in self.images.get(UNSPLIT, {})

    @property
    def classes(self) -> list[str]:
        """Every class of any split, by code point."""
        return sorted({name for classes in self.images.values() for name in classes} - {NO_CLASS})

    def counts(self) -> dict[str, int]:
        """How many images each split has."""
        return {split: sum(map(len, classes.values())) for split, classes in self.images.items()}

    def all_images(self) -> list[tuple[str, str, Entry]]:
        """Split, class and entry of every image, in the order of reading."""
        return [
            (split, name, entry)
            for split, classes in self.images.items()
            for name in sorted(classes)
            for entry in classes[name]
        ]

    def fault(self, code: str, message: str, path: str = ".") -> None:
        """Note a fault at a path."""
        self.faults.append(Fault(code, message, Place(path)))

    def class_fault(self, code: str, message: str, split: str, name: str) -> None:
        """Note a fault of a class in a split."""
        path = self.class_folders.get((split, name), [name])[0]
        self.faults.append(Fault(code, message, Place(path), split, name))


def lay_out(root: Path, *, splits: bool | None = None, problem: Problem = quietly) -> Layout:
    """List a folder and find its splits and classes.

    Args:
        root: the folder.
        splits: whether folders named like splits are splits; `None` decides by what is in them.
        problem: told about what could not be listed.

    Cost: one `scandir` a folder, no file is opened.
    """
    if not root.is_dir():
        raise UsageError(f"{str(root)!r} is not a folder", expected="a folder of class folders")
    layout = Layout(root)
    images: dict[str, list[Entry]] = {}
    for entry in walk(root, problem):
        if suffix(entry.name) not in EXTENSIONS:
            layout.others.append(entry)
        else:
            top, slash, _ = entry.name.partition("/")
            images.setdefault(top if slash else NO_CLASS, []).append(entry)
    tops = _folders(root)
    if set(images) == {NO_CLASS} and not splits:
        layout.images[UNSPLIT] = images
        layout.fault("no-classes", f"{len(images[NO_CLASS]):,} images in the folder itself, none in a class folder")
        return layout
    for entry in images.pop(NO_CLASS, []):
        layout.outside.append(entry)
        layout.fault("image-outside-class", "lies in the dataset's folder itself", entry.name)
    if _has_splits(layout, tops, images, splits):
        _sort_into_splits(layout, tops, images)
    else:
        layout.images[UNSPLIT] = {name: images.get(name, []) for name in tops}
        layout.class_folders = {(UNSPLIT, name): [name] for name in tops}
        layout.spellings = {name: set(spelled) for name, spelled in tops.items()}
    if not any(layout.counts().values()):
        layout.fault("no-images", f"{len(layout.others):,} other files, but no image in a class folder")
    return layout


def _has_splits(layout: Layout, tops: Iterable[str], images: dict[str, list[Entry]], told: bool | None) -> bool:
    named = [name for name in tops if split_word(name)]
    if told is not None or not named:
        return bool(told and named)
    held = [name for name in named if images.get(name)]
    nested = [name for name in held if any(entry.name.count("/") > 1 for entry in images[name])]
    beside = [name for name in tops if name not in named and images.get(name)]
    if nested and not beside:
        return True
    if beside and not nested:
        return False  # {bus, car, train}: a train is a thing that people photograph
    words = " and ".join(repr(name) for name in named)
    if nested:
        layout.fault("split-ambiguous", f"{words} hold class folders, but {beside[0]!r} beside them holds images too")
    elif held:
        layout.fault("split-ambiguous", f"{words} hold images but no class folders: are they classes or splits?")
    return False


def _sort_into_splits(layout: Layout, tops: dict[str, list[str]], images: dict[str, list[Entry]]) -> None:
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in tops:
        if word := split_word(name):
            found[word].append(name)
        elif images.get(name):
            layout.outside += images[name]
            layout.fault("split-beside", f"{len(images[name]):,} images beside the splits are left out", name)
    for split, names in found.items():
        if len(names) > 1:
            layout.fault("split-twice", f"{' and '.join(names)} both stand for {split!r}", names[1])
        for name in names:
            _read_split(layout, split, name, tops[name], images.get(name, []))


def _read_split(layout: Layout, split: str, name: str, spelled: list[str], images: list[Entry]) -> None:
    classes = layout.images.setdefault(split, {})
    for folder in spelled:
        for inner, spellings in _folders(layout.root / folder).items():
            classes.setdefault(inner, [])
            layout.class_folders.setdefault((split, inner), []).append(f"{name}/{inner}")
            layout.spellings.setdefault(inner, set()).update(spellings)
    for entry in images:
        inner, slash, _ = entry.name[len(name) + 1 :].partition("/")
        if slash:
            classes.setdefault(inner, []).append(entry)
        else:
            layout.outside.append(entry)
            layout.fault("image-outside-class", f"lies directly in the split {name!r}", entry.name)


def _folders(folder: Path) -> dict[str, list[str]]:
    """The folders in a folder, sorted, by their NFC name, each with its spellings on disk."""
    real = os.path.realpath(folder)
    found: dict[str, list[str]] = {}
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                if not ignored(entry.name) and entry.is_dir() and not _leads_back(entry, real):
                    found.setdefault(nfc(entry.name), []).append(entry.name)
    except OSError:
        return found  # `walk` has told it
    return dict(sorted(found.items()))


def _leads_back(entry: os.DirEntry[str], real: str) -> bool:
    if not entry.is_symlink():
        return False
    target = os.path.realpath(entry.path)
    return os.path.commonpath([target, real]) == target
