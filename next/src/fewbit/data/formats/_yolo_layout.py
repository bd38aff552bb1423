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
import os
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fewbit.data.files import Folder, _walk
from fewbit.data.formats._class_folders import as_split
from fewbit.data.formats._detection import IMAGE_MISSING, NAMES_CONFLICT, NO_IMAGES, Entry
from fewbit.data.formats._yolo_texts import NAMES_INVALID, YAML_BYTES, DataYaml, read_data_yaml
from fewbit.data.images.signatures import SKIPPED_SUFFIXES, is_image_name, suffix_of
from fewbit.data.splits import SPLITS, split_of_folder
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import plural

SPLIT_MISSING = IssueType(
    "split-missing", Severity.ERROR, "folder or list file of the data.yaml that is not there",
    "correct the path: it is relative to `path:`, and that to the data.yaml", "raise", ("drop",),
    "leaves the split out",
)  # fmt: skip
SPLIT_TOO_WIDE = IssueType(
    "split-too-wide", Severity.ERROR, "split that is a system folder, above the dataset or too large",
    "name the folder of the images", "raise", ("drop",), "leaves the split out",
)  # fmt: skip
SPLITS_ALIKE = IssueType(
    "splits-alike", Severity.NOTE, "two splits with the same images", "results on one say nothing about the other"
)
PATH_GUESSED = IssueType(
    "path-guessed", Severity.WARNING, "path of the data.yaml that leads nowhere, while a similar one exists",
    "correct the path", "keep", ("raise",), "writes a data.yaml with the right path",
)  # fmt: skip
PATH_OUTSIDE = IssueType(
    "path-outside", Severity.NOTE, "path that is absolute or leads out of the dataset's folder",
    "copy its files if the dataset is to be moved", fix="copies the files into the dataset",
)  # fmt: skip
ROOT_ABOVE = IssueType(
    "root-above", Severity.WARNING, "folder of images instead of the dataset's folder",
    "give the dataset's folder: its other splits and its class names belong to it",
    fix="copies the images and their labels",
)  # fmt: skip
YAML_AMBIGUOUS = IssueType(
    "yaml-ambiguous", Severity.WARNING, "several YAML files that describe the dataset",
    "give the right one instead of the folder", fix="writes one data.yaml",
)  # fmt: skip
IMAGE_UNASSIGNED = IssueType(
    "image-unassigned", Severity.WARNING, "images next to the folders of the splits", "move them into a split",
    fix="leaves them out",
)  # fmt: skip
IMAGE_TWICE = IssueType(
    "image-twice", Severity.WARNING, "image named twice in a split", "delete one of the lines", "drop", ("raise",),
    "leaves the second out",
)  # fmt: skip
IMAGE_SKIPPED = IssueType(
    "image-not-read", Severity.WARNING, "image of a kind that is not read", "convert it to PNG or JPEG", "drop",
    fix="leaves the image out",
)  # fmt: skip
LABEL_SHARED = IssueType(
    "label-shared", Severity.ERROR, "two images with one label file, since only their suffixes differ",
    "rename or remove one of them", "raise", ("drop", "keep"), "leaves the second image out",
)  # fmt: skip
LIST_INVALID = IssueType(
    "list-invalid", Severity.ERROR, "line of a list file that is not the path of an image",
    "write one image path per line, in UTF-8", "raise", ("drop",), "leaves the line out",
)  # fmt: skip
LABEL_MISSING = IssueType(
    "label-missing", Severity.NOTE, "image without a label file: background", "nothing, if nothing is on it"
)
LABELS_MOSTLY_MISSING = IssueType(
    "labels-mostly-missing", Severity.WARNING, "split in which most images have no label file",
    "check whether label files were lost",
)  # fmt: skip
LABELS_NONE = IssueType(
    "labels-none", Severity.ERROR, "dataset without label files", "put the label files where they are looked for",
    "raise", ("keep",),
)  # fmt: skip
LABEL_ORPHAN = IssueType(
    "label-orphan", Severity.WARNING, "label file without an image", "restore the image or delete the label file",
    fix="leaves the label file out",
)  # fmt: skip
NAMES_UNKNOWN = IssueType(
    "names-unknown", Severity.NOTE, "classes without names, so class numbers cannot be checked",
    "write a data.yaml with `names:`, or a classes.txt with one name per line",
)  # fmt: skip
LAYOUT_ISSUES = (
    SPLIT_MISSING, SPLIT_TOO_WIDE, SPLITS_ALIKE, PATH_GUESSED, PATH_OUTSIDE, ROOT_ABOVE, YAML_AMBIGUOUS,
    IMAGE_UNASSIGNED, IMAGE_TWICE, IMAGE_SKIPPED, LABEL_SHARED, LIST_INVALID, LABEL_MISSING, LABELS_MOSTLY_MISSING,
    LABELS_NONE, LABEL_ORPHAN, NAMES_UNKNOWN,
)  # fmt: skip

_YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_MOST_DESCRIPTIONS = 20
_NAMES_BYTES, _LIST_BYTES = 1 << 20, 1 << 28
_NOT_LABELS = frozenset({"classes", "readme", "license", "notes", "labels", *SPLITS})
_MOST_OUTSIDE = 1_000_000
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/boot/", "/run/")
_TOO_WIDE = frozenset(
    ("/", "/bin", "/home", "/lib", "/media", "/mnt", "/opt", "/root", "/sbin", "/srv", "/tmp", "/usr", "/Users", "/var")
)


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
    data = _choose_yaml(tree, report)
    for issue in data.issues if data is not None else ():
        report.add(issue.type, issue.message, issue.location)
    paths: list[tuple[str | None, str]]
    base = tree.top
    if data is not None and data.splits:
        layout.kind = "data.yaml"
        selected = as_split(split, dict.fromkeys(data.splits, 0))
        paths = list(_yaml_paths(data, tree, report, selected))
        base = tree.resolve(data.path, posixpath.dirname(data.name)) or ""
    else:
        layout.kind, paths = split_folders(tree)
        selected = as_split(split, {name: 0 for name, _ in paths if name})
        if layout.kind == "images/{split}":
            _report_unassigned(tree, [path for _, path in paths], report)
        paths = [(name, path) for name, path in paths if selected in (None, name)]
    lists = []
    for name, group in itertools.groupby(paths, key=lambda pair: pair[0]):
        images: list[tuple[str, Location]] = []
        for _, path in group:
            if tree.is_folder(path):
                images += _images_below(tree, path, report)
            else:
                lists.append(path)
                images += _listed(tree, path, base, report)
        _add_entries(layout, name, images, report)
    if not layout.entries:
        looked = ", ".join(path or "." for _, path in paths) or "no folder"
        report.add(NO_IMAGES, f"looked in {looked}", Location(files.root))
    _report_splits(layout, report)
    _name_classes(layout, data, report)
    _report_missing_labels(layout, report)
    if selected is None:
        for name in _orphans(layout, lists):
            report.add(LABEL_ORPHAN, "no image has this name", Location(name))
    return layout


