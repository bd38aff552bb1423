# SPDX-License-Identifier: Apache-2.0
"""A repaired copy of a dataset: images byte for byte, label files rewritten only where something is wrong.

A dataset without anything to repair is copied as it is. One with faults comes out in the plain layout:

    data.yaml   images/{split}/…   labels/{split}/…
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from fewbit.data import walk
from fewbit.data.boxes.changes import DONE, change
from fewbit.data.boxes.fault import Fault, remedy
from fewbit.data.boxes.finder import Item
from fewbit.data.boxes.labels import Labels, read_labels
from fewbit.data.boxes.layout import Layout
from fewbit.data.boxes.lists import has_absolute_lines
from fewbit.data.boxes.pixels import READINGS
from fewbit.data.boxes.places import last_named, stem
from fewbit.data.boxes.rows import Rules
from fewbit.data.boxes.survey import Survey, size_of, survey
from fewbit.data.findings import DataReport, Severity
from fewbit.data.split_names import UNSPLIT, split_word
from fewbit.errors import DataError

_HOPELESS = ("no-images", "labels-none", "yaml-keypoints")
_MOST_NAMES = 1 << 16  # names that are made up for classes without one
_ALSO = ("path-guessed", "label-orphan", "yaml-tag")  # harmless to a reader, but not to be handed on


def repair(layout: Layout, report: DataReport, rules: Rules, task: str | None, out: Path) -> list[str]:
    """Write the repaired copy.

    Args:
        layout: the dataset.
        report: an empty report, filled here.
        rules: what rows are held against; how pixels are meant is found out here, the first class never.
        task: as asked for.
        out: an empty folder.

    Returns:
        One line for each change; none for a dataset that was copied as it is.
    """
    seen = survey(layout, report, rules, task, quick=False)
    hopeless = next((finding for finding in report.findings if finding.code in _HOPELESS), None)
    if hopeless is not None:
        raise hopeless.to_error()
    sound = not any(_needs_repair(report, code) for code in report.counts)
    if sound and not rules.one_based and _travels(layout):
        for entry in walk.walk(layout.found.root):
            _copy(entry.path, out / entry.name)
        return []
    return _Copy(layout, report, _inferred(layout, seen, rules), seen, out).write()


def _needs_repair(report: DataReport, code: str) -> bool:
    known = report.codes[code]
    return known.severity is Severity.ERROR or remedy(known) in ("repair", "drop") or code in _ALSO


def _travels(layout: Layout) -> bool:
    """Whether a copy of the folder would read its own files: nothing lies outside, no path is absolute."""
    for item in layout.items:
        if os.path.isabs(item.image.name) or (item.labelled and os.path.isabs(item.label.name)):
            return False
    told = layout.found.description
    paths = [] if told is None else [told.path, *(text for texts in told.splits.values() for text in texts)]
    used = [ref.path for ref in layout.found.refs if ref.is_list]
    return not any(map(os.path.isabs, paths)) and not any(map(has_absolute_lines, used))


def _inferred(layout: Layout, seen: Survey, rules: Rules) -> Rules:
    """The rules with what the whole dataset tells: how pixels are meant."""
    fitting = [name for name in READINGS if name in (seen.readings or ())]
    pixels = fitting[0] if fitting and rules.pixels not in fitting else rules.pixels
    nc = None if layout.nc is None else min(layout.nc, _MOST_NAMES)
    return replace(rules, nc=nc, pixels=pixels)


class _Copy:
    """One copy being written, and the lines that say what changed."""

    def __init__(self, layout: Layout, report: DataReport, rules: Rules, seen: Survey, out: Path):
        self.layout = layout
        self.report = report
        self.rules = rules
        self.seen = seen
        self.out = out
        self.lines: list[str] = []
        self.taken: set[str] = set()
        self.written: dict[str, None] = {}
        self.highest = -1

    def write(self) -> list[str]:
        """Write everything and return the lines."""
        shared = {fault.place.path for fault in self.layout.faults if fault.code == "stem-twice"}
        for fault in self.layout.faults:
            if fault.code in DONE:
                self.lines.append(change(fault))
        if self.rules.one_based:
            self.lines.append("classes counted from 1 are counted from 0 now [classes-from-one]")
        for item in self.layout.items:
            if item.image.path in self.seen.images.broken:
                self.lines.append(f"{item.image.name}: left out, the image cannot be read")
            elif item.image.name in shared:
                self.lines.append(f"{item.image.name}: left out, another image has its label")
            else:
                self._item(item)
        if not self.written:
            raise DataError(
                "no image of the dataset can be used",
                code="no-images",
                where=self.layout.found.root,
                try_="`fewbit check` says what is wrong with each of them",
            )
        self._describe()
        return list(dict.fromkeys(self.lines))  # what two splits share is told once

    def _item(self, item: Item) -> None:
        labels = self._labels(item) if item.labelled else Labels(empty=True)
        if labels.unreadable or labels.lost:
            why = "its label file cannot be read" if labels.unreadable else f"no row of {item.label.name} can be used"
            self.lines.append(f"{item.image.name}: left out, {why}")
            return
        target = self._target(item)
        _copy(item.image.path, self.out / "images" / target)
        self.written[item.split] = None
        if not item.labelled:
            return
        self.highest = max([self.highest, *(shape.cls for shape in labels.shapes)])
        path = self.out / "labels" / f"{stem(target)}.txt"
        if labels.changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(labels.text(), encoding="utf-8", newline="\n")
        else:
            _copy(item.label.path, path)

    def _labels(self, item: Item) -> Labels:
        """The objects of a label file; its changes are told in the order of its rows, not in that of the tests."""
        met: list[Fault] = []

        def decide(fault: Fault) -> str:
            action = remedy(self.report.codes[fault.code])
            if action in ("repair", "drop"):
                met.append(fault)
            return action

        labels = read_labels(item.label, self.rules, decide, size_of(item))
        self.lines += map(change, sorted(met, key=lambda fault: fault.place.line or 0))
        return labels

    def _target(self, item: Item) -> str:
        """Where an image goes below `images/`: its split, then what followed its own `images` and split folders."""
        parts = item.image.name.split("/")
        images = last_named(parts[:-1], "images")
        if images is not None:
            parts = parts[images + 1 :]
        elif os.path.isabs(item.image.name):
            parts = parts[-1:]
        if len(parts) > 1 and split_word(parts[0]) == item.split:
            parts = parts[1:]
        parts = [part for part in parts if part.lower() not in ("images", "labels")]
        split = [] if item.split == UNSPLIT else [item.split]
        return self._free("/".join([*split, *parts]), item)

    def _free(self, name: str, item: Item) -> str:
        """The name, or with a number after it when another image has taken it."""
        plain, suffix = stem(name), name[len(stem(name)) :]
        tried, number = plain, 1
        while tried.lower() in self.taken:
            number += 1
            tried = f"{plain}_{number}"
        self.taken.add(tried.lower())
        if number > 1:
            self.lines.append(f"{item.image.name}: is images/{tried}{suffix} now, its name was taken")
        return tried + suffix

    def _describe(self) -> None:
        import yaml

        names = list(self.layout.names)
        if names or self.highest < _MOST_NAMES:
            names += [f"class_{number}" for number in range(len(names), self.highest + 1)]
        folders = {"train" if split == UNSPLIT else split: _folder(split) for split in self.written}
        told = {**folders, "names": dict(enumerate(names))}
        text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True)
        (self.out / "data.yaml").write_text(text, encoding="utf-8", newline="\n")
        where = ", ".join(f"{split} in {folder}" for split, folder in folders.items())
        self.lines.append(f"data.yaml: written, with {len(names)} class names; {where}")


def _folder(split: str) -> str:
    return "images" if split == UNSPLIT else f"images/{split}"


def _copy(path: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
