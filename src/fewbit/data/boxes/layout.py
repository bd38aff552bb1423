# SPDX-License-Identifier: Apache-2.0
"""Which images a dataset has, which split each is in, which label file belongs to it, what the classes are called.

data.yaml ─ description ─┐
folder names ────────────┴▶ splits ─ finder ─▶ items     names ─▶ class names
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from fewbit.data.boxes import description, finder, names, splits
from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.finder import Finder, Item
from fewbit.data.boxes.places import dataset_root, folder_named
from fewbit.data.boxes.splits import Splits
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place

CODES = {
    **description.CODES,
    **splits.CODES,
    **names.CODES,
    **finder.CODES,
    "no-images": Code(
        Severity.ERROR, "the dataset has no images", "expected images/ and labels/, or a data.yaml", "raise"
    ),
    "root-above": Code(
        Severity.WARN,
        "the folder of the images was named, not the dataset's own",
        "name the dataset's folder above: its other splits and its class names belong to it",
    ),
    "label-orphan": Code(
        Severity.WARN, "a label file belongs to no image", "restore the image or delete the label file"
    ),
}


@dataclass
class Layout:
    """The dataset as its folders and files describe it; no label or image has been opened yet.

    Args:
        found: where the splits lie.
        names: the class names, when known.
        nc: the number of classes, when known.
        items: every image, in the order of the splits and sorted within each; list files keep their own order.
        faults: what is wrong with folders, lists and descriptions.
    """

    found: Splits
    names: tuple[str, ...] = ()
    nc: int | None = None
    items: list[Item] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def splits(self) -> dict[str, int]:
        """How many images each split has."""
        counts = {ref.split: 0 for ref in self.found.refs}
        for item in self.items:
            counts[item.split] += 1
        return counts


def lay_out(source: Path) -> Layout:
    """Find every image and its label file.

    Args:
        source: the dataset's folder, or its data.yaml.
    """
    found = splits.find_splits(source)
    layout = Layout(found, faults=list(found.faults))
    pairs = Finder(found, layout.faults)
    for split, refs in itertools.groupby(found.refs, key=lambda ref: ref.split):
        before = len(layout.faults)
        layout.items += pairs.items(split, list(refs))
        layout.faults[before:] = [replace(fault, split=split) for fault in layout.faults[before:]]
    if not layout.items:
        looked = ", ".join(found.name(ref.path) or "." for ref in found.refs) or "no folder"
        layout.faults.append(Fault("no-images", f"no image was found in: {looked}", Place(".")))
    _look_above(layout)
    layout.faults += [Fault("label-orphan", "no image has this name", Place(entry.name)) for entry in pairs.orphans()]
    _name_classes(layout, pairs)
    return layout


def _look_above(layout: Layout) -> None:
    if layout.found.kind != "beside":
        return
    root = str(layout.found.root)
    inside = os.path.join(root, "")
    for item in layout.items:
        if item.labelled and not item.label.path.startswith(inside):
            images, labels = os.path.dirname(item.image.path), os.path.dirname(item.label.path)
            above = dataset_root(images, labels)
            message = f"the labels were found in {os.path.relpath(labels, root)}; the dataset's folder may be {above}"
            fix = f"name {above} instead: the other splits and the class names belong to it"
            layout.faults.append(Fault("root-above", message, Place("."), fix))
            return


def _name_classes(layout: Layout, pairs: Finder) -> None:
    told = layout.found.description
    if told is not None:
        layout.names, layout.nc = told.names, max(told.nc or 0, len(told.names)) or None
    root = str(layout.found.root)
    folders = dict.fromkeys([root, folder_named(root, "labels"), *pairs.label_folders])
    for path in names.name_files(folders):
        name = layout.found.name(path)
        read, faults = names.read_names(path, name)
        layout.faults += faults
        if not layout.names:
            layout.names = read
        elif read and read != layout.names:
            message = (
                f"{len(read)} names from {read[0]!r} on, elsewhere {len(layout.names)} from {layout.names[0]!r} on"
            )
            layout.faults.append(Fault("names-conflict", message, Place(name)))
    layout.nc = layout.nc or len(layout.names) or None
    if not layout.names:
        layout.faults.append(Fault("names-unknown", "no data.yaml and no classes.txt names the classes", Place(".")))
