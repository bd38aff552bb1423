# SPDX-License-Identifier: Apache-2.0
"""Which images a YOLO dataset has, which split each belongs to, where its label file is, what the classes are called.

A data.yaml decides; without one, the names of folders do, in any case:

    images/train  labels/train     "images/{split}"
    train/images  train/labels     "{split}/images"
    images        labels           "images", without splits
    a.jpg         a.txt            "same folder": label files next to their images

The label file of an image has its name with `.txt`, in the folder that comes from replacing the *last* folder called
`images` by `labels`; if no folder is called so, it is next to the image.
"""

from __future__ import annotations

import codecs
import itertools
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fewbit.data.detection import issues
from fewbit.data.detection.data_yaml import YAML_BYTES, DataYaml, read_data_yaml
from fewbit.data.detection.source import Entry
from fewbit.data.detection.yolo_tree import Tree, is_system, is_yaml, key_of
from fewbit.data.images.file_source import IMAGE_SKIPPED
from fewbit.data.images.format_options import split_option
from fewbit.data.images.masks import STEM_TWICE
from fewbit.data.images.signatures import SKIPPED_SUFFIXES, is_image_name, suffix_of
from fewbit.data.splits import SPLITS, split_of_folder
from fewbit.data.types import DataReport, Files, Issue, Location, SampleError
from fewbit.errors import plural

_YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_MOST_DESCRIPTIONS = 20
_NAMES_BYTES, _LIST_BYTES = 1 << 20, 1 << 28
_NOT_LABELS = frozenset({"classes", "readme", "license", "notes", "labels", *SPLITS})


@dataclass
class YoloLayout:
    """Where everything is; no image or label file was opened."""

    tree: Tree
    kind: str = "same folder"  # as in the table above, or "data.yaml"
    entries: list[Entry] = field(default_factory=list)  # in the order of the splits; an image may be in two of them
    names: tuple[str, ...] = ()
    class_count: int | None = None
    shared: dict[str, Issue] = field(default_factory=dict)  # images whose label file belongs to another image, too


def lay_out(files: Files, report: DataReport, split: Any = None) -> YoloLayout:
    """Find every image, of one split or of all, and its label file.

    The files are the dataset's folder or archive, or its data.yaml alone.
    """
    tree = Tree(files)
    layout = YoloLayout(tree)
    data = _choose_yaml(tree, report) or DataYaml("")
    for issue in data.issues:
        report.add(issue.type, issue.message, issue.location)
    base = tree.top
    if data.splits:
        layout.kind, base = "data.yaml", tree.resolve(data.path, posixpath.dirname(data.name)) or ""
        selected = split_option(split, data.splits)
        paths = list(_yaml_paths(data, tree, report, selected))
    else:
        layout.kind, folders = split_folders(tree)
        selected = split_option(split, [name for name, _ in folders if name])
        if layout.kind == "images/{split}":
            _report_unassigned(tree, [path for _, path in folders], report)
        paths = [(name, path) for name, path in folders if selected in (None, name)]
    lists = {path for _, path in paths if not tree.is_folder(path)}
    for name, group in itertools.groupby(paths, key=lambda pair: pair[0]):
        images: list[tuple[str, Location]] = []
        for _, path in group:
            images += _listed(tree, path, base, report) if path in lists else _images_below(tree, path, report)
        _add_entries(layout, name, images, report)
    _report_splits(layout, report)
    _name_classes(layout, data, report)
    _report_missing_labels(layout, report)
    if selected is None:
        _report_orphans(layout, lists, report)
    return layout


def _choose_yaml(tree: Tree, report: DataReport) -> DataYaml | None:
    described = yaml_files(tree)
    with_splits = [data for data in described if data.splits]
    if tree.alone or not with_splits:
        return described[0] if described and (tree.alone or _is_common(described[0].name)) else None
    if len(with_splits) == 1 or _is_common(with_splits[0].name):
        return with_splits[0]
    names = ", ".join(data.name for data in with_splits)
    report.add(issues.YAML_AMBIGUOUS, f"{names}: none was used, the folders decide", Location(tree.top or "."))
    return None


