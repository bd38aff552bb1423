# SPDX-License-Identifier: Apache-2.0
"""Lists of image paths with labels, as Caffe has them: `images/a.jpg 3` per line, next to the images.

The split is in the name of the list (`train.txt`, `val.txt`). Labels are class numbers from 0, or words. Paths are
relative to the list or to the dataset's folder.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fewbit.data.detection.issues import IMAGE_MISSING
from fewbit.data.files import FILE_UNREADABLE, Folder
from fewbit.data.images import inspect
from fewbit.data.images.class_folders import CLASS_UNKNOWN, LabeledFile
from fewbit.data.images.decode import IMAGE_ISSUES, decode_image
from fewbit.data.images.file_source import NO_IMAGES, check_first_bytes, example_image, read_head
from fewbit.data.images.format_options import classes_option, split_option
from fewbit.data.images.labeled_files import LabeledFiles
from fewbit.data.images.signatures import is_image_name
from fewbit.data.splits import SPLITS, split_of_file
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    IssueType,
    Location,
    Sample,
    Severity,
)
from fewbit.errors import plural

LINE_INVALID = IssueType(
    "list-invalid", Severity.ERROR, "line that is not the path of an image and its label",
    "write one path and one label per line: images/a.jpg 3", "raise", ("drop",),
)  # fmt: skip
ISSUES = (
    NO_IMAGES,
    LINE_INVALID,
    IMAGE_MISSING,
    CLASS_UNKNOWN,
    *IMAGE_ISSUES,
    *inspect.DUPLICATE_ISSUES,
    FILE_UNREADABLE,
)
_SUFFIXES = (".txt", ".lst")
_MOST_LISTS, _HEAD, _LIST_BYTES = 20, 4096, 1 << 28
_LARGEST_CLASS = 100_000
_FEW_WORDS = 0.1  # of all labels: mistakes


def detect(files: Files) -> Detection | None:
    """A text whose lines begin with the path of an image, of which one is there, and end with a label."""
    files, names = _lists(files)
    return Detection(0.95, f"{names[0]} lists images with labels") if names else None


def _lists(files: Files) -> tuple[Files, list[str]]:
    """Names of the lists, and the files they are about: a list that was given alone stands for its folder."""
    names = [name for name in files.names() if name.lower().endswith(_SUFFIXES)]
    if names and len(files.names()) == 1 and (path := files.path(names[0])):
        files = Folder(Path(path).parent, files.root)
    known = set(files.names()) if names else set()
    return files, [name for name in names[:_MOST_LISTS] if _begins_like_a_list(files, name, known)]


def _begins_like_a_list(files: Files, name: str, known: Collection[str]) -> bool:
    head = read_head(files, name, _HEAD)
    lines = head.decode("utf-8-sig", errors="replace").splitlines()
    pairs = [_path_and_label(line) for line in (lines[:-1] if len(head) == _HEAD else lines) if line.strip()]
    valid = [pair for pair in pairs if pair]
    return 2 * len(valid) > len(pairs) and any(_find(path, name, known) for path, _ in valid)


def _path_and_label(line: str) -> tuple[str, str] | None:
    """Both parts of a line; the path may contain spaces."""
    words = line.strip().rsplit(maxsplit=1)
    return (words[0], words[1]) if len(words) == 2 and is_image_name(words[0]) else None


def _find(path: str, file: str, known: Collection[str]) -> str | None:
    """The image a path means: relative to its list, or to the dataset."""
    name = posixpath.normpath(path.replace("\\", "/")).lstrip("/")
    candidates = (posixpath.normpath(posixpath.join(posixpath.dirname(file), name)), name)
    return next((candidate for candidate in candidates if candidate in known), None)


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> LabeledFiles:
    """Read the lists; with `full` depth also decode every image and look for duplicates."""
    files, lists = _lists(files)
    splits = {name: split_of_file(name) for name in lists}
    split = split_option(options.get("split"), [name for name in SPLITS if name in splits.values()])
    rows = [row for name in lists if split in (None, splits[name]) for row in _rows(files, name, report)]
    classes = classes_option(options.get("classes")) or _classes([entry.label or "" for entry, _ in rows])
    entries = list(_labelled(rows, classes, report))
    source = LabeledFiles(files, entries, classes, "image-classification", _decode)
    report.facts |= source.facts
    names = list(dict.fromkeys(entry.name for entry in entries))
    if not names:
        report.add(NO_IMAGES, plural(len(lists), "list"), samples=0)
    if depth == "index":
        source.leave_out(check_first_bytes(files, names, report))
        return source
    inspection = inspect.inspect_images(files, names, report)
    once = {entry.name: (entry.split or "", entry.label or "", entry.name) for entry in entries}
    leaks = inspect.report_duplicates(files, list(once.values()), inspection.sizes, report)
    source.leave_out({*inspection.dropped, *inspect.leaks_to_drop(leaks, report)})
    return source


def _rows(files: Files, name: str, report: DataReport) -> Iterator[tuple[LabeledFile, Location]]:
    """The images of one list that are there, with the lines that name them."""
    known = set(files.names())
    lines = files.read(name, _LIST_BYTES).decode("utf-8-sig", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        pair, location = _path_and_label(line), Location(name, line=number)
        if not pair and line.strip():
            report.add(LINE_INVALID, repr(line[:60]), location)
        elif pair and (image := _find(pair[0], name, known)) is None:
            report.add(IMAGE_MISSING, pair[0][:200], location)
        elif pair and image:
            yield LabeledFile(image, split_of_file(name), pair[1]), location


def _classes(labels: Collection[str]) -> tuple[str, ...]:
    """Class numbers up to the largest, or words in order; a few words among numbers are no classes."""
    numbers = [label for label in labels if _is_number(label)]
    if numbers and len(labels) - len(numbers) <= _FEW_WORDS * len(labels):
        return tuple(map(str, range(max(map(int, numbers)) + 1)))
    return tuple(sorted(set(labels)))


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdigit() and len(label) < 10 and int(label) < _LARGEST_CLASS


def _labelled(
    rows: list[tuple[LabeledFile, Location]], classes: tuple[str, ...], report: DataReport
) -> Iterator[LabeledFile]:
    """Entries by the names of their classes; those that are listed twice are reported."""
    numbers, first = {str(number): name for number, name in enumerate(classes)}, dict[str, LabeledFile]()
    for entry, location in rows:
        label = entry.label if entry.label in classes else numbers.get(str(entry.label))
        if label is None:
            report.add(CLASS_UNKNOWN, f"label {str(entry.label)[:60]!r}", location)
            continue
        entry = entry._replace(label=label)
        original = first.setdefault(entry.name, entry)
        if entry is not original:
            same = f"{entry.name} is listed before"
            if entry.label != original.label:
                report.add(inspect.DUPLICATE_ACROSS_CLASSES, f"{same}, as {original.label}", location, samples=2)
            if entry.split != original.split:
                message = f"{same}, in {original.split}"
                if report.add(inspect.DUPLICATE_ACROSS_SPLITS, message, location) == "drop":
                    continue
            if entry == original:
                report.add(inspect.DUPLICATE, same, location)
        yield entry


def _decode(stream: BinaryIO, location: Location) -> Sample:
    return {"image": decode_image(stream, location)}


def example(folder: Path) -> Path:
    """Six images and two lists."""
    for split, count in (("train", 4), ("val", 2)):
        lines = []
        for number in range(count):
            name = f"images/{split}{number}.jpg"
            example_image(folder / name, 10 * count + number)
            lines.append(f"{name} {number % 2}\n")
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder


FORMAT = Format(
    "path_list", "list of image paths with labels", "train.txt with lines such as `images/a.jpg 3`", ISSUES, detect,
    scan, example, (FormatOption("classes", "class names in the order of their numbers", (str, list, tuple)),),
    unit="image",
    suffixes=_SUFFIXES,
)  # fmt: skip
