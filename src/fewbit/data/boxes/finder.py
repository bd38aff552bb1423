# SPDX-License-Identifier: Apache-2.0
"""Pairs each image of a split with its label file. Folders are listed once; no file is opened but list files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fewbit.data import walk
from fewbit.data.boxes import lists
from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.places import folder_named, label_folder, stem, swap_last, topmost
from fewbit.data.boxes.splits import Ref, Splits
from fewbit.data.findings import Code, Severity
from fewbit.data.images import sniff
from fewbit.data.sample import Place
from fewbit.data.split_names import SPLITS
from fewbit.data.walk import Entry, nfc

CODES = {
    **walk.CODES,
    **lists.CODES,
    "folder-too-large": Code(
        Severity.ERROR, "a folder outside the dataset has too many files", "name the images' own folder", "raise"
    ),
    "image-not-read": Code(
        Severity.WARN, "an image of a kind that is not read was left out", "convert it to PNG or JPEG"
    ),
    "image-twice": Code(
        Severity.WARN, "a split names the same image twice", "delete one of the lines", "drop", ("raise",)
    ),
    "stem-twice": Code(
        Severity.ERROR,
        "two images share one label file because only their suffixes differ",
        "rename or remove one of them; `--fix` keeps the first",
        "raise",
        ("drop", "keep"),
    ),
}

_OUTSIDE_FILES = 1_000_000
_NOT_LABELS = frozenset({"classes", "readme", "license", "notes", "labels", *SPLITS})


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a split, where its label file belongs, and whether that is there."""

    split: str
    image: Entry
    label: Entry
    labelled: bool


