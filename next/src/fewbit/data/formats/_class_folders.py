# SPDX-License-Identifier: Apache-2.0
"""One folder per class, for images and audio: which folders are splits, which are classes, what belongs where.

    cat/1.jpg      train/cat/1.jpg      1.jpg      (classes; splits of classes; neither)

The number of a class is its place among the class names of all splits, sorted by code point: an empty or missing folder
in one split cannot shift the labels of another.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fewbit.data.files import SYSTEM_FILES
from fewbit.data.images.signatures import suffix_of
from fewbit.data.splits import SPLITS, split_of_folder
from fewbit.data.types import DataReport, Files, FormatOption, IssueType, Location, Severity
from fewbit.errors import UsageError, nearest, plural

CLASS_UNSEEN = IssueType(
    "class-unseen-in-train", Severity.ERROR, "class that train does not have",
    "rename the folder, or add training samples", "raise", ("drop", "keep"), "leaves the class out",
)  # fmt: skip
CLASS_UNKNOWN = IssueType(
    "class-unknown", Severity.ERROR, "class that is not among the given ones",
    "rename the folder, or add its name to {data_option=classes=a,b,c}", "raise", ("drop",), "leaves the class out",
)  # fmt: skip
CLASS_MISSING = IssueType(
    "class-missing-in-split", Severity.NOTE, "class missing from a split", "nothing, if that is intended"
)
CLASS_EMPTY = IssueType(
    "class-empty", Severity.WARNING, "class folder without samples, which keeps its number",
    "fill the folder or remove it",
)  # fmt: skip
CLASS_NUMERIC = IssueType(
    "class-numeric", Severity.WARNING, "class names that are numbers, but not the numbers of their classes",
    "{data_option=classes=1,2,10} sets the order; sorted as text, '10' comes before '2'",
)  # fmt: skip
CLASS_COLLISION = IssueType(
    "class-collision", Severity.WARNING, "class names that differ only in case or in how an accent is written",
    "rename one of them: other systems take them for the same folder",
)  # fmt: skip
ONE_CLASS = IssueType("one-class", Severity.WARNING, "only one class", "open the folder that holds the class folders")
NO_CLASSES = IssueType(
    "no-classes", Severity.NOTE, "samples without classes: enough to calibrate, not to train or to score",
    "for labels, put the files into one folder per class",
)  # fmt: skip
SPLIT_AMBIGUOUS = IssueType(
    "split-ambiguous", Severity.ERROR, "folders that may be splits or classes",
    "{data_option=splits=true} if they are splits, {data_option=splits=false} if they are classes", "raise",
)  # fmt: skip
SPLIT_TWICE = IssueType("split-twice", Severity.WARNING, "two folders for one split, which are both read", "merge them")
SPLIT_BESIDE = IssueType(
    "split-beside", Severity.WARNING, "folder next to the splits, which is not read", "move it into a split", "drop"
)
FILE_IGNORED = IssueType(
    "file-ignored", Severity.NOTE, "file of another kind, which is not read", "nothing, if it belongs there", "drop"
)
TASK_MISMATCH = IssueType(
    "task-mismatch", Severity.ERROR, "data that does not serve the task", "leave out {task}, or name another",
    "raise", ("keep",),
)  # fmt: skip

CLASS_FOLDER_OPTIONS = (
    FormatOption("classes", "class names in the model's order", (str, list, tuple)),
    FormatOption("splits", "whether folders named like splits are splits", bool),
)
NO_SPLIT, NO_CLASS = "", ""
"""Stand for the split and the class of what has none; no folder can be called so."""
_ORDER = {split: position for position, split in enumerate((NO_SPLIT, *SPLITS))}
_MOST_HINTS, _MOST_COMPARED = 5, 5_000


class Media:
    """What class folders hold.

    Args:
        unit: what one file is called, in messages; its first word begins the issue codes.
        task: of a dataset of these.
        suffixes: lower-case, of files that are read.
        skipped_suffixes: of files that are not read although they are of this kind.
        none: code of the issue of a dataset without any.
    """

    def __init__(
        self, unit: str, task: str, suffixes: Collection[str], skipped_suffixes: Collection[str], *, none: str
    ):
        self.unit, self.task, self.suffixes, self.skipped_suffixes = unit, task, suffixes, skipped_suffixes
        code = unit.partition(" ")[0]
        self.none = IssueType(
            none, Severity.ERROR, f"no {unit}s", "put the files into folders: cat/FILE, dog/FILE, or train/cat/FILE",
            "raise",
        )  # fmt: skip
        self.outside = IssueType(
            f"{code}-outside-class", Severity.WARNING, f"{unit} in no class folder, which is not read",
            "move it into its class", "drop",
        )  # fmt: skip
        self.skipped = IssueType(
            f"{code}-skipped", Severity.WARNING, f"{unit} that is not read because of its suffix",
            f"convert it, or correct its suffix; these are read: {' '.join(sorted(suffixes))}", "drop",
        )  # fmt: skip
        self.issues = (
            self.none, self.outside, self.skipped, FILE_IGNORED, CLASS_UNSEEN, CLASS_UNKNOWN, CLASS_MISSING,
            CLASS_EMPTY, CLASS_NUMERIC, CLASS_COLLISION, ONE_CLASS, NO_CLASSES, SPLIT_AMBIGUOUS, SPLIT_TWICE,
            SPLIT_BESIDE, TASK_MISMATCH,
        )  # fmt: skip


class LabeledFile(NamedTuple):
    """One sample: where it belongs, and its file."""

    split: str
    label: str
    name: str


@dataclass
class ClassFolders:
    """What belongs where.

    Args:
        entries: every sample, by split, class and name.
        splits: in the order train, val, test; only `NO_SPLIT` if there are none.
        folders: of each split and class, as they are spelled; also empty ones. None without classes.
        classes: in the order of their numbers; none without classes.
        others: files that are no samples.
    """

    entries: list[LabeledFile] = field(default_factory=list)
    splits: list[str] = field(default_factory=lambda: [NO_SPLIT])
    folders: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    others: list[str] = field(default_factory=list)


def read_class_folders(
    files: Files, report: DataReport, media: Media, *, options: Mapping[str, Any]
) -> tuple[ClassFolders, list[LabeledFile]]:
    """Find splits and classes by names alone, and report what is odd; returns all there is, and what is to be read."""
    layout = _lay_out(files, report, media, as_flag("splits", options.get("splits")))
    counts = Counter(entry.split for entry in layout.entries)
    split = as_split(options.get("split"), {split: counts[split] for split in layout.splits if split})
    selected = [name for name in layout.splits if split in (None, name)]
    entries = [entry for entry in layout.entries if entry.split in selected]
    if not entries:
        report.add(media.none, f"{plural(len(layout.others), 'other file')}", samples=0)
    if NO_SPLIT not in layout.splits:
        report.facts["splits"] = {name: counts[name] for name in selected}
    if layout.folders:
        class_names = as_names(options.get("classes"))
        layout.classes = class_names or tuple(sorted({label for _, label in layout.folders}))
        if class_names is None and all(name.isdecimal() and len(name) < 19 for name in layout.classes):
            wrong = [number for number, name in enumerate(layout.classes) if number != int(name)]
            if wrong:
                report.add(CLASS_NUMERIC, f"{layout.classes[wrong[0]]!r} is class {wrong[0]}", samples=0)
        left_out = _report_classes(layout, report, media, selected)
        entries = [entry for entry in entries if (entry.split, entry.label) not in left_out]
        labels = Counter(entry.label for entry in layout.entries)
        report.facts |= {"class_counts": {label: labels[label] for label in layout.classes}, "task": media.task}
    task = task_name(options.get("task"))
    if layout.classes and task not in (None, media.task, "arrays"):
        report.add(TASK_MISMATCH, f"one class per {media.unit}, which is no data for {task}")
    elif task == media.task and not layout.classes:
        report.add(TASK_MISMATCH, f"{task} needs classes, and these {media.unit}s have none")
    return layout, entries


def _lay_out(files: Files, report: DataReport, media: Media, splits_option: bool | None) -> ClassFolders:
    layout = ClassFolders()
    by_top: dict[str, list[str]] = defaultdict(list)  # samples by their folder at the top, NFC; the root's own under ""
    for name in files.names():
        suffix = suffix_of(name)
        if suffix in media.suffixes:
            by_top[_nfc(name.rpartition("/")[0].partition("/")[0])].append(name)
            continue
        layout.others.append(name)
        if suffix in media.skipped_suffixes:
            report.add(media.skipped, f"{suffix} files are not read", Location(name))
        else:
            report.add(FILE_IGNORED, f"no {media.unit}", Location(name), samples=0)
    split_of: dict[str, str | None] = dict.fromkeys(by_top, NO_SPLIT)
    depth = 1
    if _has_splits(by_top, report, media, splits_option):
        depth = 2
        split_of = {top: split_of_folder(top) for top in by_top}
        layout.splits = [split for split in SPLITS if split in split_of.values()]
        for name in layout.splits:
            tops = [top for top in by_top if split_of[top] == name]
            if len(tops) > 1:
                report.add(SPLIT_TWICE, f"{' and '.join(tops)} are both {name}", Location(tops[1]), samples=0)
    inside = [name for top, names in by_top.items() if split_of[top] is not None for name in names]
    labelled = not inside or any(name.count("/") >= depth for name in inside)
    for top, names in by_top.items():
        split = split_of[top]
        if split is None and top:
            layout.others += names
            report.add(SPLIT_BESIDE, plural(len(names), media.unit), Location(top), samples=len(names))
            continue
        for name in names:
            folders = _nfc(name).split("/")[:-1]
            if split is None or (labelled and len(folders) < depth):
                layout.others.append(name)
                reason = f"in {top!r}, but in no class folder" if top else "not in a folder"
                report.add(media.outside, reason, Location(name))
            else:
                layout.entries.append(LabeledFile(split, folders[depth - 1] if labelled else NO_CLASS, name))
    layout.entries.sort(key=lambda entry: (_ORDER[entry.split], entry.label))
    if not labelled:
        report.add(NO_CLASSES, f"{plural(len(layout.entries), media.unit)}, no class folders", samples=0)
        return layout
    for path in sorted(_folders(files, depth)):
        *above, label = _nfc(path).split("/")
        split = split_of_folder(above[0]) if above else NO_SPLIT
        if split is not None:
            layout.folders.setdefault((split, label), []).append(path)
    layout.splits = sorted({split for split, _ in layout.folders} | set(layout.splits), key=_ORDER.__getitem__)
    return layout


def _has_splits(by_top: Mapping[str, list[str]], report: DataReport, media: Media, requested: bool | None) -> bool:
    named = [top for top in by_top if split_of_folder(top)]
    if requested is not None or not named:
        return bool(requested and named)
    nested = any(name.count("/") > 1 for top in named for name in by_top[top])
    non_splits = [top for top in by_top if top and top not in named]
    if nested and not non_splits:
        return True
    if nested or not non_splits:
        words, unit = " and ".join(repr(top) for top in named[:3]), media.unit
        if non_splits:
            message = f"class folders in {words}, but {unit}s in {non_splits[0]!r}"
        else:
            message = f"{unit}s in {words}, but no class folders"
        report.add(SPLIT_AMBIGUOUS, message)
    return False  # {bus, car, train}: a train is a thing that people photograph


def _folders(files: Files, depth: int) -> set[str]:
    """Paths of the folders at one depth, as spelled; also empty ones if the files are on this machine."""
    names = files.names()
    paths = {"/".join(segments[:depth]) for name in names if len(segments := name.split("/")) > depth}
    nested = next((name for name in names if "/" in name), "")
    path = files.path(nested) if nested else None
    if path and path.replace(os.sep, "/").endswith(f"/{nested}"):
        root = Path(path[: -len(nested)])
        for folder in root.glob("*/" * depth):
            path = folder.relative_to(root).as_posix()
            hidden = any(segment.startswith(".") or segment in SYSTEM_FILES for segment in path.split("/"))
            if not hidden and not folder.is_symlink():
                paths.add(path)
    return paths


def _report_classes(
    layout: ClassFolders, report: DataReport, media: Media, selected: Sequence[str]
) -> set[tuple[str, str]]:
    """Report what is odd about the classes; returns split and class of those that are left out."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for (_, label), folders in layout.folders.items():
        spellings[label.casefold()].update(folder.rpartition("/")[2] for folder in folders)
    for names in spellings.values():
        if len(names) > 1:
            report.add(CLASS_COLLISION, " and ".join(map(ascii, sorted(names))), Location(min(names)), samples=0)
    if len(layout.classes) == 1 and layout.entries:
        report.add(ONE_CLASS, repr(layout.classes[0]), samples=len(layout.entries))
    counts = Counter((entry.split, entry.label) for entry in layout.entries)
    trained = {label for split, label in counts if split == "train"}
    classes, left_out = set(layout.classes), set()
    for split, label in sorted(layout.folders, key=lambda key: (_ORDER[key[0]], key[1])):
        count, location = counts[split, label], Location(layout.folders[split, label][0])
        if split not in selected:
            continue
        if label not in classes:
            report.add(CLASS_UNKNOWN, _count(count, media, label, classes, report), location, samples=count)
            left_out.add((split, label))  # it has no number
        elif not count:
            report.add(CLASS_EMPTY, f"no {media.unit}", location, samples=0)
        elif trained and label not in trained:
            message = _count(count, media, label, trained, report)
            if report.add(CLASS_UNSEEN, message, location, samples=count) == "drop":
                left_out.add((split, label))
    for split in selected:
        for label in sorted(trained & classes):
            if (split, label) not in layout.folders:
                report.add(CLASS_MISSING, f"no {media.unit} of {label!r}", Location(split), samples=0)
    return left_out


