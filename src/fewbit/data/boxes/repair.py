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
from fewbit.data.boxes.fault import Fault, remedy
from fewbit.data.boxes.finder import Item
from fewbit.data.boxes.labels import read_labels
from fewbit.data.boxes.layout import Layout
from fewbit.data.boxes.lists import has_absolute_lines
from fewbit.data.boxes.pixels import READINGS
from fewbit.data.boxes.places import stem
from fewbit.data.boxes.rows import Rules
from fewbit.data.boxes.survey import Survey, size_of, survey
from fewbit.data.findings import DataReport, Severity
from fewbit.data.images.layout import UNSPLIT, split_word
from fewbit.errors import DataError

_HOPELESS = ("no-images", "labels-none", "yaml-keypoints")
_MOST_NAMES = 1 << 16  # names that are made up for classes without one
_ALSO = ("path-guessed", "label-orphan")  # harmless to a reader, but not to be handed on


def repair(layout: Layout, report: DataReport, rules: Rules, task: str | None, out: Path) -> list[str]:
    """Write the repaired copy.

    Args:
        layout: the dataset.
        report: an empty report, filled here.
        rules: what rows are held against; readings of pixels and the first class are found out here.
        task: as asked for.
        out: an empty folder.

    Returns:
        One line for each change; none for a dataset that was copied as it is.
    """
    seen = survey(layout, report, rules, task, quick=False)
    hopeless = next((finding for finding in report.findings if finding.code in _HOPELESS), None)
    if hopeless is not None:
        raise hopeless.to_error()
    if not any(_needs_repair(report, code) for code in report.counts) and _travels(layout):
        for entry in walk.walk(layout.found.root):
            _copy(entry.path, out / entry.name)
        return []
    return _Copy(layout, report, _inferred(layout, seen, rules), seen, out).write()


def _needs_repair(report: DataReport, code: str) -> bool:
    known = report.codes[code]
    return known.severity is Severity.ERROR or remedy(known) in ("repair", "drop") or code in _ALSO


def _travels(layout: Layout) -> bool:
    """Whether a copy of the folder would read its own files: nothing lies outside, no path is absolute."""
    if any(os.path.isabs(item.image.name) for item in layout.items):
        return False
    told = layout.found.description
    paths = [] if told is None else [told.path, *(text for texts in told.splits.values() for text in texts)]
    used = [ref.path for ref in layout.found.refs if ref.is_list]
    return not any(map(os.path.isabs, paths)) and not any(map(has_absolute_lines, used))


def _inferred(layout: Layout, seen: Survey, rules: Rules) -> Rules:
    """The rules with what the whole dataset tells: how pixels are meant, and whether classes count from 1."""
    fitting = [name for name in READINGS if name in (seen.readings or ())]
    pixels = fitting[0] if fitting and rules.pixels not in fitting else rules.pixels
    counted_from_one = seen.one_based and layout.nc is not None and max(seen.classes) == layout.nc
    nc = None if layout.nc is None else min(layout.nc, _MOST_NAMES)
    return replace(rules, nc=nc, pixels=pixels, one_based=rules.one_based or counted_from_one)


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
            if _needs_repair(self.report, fault.code):
                self.lines.append(f"{fault.place}: {fault.message} [{fault.code}]")
        if self.rules.one_based:
            self.lines.append("classes counted from 1 are counted from 0 now [classes-from-one]")
        for item in self.layout.items:
            if item.image.path in self.seen.images.broken:
                self.lines.append(f"{item.image.name}: left out, the image cannot be read")
            elif item.image.name in self.seen.unreadable:
                self.lines.append(f"{item.image.name}: left out, its label file cannot be read")
            elif item.image.name in shared:
                self.lines.append(f"{item.image.name}: left out, another image has its label")
            else:
                self._item(item)
        if not self.written:
            raise DataError("no image of the dataset can be used", code="no-images", where=self.layout.found.root)
        self._describe()
        return self.lines

    def _item(self, item: Item) -> None:
        target = self._target(item)
        _copy(item.image.path, self.out / "images" / target)
        self.written[item.split] = None
        if not item.labelled:
            return
        labels = read_labels(item.label, self.rules, self._decide, size_of(item))
        self.highest = max([self.highest, *(shape.cls for shape in labels.shapes)])
        path = self.out / "labels" / f"{stem(target)}.txt"
        if labels.changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(labels.text(), encoding="utf-8", newline="\n")
        else:
            _copy(item.label.path, path)

    def _decide(self, fault: Fault) -> str:
        action = remedy(self.report.codes[fault.code])
        if action in ("repair", "drop"):
            done = "repaired" if action == "repair" else "row left out"
            self.lines.append(f"{fault.place}: {fault.message}: {done} [{fault.code}]")
        return action

    def _target(self, item: Item) -> str:
        """Where an image goes below `images/`: its split, then what followed its own `images` and split folders."""
        parts = item.image.name.split("/")
        if "images" in parts[:-1]:
            parts = parts[len(parts) - parts[::-1].index("images") :]
        elif os.path.isabs(item.image.name):
            parts = parts[-1:]
        if len(parts) > 1 and split_word(parts[0]) == item.split:
            parts = parts[1:]
        parts = [part for part in parts if part not in ("images", "labels")]
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