class Finder:
    """Walks folders once, and remembers which label files it has seen and which of them were asked for."""

    def __init__(self, found: Splits, faults: list[Fault]):
        self.found = found
        self.faults = faults
        self.label_folders: dict[str, str] = {}  # label folder: the image folder it belongs to
        self._folder_of: dict[str, str] = {}
        self._texts: dict[str, dict[str, Entry]] = {}
        self._asked: set[str] = set()
        self._images_of: dict[str, str] = {}
        self._stems: dict[str, set[str]] = {}

    def items(self, split: str, refs: list[Ref]) -> list[Item]:
        """The images of one split, each once."""
        items: list[Item] = []
        seen: set[str] = set()
        owners: dict[str, Entry] = {}
        for ref in refs:
            for image, place in self._listed(ref) if ref.is_list else self._walked(ref.path):
                if image.path in seen:
                    self.faults.append(Fault("image-twice", f"{image.name} is in {split} already", place))
                    continue
                seen.add(image.path)
                item = self._item(split, image)
                owner = owners.setdefault(item.label.path, image)
                if owner is not image:
                    message = f"shares the label {item.label.name} with {owner.name}"
                    self.faults.append(Fault("stem-twice", message, Place(image.name)))
                items.append(item)
        return items

    def orphans(self) -> list[Entry]:
        """Label files in the label folders that no image asked for and whose image is nowhere."""
        root = str(self.found.root)
        labels = folder_named(root, "labels")
        if os.path.isdir(labels):
            self.label_folders.setdefault(labels, folder_named(root, "images"))
        for folder in topmost(folder for folder, images in self.label_folders.items() if folder != images):
            self._look_below(folder)
        unasked = [
            entry
            for texts in self._texts.values()
            for key, entry in texts.items()
            if key not in self._asked and stem(entry.name).rpartition("/")[2].lower() not in _NOT_LABELS
        ]
        lists_used = {ref.path for ref in self.found.refs if ref.is_list}
        owned = (entry for entry in unasked if entry.path not in lists_used and not self._has_image(entry.path))
        return sorted(owned, key=lambda entry: entry.name)

    def _walked(self, folder: str) -> Iterable[tuple[Entry, Place]]:
        inside = not os.path.isabs(self.found.name(folder))
        entries = walk.walk(Path(folder), self._problem(folder), within=self.found.root if inside else None)
        for count, entry in enumerate(entries):
            if count == _OUTSIDE_FILES and not inside:
                message = f"only its first {_OUTSIDE_FILES} files were looked at"
                self.faults.append(Fault("folder-too-large", message, Place(self.found.name(folder))))
                return
            image = Entry(self.found.name(entry.path), entry.path)
            if sniff.is_image_name(entry.name):
                yield image, Place(image.name)
            elif sniff.suffix(entry.name) in sniff.UNREAD_EXTENSIONS:
                message = f"a {sniff.suffix(entry.name)} file is not read"
                self.faults.append(Fault("image-not-read", message, Place(image.name)))

    def _listed(self, ref: Ref) -> Iterable[tuple[Entry, Place]]:
        outside = 0
        for line in lists.read_list(ref.path, self.found.name(ref.path), self.found.base):
            if isinstance(line, Fault):
                self.faults.append(line)
                continue
            path, place = line
            name = self.found.name(path)
            outside += os.path.isabs(name)
            yield Entry(name, path), place
        if outside:
            message = f"{outside} of its images lie outside the dataset's folder"
            self.faults.append(Fault("path-outside", message, Place(self.found.name(ref.path))))

    def _item(self, split: str, image: Entry) -> Item:
        folder, file = os.path.split(image.path)
        labels = self._label_folder(folder)
        path = os.path.join(labels, stem(file) + ".txt")
        key = _key(path)
        there = self._texts_of(labels).get(key)
        self._asked.add(key)
        return Item(split, image, there or Entry(self.found.name(path), path), there is not None)

    def _label_folder(self, folder: str) -> str:
        known = self._folder_of.get(folder)
        if known is None:
            known = self._folder_of[folder] = label_folder(folder, str(self.found.root))
            self.label_folders.setdefault(known, folder)
        return known

    def _texts_of(self, folder: str) -> dict[str, Entry]:
        """The `.txt` files of one folder by their key."""
        if folder not in self._texts:
            paths: list[str] = []
            if os.path.isdir(folder):
                try:
                    with os.scandir(folder) as scan:
                        paths = sorted(entry.path for entry in scan if _is_text(entry))
                except OSError as error:
                    self._problem(folder)("unreadable", "", f"cannot list the folder: {error.strerror}")
            self._texts[folder] = {_key(path): Entry(self.found.name(path), path) for path in paths}
        return self._texts[folder]

    def _look_below(self, folder: str) -> None:
        """Take in label folders that have no images of their own: `labels/extra` without `images/extra`."""
        if os.path.isdir(folder):
            for entry in walk.walk(Path(folder), self._problem(folder), within=self.found.root):
                self._texts_of(os.path.dirname(entry.path))

    def _has_image(self, label: str) -> bool:
        """Whether an image of this label lies on disk after all, in no list file or split."""
        folder, file = os.path.split(label)
        if folder not in self._images_of:
            self._images_of[folder] = swap_last(folder, "labels", "images") or folder
        return any(nfc(stem(file)) in self._stems_of(place) for place in {self._images_of[folder], folder})

    def _stems_of(self, folder: str) -> set[str]:
        if folder not in self._stems:
            found = os.listdir(folder) if os.path.isdir(folder) else []
            self._stems[folder] = {nfc(stem(name)) for name in found if sniff.is_image_name(name)}
        return self._stems[folder]

    def _problem(self, folder: str) -> walk.Problem:
        def problem(code: str, path: str, message: str) -> None:
            self.faults.append(Fault(code, message, Place(self.found.name(os.path.join(folder, path)) or ".")))

        return problem


def _key(path: str) -> str:
    """What a label file is looked up by: its path in composed form, whether it ends in `.txt` or `.TXT`."""
    return nfc(stem(path))


def _is_text(entry: os.DirEntry[str]) -> bool:
    if sniff.suffix(entry.name) != ".txt" or walk.ignored(entry.name):
        return False
    return entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)