def _is_common(name: str) -> bool:
    return posixpath.basename(name) in _YAML_NAMES


def yaml_files(tree: Tree) -> list[DataYaml]:
    """The YAML files at the top of a dataset, the common names first; only the one that was given alone."""
    top = [name for name in tree.names if posixpath.dirname(name) == tree.top and is_yaml(name)]
    names = [tree.alone] if tree.alone else sorted(top, key=lambda name: (not _is_common(name), name))
    described = []
    for name in names[:_MOST_DESCRIPTIONS]:
        try:
            described.append(read_data_yaml(tree.files.read(name, YAML_BYTES + 1), name))
        except SampleError:
            continue
    return described


def _yaml_paths(
    data: DataYaml, tree: Tree, report: DataReport, selected: str | None
) -> Iterator[tuple[str | None, str]]:
    """Folders and list files of each split of a data.yaml that are there."""
    folder = posixpath.dirname(data.name)
    base = tree.resolve(data.path, folder)
    starts = [folder] if base is None else [base, folder]
    for split, text in ((split, text) for split, texts in data.splits.items() for text in texts):
        if selected not in (None, split):
            continue
        # Roboflow writes "../train/images" and means the folder next to the data.yaml.
        inner = re.sub(r"^(\.\./)+", "", text.replace("\\", "/"))
        tried = [tree.resolve(variant, start) for start in starts for variant in (text, inner)]
        path = next((target for name in tried if name is not None and (target := tree.find(name)) is not None), None)
        line, location = f"`{split}: {text[:200]}` leads to {tried[0] or text[:200]}", Location(data.name, field=split)
        if path is None:
            report.add(issues.SPLIT_MISSING, line, location)
        elif reason := tree.reason_not_to_read(path):
            report.add(issues.SPLIT_TOO_WIDE, reason, location)
        else:
            if path != tried[0]:
                report.add(issues.PATH_GUESSED, f"{line}, which is not there; {path or '.'} is read", location)
            if any(map(posixpath.isabs, (path, text, data.path))):
                report.add(issues.PATH_OUTSIDE, line, location)
            yield split, path


def split_folders(tree: Tree) -> tuple[str, list[tuple[str | None, str]]]:
    """The layout and its image folders, by the names of folders."""
    if tree.alone:
        return "same folder", []
    images = _images_in(tree, tree.top)
    if images is not None:
        below = _split_folders(tree, images)
        return ("images/{split}", below) if below else ("images", [(None, images)])
    splits = _split_folders(tree, tree.top)
    if nested := [(split, inner) for split, folder in splits if (inner := _images_in(tree, folder)) is not None]:
        return "{split}/images", nested
    return "same folder", splits or [(None, tree.top)]


def _images_in(tree: Tree, folder: str) -> str | None:
    path = tree.find(posixpath.join(folder, "images"))
    return path if path in tree.folders else None


def _split_folders(tree: Tree, above: str) -> list[tuple[str | None, str]]:
    inner = sorted(folder for folder in tree.folders if folder and posixpath.dirname(folder) == above)
    return [
        (name, folder) for name in SPLITS for folder in inner if split_of_folder(posixpath.basename(folder)) == name
    ]


def _report_unassigned(tree: Tree, used: list[str], report: DataReport) -> None:
    inside = tuple(f"{folder}/" for folder in used)
    images = filter(is_image_name, tree.below(_images_in(tree, tree.top) or "", report))
    if unassigned := [name for name in images if not name.startswith(inside)]:
        message = f"{plural(len(unassigned), 'image')} in no folder of a split, which are not read"
        report.add(issues.IMAGE_UNASSIGNED, message, Location(unassigned[0]), samples=len(unassigned))