class Tree:
    """The names of a dataset's files: relative ones in its folder or archive, absolute ones outside of it.

    Outside, only folders that are named are listed. `Folder.open` takes absolute names, too.
    """

    def __init__(self, files: Files):
        self.given = next(iter(files.names()), "")
        self.alone = len(files.names()) == 1 and _is_yaml(self.given)
        self.home: str | None = None  # on this machine; `None` for an archive
        if isinstance(files, Folder) and self.given:
            self.home = str(Path(os.path.abspath(files.path(self.given) or "")).parents[self.given.count("/")])
            if self.alone:  # a data.yaml stands for its folder
                files = Folder(Path(self.home), files.root)
        self.files, self.names = files, files.names()
        tops = {name.partition("/")[0] if "/" in name else "" for name in self.names}
        top = tops.pop() if len(tops) == 1 else ""
        # Archives often have a single folder at the top, which means nothing.
        self.top = "" if top.lower() in ("images", "labels") or split_of_folder(top) else top
        self.folders = {""}
        for folder in map(posixpath.dirname, self.names):
            while folder not in self.folders:
                self.folders.add(folder)
                folder = posixpath.dirname(folder)
        self._label_folders: dict[str, str] = {}  # of each folder of images that was asked for
        self.skipped: set[str] = set()  # images of other kinds, reported once
        self._known = {*self.folders, *self.names}
        self._by_key = {_key(name): name for name in self._known}

    def absolute(self, name: str) -> str:
        """Where a name is on this machine; the name itself inside of an archive."""
        return os.path.normpath(os.path.join(self.home or "", name))

    def resolve(self, path: str, start: str) -> str | None:
        """The name of what a path, as written, leads to; `None` if it leads out of an archive."""
        name = posixpath.normpath(posixpath.join(start, path.replace("\\", "/")))
        if posixpath.isabs(name) or name == ".." or name.startswith("../"):
            if self.home is None or "\0" in name:
                return None
            name = self.absolute(name)
            for home in (self.home, os.path.realpath(self.home)):
                if name == home or name.startswith(os.path.join(home, "")):
                    return name[len(home) :].strip("/")
        return "" if name == "." else name

    def find(self, name: str) -> str | None:
        """The file or folder of this name, in whichever case, and whichever way its accents are encoded."""
        if posixpath.isabs(name):
            forms = (name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")))
            return next((form for form in forms if os.path.exists(form)), None)
        return name if name in self._known else self._by_key.get(_key(name))

    def is_folder(self, name: str) -> bool:
        """Whether a name that was found is a folder."""
        return name in self.folders or (posixpath.isabs(name) and os.path.isdir(name))

    def below(self, folder: str, report: DataReport) -> Iterator[str]:
        """Every file below a folder."""
        if not posixpath.isabs(folder):
            yield from (name for name in self.names if name.startswith(f"{folder}/" if folder else ""))
            return
        walk = _walk(Path(folder), report)
        yield from (posixpath.join(folder, name) for name in itertools.islice(walk, _MOST_OUTSIDE))
        if next(walk, None) is not None:
            report.add(SPLIT_TOO_WIDE, f"only the first {_MOST_OUTSIDE:,} files were read", Location(folder))

    def refusal(self, name: str) -> str | None:
        """Why a folder or file outside of the dataset is not read, if it is not."""
        if not posixpath.isabs(name):
            return None
        if _is_system(name):
            return f"{name} belongs to the system"
        above = os.path.realpath(self.home or "").startswith(os.path.join(os.path.realpath(name), ""))
        return f"{name} holds the dataset itself" if above else None

    def expected_label(self, image: str) -> str:
        """Where the label file of an image is looked for."""
        folder, file = posixpath.split(image)
        if folder not in self._label_folders:
            labels = _renamed(folder)
            if labels is None and self.home is not None:
                above = _renamed(self.absolute(folder))
                labels = above if above and os.path.isdir(above) else None
            self._label_folders[folder] = folder if labels is None else labels
        return posixpath.join(self._label_folders[folder], f"{posixpath.splitext(file)[0]}.txt")

    def label_of(self, image: str) -> str | None:
        """The label file of an image."""
        return self.find(self.expected_label(image))


def _renamed(folder: str) -> str | None:
    """A folder with its last part called `images` renamed to `labels`; `None` if no part is called so."""
    segments = folder.split("/")
    last = max((position for position, segment in enumerate(segments) if segment.lower() == "images"), default=None)
    return None if last is None else "/".join([*segments[:last], "labels", *segments[last + 1 :]])


@lru_cache(1 << 12)
def _is_system(path: str) -> bool:
    real = os.path.realpath(path)
    return real in _TOO_WIDE or (f"{real}/".startswith(_SYSTEM) and not real.startswith("/dev/shm/"))


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).lower()


