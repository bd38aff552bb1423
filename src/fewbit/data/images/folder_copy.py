# SPDX-License-Identifier: Apache-2.0
"""A repaired copy of an image folder: the unusable left out, the misnamed renamed, the rest as it was.

A class folder that loses its last image goes too: the misspelt class of one split must not stay behind as a class
that shifts the index of every other. A class folder that was empty before keeps its place.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from fewbit.data.images.inspection import Inspection
from fewbit.data.images.layout import NO_CLASS, Layout
from fewbit.data.images.leakage import Placed, copies


def copy_repaired(layout: Layout, classes: Sequence[str], seen: Inspection, out: Path) -> list[str]:
    """Copy the folder into `out` and say each change in a line.

    Args:
        layout: the folder's layout.
        classes: the class names in the order of their indices; images of other classes are left out.
        seen: what a full inspection of its images found.
        out: an empty folder.
    """
    changes: list[str] = []
    images = layout.all_images()
    left_out = _left_out(images, classes, seen)
    stay, gone = _class_folders(layout, classes, left_out)
    for folder in stay:
        (out / folder).mkdir(parents=True, exist_ok=True)
    # Files that keep their names come first, so that no renamed one takes the name of another.
    for _, _, entry in sorted(images, key=lambda placed: placed[2].path in seen.renames):
        if reason := left_out.get(entry.path):
            changes.append(f"left out {entry.name}: {reason}")
            continue
        target = _free(out, entry.name, seen.renames.get(entry.path))
        shutil.copyfile(entry.path, target)
        if target.relative_to(out).as_posix() != entry.name:
            changes.append(f"renamed {entry.name} to {target.name}")
    depth = 2 if layout.split else 1
    for entry in [*layout.outside, *layout.others]:
        if "/".join(entry.name.split("/")[:depth]) in gone:
            continue
        try:
            shutil.copyfile(entry.path, _free(out, entry.name))
        except PermissionError as error:
            changes.append(f"left out {entry.name}: cannot be read: {error.strerror}")
    changes += [f"left out the folder {folder}: no image in it is kept" for folder in gone]
    for name in sorted({*gone.values()} - {*stay.values()}):
        changes.append(f"left out the class {name!r}: the index of every class sorted after it is one less")
    return changes


def _class_folders(
    layout: Layout, classes: Sequence[str], left_out: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The class folders that stay and those that go, each with its class: one that has lost all its images goes."""
    known = set(classes)
    stay: dict[str, str] = {}
    gone: dict[str, str] = {}
    for (split, name), folders in layout.class_folders.items():
        entries = layout.images[split][name]
        emptied = entries and all(entry.path in left_out for entry in entries)
        (gone if emptied or name not in known else stay).update(dict.fromkeys(folders, name))
    return stay, gone


def _left_out(images: Sequence[Placed], classes: Sequence[str], seen: Inspection) -> dict[str, str]:
    """Why an image is left out, by path; in this order, because one reason can bring about the next."""
    reasons = {path: fault.message for path, fault in seen.broken.items()}
    known = {*classes, NO_CLASS}
    reasons |= {entry.path: f"unknown class {name!r}" for _, name, entry in images if name not in known}
    well = [placed for placed in images if placed[2].path not in reasons]
    for first, *rest in copies(well):
        for split, _, entry in rest:
            if split != first[0]:
                reasons[entry.path] = f"the same bytes as {first[2].name}, in another split"
    trained = {name for split, name, entry in well if split == "train"}
    for _, name, entry in well:
        if trained and name not in trained:
            reasons[entry.path] = f"train has no image of the class {name!r}"
    return reasons


def _free(out: Path, name: str, suffix: str | None = None) -> Path:
    """A path in the copy that nothing has yet; two files can have one name after NFC or after a rename."""
    wanted = PurePosixPath(name).with_suffix(suffix) if suffix else PurePosixPath(name)
    target = out / wanted
    target.parent.mkdir(parents=True, exist_ok=True)
    number = 2
    while target.exists():
        target = out / wanted.with_stem(f"{wanted.stem}-{number}")
        number += 1
    return target