def _images_below(tree: Tree, folder: str, report: DataReport) -> Iterator[tuple[str, Location]]:
    reported = {issue.location.file for issue in report.issues if issue.type is IMAGE_SKIPPED}
    for name in tree.below(folder, report):
        if is_image_name(name):
            yield name, Location(name)
        elif suffix_of(name) in SKIPPED_SUFFIXES and name not in reported:
            report.add(IMAGE_SKIPPED, f"a {suffix_of(name)} file", Location(name))


def _listed(tree: Tree, name: str, base: str, report: DataReport) -> Iterator[tuple[str, Location]]:
    """The images of a list file that are there, with the lines that name them."""
    folder, outside = posixpath.dirname(name), 0
    try:
        content = tree.files.read(name, _LIST_BYTES + 1).removeprefix(codecs.BOM_UTF8)
    except SampleError as error:
        report.add(issues.LIST_INVALID, error.issue.message, Location(name))
        return
    if is_image_name(name) or len(content) > _LIST_BYTES:
        report.add(issues.LIST_INVALID, f"an image, or more than {_LIST_BYTES:,} bytes", Location(name))
        return
    for number, raw in enumerate(content.splitlines(), start=1):
        line, location = raw.decode("utf-8", errors="replace").strip(), Location(name, line=number)
        if not line or line.startswith("#"):
            continue
        if "\ufffd" in line or not is_image_name(line):
            report.add(issues.LIST_INVALID, f"{line[:200]!r} is not UTF-8 or not named like an image", location)
            continue
        starts = (folder, base) if line.startswith(("./", ".\\")) else (base, folder)
        tried = [tree.resolve(line, start) for start in starts]
        image = next((file for path in tried if path and (file := tree.find(path))), None)
        if image is None or (posixpath.isabs(image) and is_system(posixpath.dirname(image))):
            report.add(issues.IMAGE_MISSING, f"{line[:200]!r} leads to {tried[0] or line[:200]}", location)
            continue
        outside += posixpath.isabs(image) or posixpath.isabs(line)
        yield image, location
    if outside:
        report.add(issues.PATH_OUTSIDE, f"{plural(outside, 'image')} by an absolute path or outside", Location(name))


def _add_entries(layout: YoloLayout, split: str | None, images: list[tuple[str, Location]], report: DataReport) -> None:
    """Add the images of one split, each once, with their label files."""
    owners: dict[str, str] = {}
    added: set[str] = set()
    for image, location in images:
        if image in added:
            report.add(issues.IMAGE_TWICE, f"{image} is in {split or 'the dataset'} already", location)
            continue
        added.add(image)
        expected = layout.tree.expected_label(image)
        if (owner := owners.setdefault(expected, image)) != image:
            layout.shared[image] = Issue(STEM_TWICE, f"shares {expected} with {owner}", Location(image))
            if report.add(STEM_TWICE, layout.shared[image].message, Location(image)) == "drop":
                continue
        layout.entries.append(Entry(image, split, layout.tree.label_of(image)))


def _report_splits(layout: YoloLayout, report: DataReport) -> None:
    images: dict[str | None, set[str]] = {}
    for entry in layout.entries:
        images.setdefault(entry.split, set()).add(entry.name)
    for (first, ones), (second, others) in itertools.combinations(images.items(), 2):
        if ones == others:
            report.add(
                issues.SPLITS_ALIKE, f"{first} and {second} are the same {plural(len(ones), 'image')}", Location(".")
            )
    label = next((entry.annotation for entry in layout.entries if posixpath.isabs(entry.annotation)), None)
    if label is not None and layout.kind == "same folder":
        report.add(issues.ROOT_ABOVE, f"the label files are in {posixpath.dirname(label)}", Location("."))


def _name_classes(layout: YoloLayout, data: DataYaml, report: DataReport) -> None:
    tree = layout.tree
    layout.names = data.names
    files = [name for name in tree.names if posixpath.basename(name) == "classes.txt" or name.endswith(".names")]
    for name in sorted(files, key=lambda name: name.count("/"))[:_MOST_DESCRIPTIONS]:
        names = _read_names(tree.files, name, report)
        if layout.names and names and names != layout.names:
            report.add(issues.NAMES_CONFLICT, f"{names[0]!r}, … here, {layout.names[0]!r}, … elsewhere", Location(name))
        layout.names = layout.names or names
    layout.class_count = len(layout.names) or data.class_count
    if not layout.names:
        report.add(issues.NAMES_UNKNOWN, "neither a data.yaml nor a classes.txt names them", Location("."))