def _stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0]


def _is_yaml(name: str) -> bool:
    return name.lower().endswith((".yaml", ".yml"))


def _choose_yaml(tree: Tree, report: DataReport) -> DataYaml | None:
    described = yaml_files(tree)
    with_splits = [data for data in described if data.splits]
    if tree.alone or not with_splits:
        return described[0] if described and (tree.alone or _is_common(described[0].name)) else None
    if len(with_splits) == 1 or _is_common(with_splits[0].name):
        return with_splits[0]
    names = ", ".join(data.name for data in with_splits)
    report.add(YAML_AMBIGUOUS, f"{names}: none was used, the folders decide", Location(tree.top or "."))
    return None


def _is_common(name: str) -> bool:
    return posixpath.basename(name) in _YAML_NAMES


def yaml_files(tree: Tree) -> list[DataYaml]:
    """The YAML files at the top of a dataset, the common names first; only the one that was given alone."""
    top = [name for name in tree.names if posixpath.dirname(name) == tree.top and _is_yaml(name)]
    names = [tree.given] if tree.alone else sorted(top, key=lambda name: (not _is_common(name), name))
    described = []
    for name in names[:_MOST_DESCRIPTIONS]:
        try:
            described.append(read_data_yaml(tree.files.read(name, YAML_BYTES + 1), name))
        except SampleError:
            continue
    return described


def _yaml_paths(data: DataYaml, tree: Tree, report: DataReport, selected: str | None) -> Iterator[tuple[str, str]]:
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
            report.add(SPLIT_MISSING, line, location)
        elif reason := tree.refusal(path):
            report.add(SPLIT_TOO_WIDE, reason, location)
        else:
            if path != tried[0]:
                report.add(PATH_GUESSED, f"{line}, which is not there; {path or '.'} is read", location)
            if any(map(posixpath.isabs, (path, text, data.path))):
                report.add(PATH_OUTSIDE, line, location)
            yield split, path


def split_folders(tree: Tree) -> tuple[str, list[tuple[str | None, str]]]:
    """The layout and its image folders, by the names of folders."""
    if tree.alone:
        return "same folder", []
    images = _images_in(tree, tree.top)
    top_splits = _split_folders(tree, tree.top)
    if images is not None and (below := _split_folders(tree, images)):
        return "images/{split}", below
    if images is not None:
        return "images", [(None, images)]
    if nested := [(split, inner) for split, folder in top_splits if (inner := _images_in(tree, folder)) is not None]:
        return "{split}/images", nested
    return "same folder", top_splits or [(None, tree.top)]


def _images_in(tree: Tree, folder: str) -> str | None:
    path = tree.find(posixpath.join(folder, "images"))
    return path if path in tree.folders else None


def _split_folders(tree: Tree, above: str) -> list[tuple[str | None, str]]:
    inner = sorted(folder for folder in tree.folders if folder and posixpath.dirname(folder) == above)
    return [
        (name, folder) for name in SPLITS for folder in inner if split_of_folder(posixpath.basename(folder)) == name
    ]


def _report_unassigned(tree: Tree, used: Sequence[str], report: DataReport) -> None:
    inside = tuple(f"{folder}/" for folder in used)
    images = filter(is_image_name, tree.below(_images_in(tree, tree.top) or "", report))
    if unassigned := [name for name in images if not name.startswith(inside)]:
        message = f"{plural(len(unassigned), 'image')} in no folder of a split, which are not read"
        report.add(IMAGE_UNASSIGNED, message, Location(unassigned[0]), samples=len(unassigned))


