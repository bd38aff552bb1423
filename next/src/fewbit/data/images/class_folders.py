# SPDX-License-Identifier: Apache-2.0
"""One folder per class, for images and audio: which folders are splits, which are classes, what belongs where.

    cat/1.jpg      train/cat/1.jpg      1.jpg      (classes; splits of classes; neither)

The number of a class is its place among the class names of all splits, sorted by code point: an empty or missing folder
in one split cannot shift the labels of another.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fewbit.data.images.format_options import classes_option, flag_option, split_option, task_option
from fewbit.data.images.signatures import suffix_of
from fewbit.data.splits import SPLITS, split_of_folder
from fewbit.data.types import DataReport, Files, FormatOption, IssueType, Location, Severity
from fewbit.errors import nearest, plural

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
CLASS_FOLDER_ISSUES = (
    FILE_IGNORED, CLASS_UNSEEN, CLASS_UNKNOWN, CLASS_MISSING, CLASS_EMPTY, CLASS_NUMERIC, CLASS_COLLISION, ONE_CLASS,
    NO_CLASSES, SPLIT_AMBIGUOUS, SPLIT_TWICE, SPLIT_BESIDE, TASK_MISMATCH,
)  # fmt: skip
CLASS_FOLDER_OPTIONS = (
    FormatOption("classes", "class names in the model's order", (str, list, tuple)),
    FormatOption("splits", "whether folders named like splits are splits", bool),
)
_MOST_HINTS, _MOST_COMPARED = 5, 5_000


@dataclass(frozen=True)
class Media:
    """What class folders hold: what one file is called, the task, suffixes of files that are read and that are not."""

    unit: str
    task: str
    suffixes: Collection[str]
    skipped_suffixes: Collection[str]
    none: IssueType
    skipped: IssueType
    outside: IssueType


class LabeledFile(NamedTuple):
    """One sample: its file, and where it belongs."""

    name: str
    split: str | None
    label: str | None


_Key = tuple[str | None, str]
"""Split and class."""


@dataclass
class ClassFolders:
    """What belongs where; without classes there are no class folders."""

    entries: list[LabeledFile] = field(default_factory=list)  # every sample, by split, class and name
    selected: list[LabeledFile] = field(default_factory=list)  # those to be read
    splits: list[str] = field(default_factory=list)  # in the order train, val, test
    folders: dict[_Key, list[str]] = field(default_factory=dict)  # as they are spelled; also empty ones
    classes: tuple[str, ...] = ()  # in the order of their numbers
    others: list[str] = field(default_factory=list)  # files that are no samples


def read_class_folders(files: Files, report: DataReport, media: Media, options: Mapping[str, Any]) -> ClassFolders:
    """Find splits and classes by names alone, and report what is odd."""
    layout = ClassFolders()
    by_top = _samples_by_top(files, report, media, layout)
    labelled = _assign(by_top, report, media, flag_option("splits", options.get("splits")), layout)
    if labelled:
        _find_folders(files, layout)
        layout.classes = classes_option(options.get("classes")) or tuple(sorted({label for _, label in layout.folders}))
    counts = Counter(entry.split for entry in layout.entries)
    split = split_option(options.get("split"), layout.splits)
    splits = [split] if split else layout.splits
    left_out = _report_classes(layout, splits or [None], report, media, options)
    layout.selected = [
        entry for entry in layout.entries
        if split in (None, entry.split) and (entry.split, entry.label) not in left_out
    ]  # fmt: skip
    if not any(split in (None, entry.split) for entry in layout.entries):
        report.add(media.none, plural(len(layout.others), "other file"), samples=0)
    if splits:
        report.facts["splits"] = {name: counts[name] for name in splits}
    if layout.classes:
        labels = Counter(entry.label for entry in layout.entries)
        report.facts |= {"class_counts": {label: labels[label] for label in layout.classes}, "task": media.task}
    task = task_option(options.get("task"))
    if layout.classes and task not in (None, media.task, "arrays"):
        report.add(TASK_MISMATCH, f"one class per {media.unit}, which is no data for {task}")
    elif task == media.task and not layout.classes:
        report.add(TASK_MISMATCH, f"{task} needs classes, and these {media.unit}s have none")
    return layout


def _samples_by_top(files: Files, report: DataReport, media: Media, layout: ClassFolders) -> dict[str, list[str]]:
    """Samples by their folder at the top, NFC; those at the root under an empty name."""
    by_top: dict[str, list[str]] = defaultdict(list)
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
    return by_top


def _assign(
    by_top: Mapping[str, list[str]], report: DataReport, media: Media, requested: bool | None, layout: ClassFolders
) -> bool:
    """Give every sample its split and class; returns whether there are classes."""
    depth, split_of = 1, dict[str, str | None]()
    if _has_splits(by_top, report, media, requested):
        depth, split_of = 2, {top: split_of_folder(top) for top in by_top}
        layout.splits = [split for split in SPLITS if split in split_of.values()]
        for split in layout.splits:
            tops = [top for top in by_top if split_of[top] == split]
            if len(tops) > 1:
                report.add(SPLIT_TWICE, f"{' and '.join(tops)} are both {split}", Location(tops[1]), samples=0)
    inside = [top for top in by_top if depth == 1 or split_of[top]]
    labelled = not inside or any(name.count("/") >= depth for top in inside for name in by_top[top])
    for top, names in by_top.items():
        if top and top not in inside:
            layout.others += names
            report.add(SPLIT_BESIDE, plural(len(names), media.unit), Location(top), samples=len(names))
            continue
        for name in names:
            folders = _nfc(name).split("/")[:-1]
            if top not in inside or (labelled and len(folders) < depth):
                layout.others.append(name)
                reason = f"in {top!r}, but in no class folder" if top else "not in a folder"
                report.add(media.outside, reason, Location(name))
            else:
                label = folders[depth - 1] if labelled else None
                layout.entries.append(LabeledFile(name, split_of.get(top), label))
    layout.entries.sort(key=lambda entry: (_order(entry.split), entry.label or ""))
    if not labelled:
        report.add(NO_CLASSES, f"{plural(len(layout.entries), media.unit)}, no class folders", samples=0)
    return labelled


def _has_splits(by_top: Mapping[str, list[str]], report: DataReport, media: Media, requested: bool | None) -> bool:
    named = [top for top in by_top if split_of_folder(top)]
    if requested is not None or not named:
        return bool(requested and named)
    nested = any(name.count("/") > 1 for top in named for name in by_top[top])
    non_splits = [top for top in by_top if top and top not in named]
    if nested and not non_splits:
        return True
    if nested or not non_splits:
        words = " and ".join(repr(top) for top in named[:3])
        if non_splits:
            message = f"class folders in {words}, but {media.unit}s in {non_splits[0]!r}"
        else:
            message = f"{media.unit}s in {words}, but no class folders"
        report.add(SPLIT_AMBIGUOUS, message)
    return False  # {bus, car, train}: a train is a thing that people photograph


def _find_folders(files: Files, layout: ClassFolders) -> None:
    """The class folders as spelled; also empty ones, where the files know them."""
    depth = 2 if layout.splits else 1
    paths = {"/".join(segments[:depth]) for name in files.names() if len(segments := name.split("/")) > depth}
    paths |= {folder for folder in files.folders() if folder.count("/") == depth - 1}
    for path in sorted(paths):
        *above, label = _nfc(path).split("/")
        split = split_of_folder(above[0]) if above else None
        if split or not above:
            layout.folders.setdefault((split, label), []).append(path)
    if layout.splits:
        layout.splits = [split for split in SPLITS if split in {*layout.splits, *(key[0] for key in layout.folders)}]


def _report_classes(
    layout: ClassFolders, splits: list[Any], report: DataReport, media: Media, options: Mapping[str, Any]
) -> set[_Key]:
    """Report what is odd about the classes; returns split and class of those that are left out."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for (_, label), folders in layout.folders.items():
        spellings[label.casefold()].update(folder.rpartition("/")[2] for folder in folders)
    for names in spellings.values():
        if len(names) > 1:
            report.add(CLASS_COLLISION, " and ".join(map(ascii, sorted(names))), Location(min(names)), samples=0)
    numbers = [name for name in layout.classes if name.isdecimal() and len(name) < 19]
    if options.get("classes") is None and len(numbers) == len(layout.classes):
        wrong = [position for position, name in enumerate(numbers) if position != int(name)]
        if wrong:
            report.add(CLASS_NUMERIC, f"{numbers[wrong[0]]!r} is class {wrong[0]}", samples=0)
    if len(layout.classes) == 1 and layout.entries:
        report.add(ONE_CLASS, repr(layout.classes[0]), samples=len(layout.entries))
    counts = Counter((entry.split, entry.label) for entry in layout.entries)
    trained = {label for split, label in counts if split == "train" and label}
    classes, left_out = set(layout.classes), set()
    for split, label in sorted(layout.folders, key=lambda key: (_order(key[0]), key[1])):
        count, location = counts[split, label], Location(layout.folders[split, label][0])
        if split not in splits:
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
    for split, label in ((split, label) for split in splits for label in sorted(trained & classes)):
        if (split, label) not in layout.folders:
            report.add(CLASS_MISSING, f"no {media.unit} of {label!r}", Location(split), samples=0)
    return left_out


def _count(count: int, media: Media, label: str, classes: Iterable[str], report: DataReport) -> str:
    """`3 images; did you mean 'cat'?`, for the first few wrong names: comparing a hundred thousand takes long."""
    few = report.counts[CLASS_UNKNOWN.code] + report.counts[CLASS_UNSEEN.code] < _MOST_HINTS
    similar = nearest(label, sorted(classes)[:_MOST_COMPARED], 1) if few else []
    return plural(count, media.unit) + (f"; did you mean {similar[0]!r}?" if similar else "")


def _order(split: str | None) -> int:
    return (None, *SPLITS).index(split)  # type: ignore[arg-type]


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)