def _read_names(files: Files, name: str, report: DataReport) -> tuple[str, ...]:
    try:
        text = files.read(name, _NAMES_BYTES).decode("utf-8-sig").rstrip()
    except (SampleError, UnicodeDecodeError) as error:
        report.add(issues.NAMES_INVALID, str(error), Location(name))
        return ()
    lines = text.replace("\r\n", "\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():  # it keeps its number, else all names after it would move
            report.add(issues.NAMES_INVALID, "an empty line between the names", Location(name, line=number))
    return tuple(line.strip() or f"class_{number}" for number, line in enumerate(lines))


def _report_missing_labels(layout: YoloLayout, report: DataReport) -> None:
    """Images without label files: each is background, most of a split is a mistake, all of them surely is one."""
    lost = [entry.name for entry in layout.entries if not entry.annotation]
    if lost and len(lost) == len(layout.entries):
        message = f"none of {plural(len(lost), 'image')} has a label file; {_looked_for(layout, lost)}; "
        report.add(issues.LABELS_NONE, message + _guess(layout), Location(lost[0]), samples=len(lost))
    else:
        for split in dict.fromkeys(entry.split for entry in layout.entries):
            images = [entry for entry in layout.entries if entry.split == split]
            lost_here = [entry.name for entry in images if not entry.annotation]
            if 2 * len(lost_here) > len(images):
                share = f"{len(lost_here)} of {plural(len(images), 'image')} ({100 * len(lost_here) // len(images)} %)"
                message = f"{share} of {split or 'the dataset'}; {_looked_for(layout, lost_here)}"
                report.add(issues.LABELS_MOSTLY_MISSING, message, Location(lost_here[0]), samples=len(lost_here))
    for image in dict.fromkeys(lost):
        report.add(issues.LABEL_MISSING, f"there is no {layout.tree.expected_label(image)}", Location(image))


def _looked_for(layout: YoloLayout, images: list[str]) -> str:
    tree = layout.tree
    return "; ".join(f"{image} needs {tree.absolute(tree.expected_label(image))}" for image in images[:3])


def _guess(layout: YoloLayout) -> str:
    """Where the labels may be instead."""
    names = layout.tree.names
    stems = {_stem(entry.name) for entry in layout.entries}
    texts = [name for name in names if name.lower().endswith(".txt")]
    if same := [posixpath.dirname(name) or "." for name in texts if _stem(name) in stems]:
        needed = posixpath.dirname(layout.tree.expected_label(layout.entries[0].name)) or "."
        return f"label files of the right names are in {same[0]}: move them to {needed}"
    for suffix, title in ((".xml", "Pascal VOC"), (".json", "COCO or LabelMe")):
        if any(name.lower().endswith(suffix) for name in names):
            return f"there are {suffix} files, perhaps annotations of {title}"
    return f"{texts[0]} is not named like an image: rename it" if texts else "there is no .txt file"


def _stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0]


def _report_orphans(layout: YoloLayout, lists: set[str], report: DataReport) -> None:
    """Texts in folders of label files that belong to no image, whether that is in a split or not."""
    tree = layout.tree
    expected = {key_of(tree.expected_label(name)) for name in tree.names if is_image_name(name)}
    folders = {posixpath.dirname(name) for name in expected}
    for name in tree.names:
        folder, file = posixpath.split(key_of(name))
        stem, suffix = posixpath.splitext(file)
        is_label = suffix == ".txt" and (folder in folders or "labels" in folder.split("/"))
        if is_label and key_of(name) not in expected and stem not in _NOT_LABELS and name not in lists:
            report.add(issues.LABEL_ORPHAN, "no image has this name", Location(name))