def _images_below(tree: Tree, folder: str, report: DataReport) -> Iterator[tuple[str, Location]]:
    for name in tree.below(folder, report):
        if is_image_name(name):
            yield name, Location(name)
        elif suffix_of(name) in SKIPPED_SUFFIXES and name not in tree.skipped:
            tree.skipped.add(name)
            report.add(IMAGE_SKIPPED, f"a {suffix_of(name)} file", Location(name))


def _listed(tree: Tree, name: str, base: str, report: DataReport) -> Iterator[tuple[str, Location]]:
    """The images of a list file that are there, with the lines that name them."""
    folder, outside = posixpath.dirname(name), 0
    try:
        content = tree.files.read(name, _LIST_BYTES + 1).removeprefix(codecs.BOM_UTF8)
    except SampleError as error:
        report.add(LIST_INVALID, error.issue.message, Location(name))
        return
    if is_image_name(name) or len(content) > _LIST_BYTES:
        report.add(LIST_INVALID, f"an image, or more than {_LIST_BYTES:,} bytes", Location(name))
        return
    for number, raw in enumerate(content.splitlines(), start=1):
        line, location = raw.decode("utf-8", errors="replace").strip(), Location(name, line=number)
        if not line or line.startswith("#"):
            continue
        if "\ufffd" in line or not is_image_name(line):
            report.add(LIST_INVALID, f"{line[:200]!r} is not UTF-8 or not named like an image", location)
            continue
        starts = (folder, base) if line.startswith(("./", ".\\")) else (base, folder)
        tried = [tree.resolve(line, start) for start in starts]
        image = next((file for path in tried if path and (file := tree.find(path))), None)
        if image is None or (posixpath.isabs(image) and _is_system(posixpath.dirname(image))):
            report.add(IMAGE_MISSING, f"{line[:200]!r} leads to {tried[0] or line[:200]}", location)
            continue
        outside += posixpath.isabs(image) or posixpath.isabs(line)
        yield image, location
    if outside:
        report.add(PATH_OUTSIDE, f"{plural(outside, 'image')} by an absolute path or outside", Location(name))


def _add_entries(layout: YoloLayout, split: str | None, images: list[tuple[str, Location]], report: DataReport) -> None:
    """Add the images of one split, each once, with their label files."""
    owners: dict[str, str] = {}
    added: set[str] = set()
    for image, location in images:
        if image in added:
            report.add(IMAGE_TWICE, f"{image} is in {split or 'the dataset'} already", location)
            continue
        added.add(image)
        expected = layout.tree.expected_label(image)
        if (owner := owners.setdefault(expected, image)) != image:
            layout.shared[image] = Issue(LABEL_SHARED, f"shares {expected} with {owner}", Location(image))
            if report.add(LABEL_SHARED, layout.shared[image].message, Location(image)) == "drop":
                continue
        layout.entries.append(Entry(image, split, layout.tree.label_of(image) or ""))


def _orphans(layout: YoloLayout, lists: list[str]) -> Iterator[str]:
    """Texts in folders of label files that belong to no image, whether that is in a split or not."""
    tree = layout.tree
    expected = {_key(tree.expected_label(name)) for name in tree.names if is_image_name(name)}
    folders = {posixpath.dirname(name) for name in expected}
    for name in tree.names:
        folder, file = posixpath.split(_key(name))
        stem, suffix = posixpath.splitext(file)
        is_label = suffix == ".txt" and (folder in folders or "labels" in folder.split("/"))
        if is_label and _key(name) not in expected and stem not in _NOT_LABELS and name not in lists:
            yield name


def _report_splits(layout: YoloLayout, report: DataReport) -> None:
    images: dict[str | None, set[str]] = {}
    for entry in layout.entries:
        images.setdefault(entry.split, set()).add(entry.image)
    for (first, ones), (second, others) in itertools.combinations(images.items(), 2):
        if ones == others:
            report.add(SPLITS_ALIKE, f"{first} and {second} are the same {plural(len(ones), 'image')}", Location("."))
    label = next((entry.annotation for entry in layout.entries if posixpath.isabs(entry.annotation)), None)
    if label is not None and layout.kind == "same folder":
        report.add(ROOT_ABOVE, f"the label files are in {posixpath.dirname(label)}", Location("."))