def _count(count: int, media: Media, label: str, classes: Iterable[str], report: DataReport) -> str:
    """`3 images; did you mean 'cat'?`, for the first few wrong names: comparing a hundred thousand takes long."""
    few = report.counts[CLASS_UNKNOWN.code] + report.counts[CLASS_UNSEEN.code] < _MOST_HINTS
    similar = nearest(label, sorted(classes)[:_MOST_COMPARED], 1) if few else []
    return plural(count, media.unit) + (f"; did you mean {similar[0]!r}?" if similar else "")


def task_name(task: Any) -> str | None:
    """The user's task by the name fewbit has for it; `None` for one of the user's own, which decides for itself."""
    from fewbit.data.tasks import find_task

    return find_task(str(task)).name if task and ".py:" not in str(task) else None


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def as_flag(name: str, value: Any) -> bool | None:
    """A yes or no of a format option; `None` if it is not given."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if value is None or isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise wrong_option(name, value, "true or false")
    return words[str(value).lower()]


def as_names(value: Any) -> tuple[str, ...] | None:
    """Class names: a list, or a text with commas."""
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise wrong_option("classes", value, "different names, in the order of their numbers: cat,dog")
    return tuple(_nfc(name) for name in names)


def as_split(value: Any, counts: Mapping[str, int]) -> str | None:
    """The split to read; `None` for all."""
    if value in (None, "all"):
        return None
    split = split_of_folder(str(value))
    if split not in counts:
        raise UsageError(
            f"there is no split {str(value)!r}", code="split-unknown", param="split",
            expected=", ".join(counts) or "no splits: the data has none", hint="leave out {split} to read everything",
        )  # fmt: skip
    return split


def wrong_option(name: str, value: Any, expected: str) -> UsageError:
    """The error of a format option with a wrong value."""
    return UsageError(
        f"{value!r} is not a value of the data option {name}", code="data-option-value", param="data_option",
        expected=expected, hint=f"{{data_option={name}=...}}",
    )  # fmt: skip