def _name_classes(layout: YoloLayout, data: DataYaml | None, report: DataReport) -> None:
    tree = layout.tree
    if data is not None:
        layout.names, layout.class_count = data.names, data.class_count
    files = [name for name in tree.names if posixpath.basename(name) == "classes.txt" or name.endswith(".names")]
    for name in sorted(files, key=lambda name: name.count("/"))[:_MOST_DESCRIPTIONS]:
        names = _read_names(tree.files, name, report)
        if layout.names and names and names != layout.names:
            report.add(NAMES_CONFLICT, f"{names[0]!r}, … here, {layout.names[0]!r}, … elsewhere", Location(name))
        layout.names = layout.names or names
    layout.class_count = len(layout.names) or layout.class_count
    if not layout.names:
        report.add(NAMES_UNKNOWN, "neither a data.yaml nor a classes.txt names them", Location("."))


def _read_names(files: Files, name: str, report: DataReport) -> tuple[str, ...]:
    try:
        text = files.read(name, _NAMES_BYTES).decode("utf-8-sig").rstrip()
    except (SampleError, UnicodeDecodeError) as error:
        report.add(NAMES_INVALID, str(error), Location(name))
        return ()
    lines = text.replace("\r\n", "\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():  # it keeps its number, else all names after it would move
            report.add(NAMES_INVALID, "an empty line between the names", Location(name, line=number))
    return tuple(line.strip() or f"class_{number}" for number, line in enumerate(lines))


def _report_missing_labels(layout: YoloLayout, report: DataReport) -> None:
    """Images without label files: each is background, most of a split is a mistake, all of them surely is one."""
    lost = [entry.image for entry in layout.entries if not entry.annotation]
    if lost and len(lost) == len(layout.entries):
        message = f"none of {plural(len(lost), 'image')} has a label file; {_looked_for(layout, lost)}; "
        report.add(LABELS_NONE, message + _guess(layout), Location(lost[0]), samples=len(lost))
    else:
        for split in dict.fromkeys(entry.split for entry in layout.entries):
            images = [entry for entry in layout.entries if entry.split == split]
            lost_here = [entry.image for entry in images if not entry.annotation]
            if 2 * len(lost_here) > len(images):
                share = f"{len(lost_here)} of {plural(len(images), 'image')} ({100 * len(lost_here) // len(images)} %)"
                message = f"{share} of {split or 'the dataset'}; {_looked_for(layout, lost_here)}"
                report.add(LABELS_MOSTLY_MISSING, message, Location(lost_here[0]), samples=len(lost_here))
    for image in dict.fromkeys(lost):
        report.add(LABEL_MISSING, f"there is no {layout.tree.expected_label(image)}", Location(image))


def _looked_for(layout: YoloLayout, images: list[str]) -> str:
    tree = layout.tree
    return "; ".join(f"{image} needs {tree.absolute(tree.expected_label(image))}" for image in images[:3])


def _guess(layout: YoloLayout) -> str:
    """Where the labels may be instead."""
    names = layout.tree.names
    stems = {_stem(entry.image) for entry in layout.entries}
    texts = [name for name in names if name.lower().endswith(".txt")]
    if same := [name for name in texts if _stem(name) in stems]:
        needed = posixpath.dirname(layout.tree.expected_label(layout.entries[0].image))
        return (
            f"label files of the right names are in {posixpath.dirname(same[0]) or '.'}: move them to {needed or '.'}"
        )
    for suffix, title in ((".xml", "Pascal VOC"), (".json", "COCO or LabelMe")):
        if any(name.lower().endswith(suffix) for name in names):
            return f"there are {suffix} files, perhaps annotations of {title}"
    return f"{texts[0]} is not named like an image: rename it" if texts else "there is no .txt file"
