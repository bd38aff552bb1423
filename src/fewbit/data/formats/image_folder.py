# SPDX-License-Identifier: Apache-2.0
"""Images in one folder a class, with or without folders for train, val and test, or images alone.

    root/cat/1.jpg   root/dog/a/2.png     or     root/train/cat/1.jpg   root/val/cat/2.jpg     or     root/1.jpg

A sample is `{"image": uint8 (H, W, 3) RGB, upright, "label": int}`; `label` is the index of the class in
`facts["classes"]`: all folder names of all splits, sorted by code point. Without `split=` the splits are read in
the order train, val, test. Images that lie in the folder itself, with none in a class folder, have no label: they
can calibrate a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewbit.data.findings import Code, DataReport, Policy, Severity
from fewbit.data.formats._base import Match
from fewbit.data.images import class_names, decode, layout, leakage, recognition, strangers
from fewbit.data.images.layout import NO_CLASS, Layout, lay_out
from fewbit.data.sample import Place
from fewbit.data.signature import Signature
from fewbit.data.source import Source
from fewbit.data.split_names import UNSPLIT, split_word
from fewbit.data.walk import CODES as WALK_CODES
from fewbit.data.walk import report_into
from fewbit.errors import UsageError, nearest

TASK = "image-classification"
CODES = {
    **WALK_CODES,
    **decode.CODES,
    **layout.CODES,
    **class_names.CODES,
    **leakage.CODES,
    **strangers.CODES,
    "task-mismatch": Code(
        Severity.ERROR,
        "the folder gives every image a class, and the task asks for something else",
        "leave out task=, or name the format that fits the task: format='yolo' for detection and segmentation",
        policy="raise",
    ),
}


def detect(source: object) -> Match | None:
    """Folders that hold images, unless they are those of another layout."""
    if not isinstance(source, Path) or not source.is_dir():
        return None
    found = recognition.recognise(source)
    return None if found is None else Match(*found)


def read(
    source: Path,
    *,
    split: str | None = None,
    task: str | None = None,
    policy: Policy,
    splits: bool | None = None,
    classes: Sequence[str] | None = None,
    background: Sequence[int] = decode.WHITE,
    workers: int = 1,
) -> Source:
    """Open an image folder.

    Args:
        source: the folder.
        split: `train`, `val` or `test`; all of them when left out.
        task: nothing, or image classification.
        policy: what to do about faults.
        splits: whether folders named train, val, test are splits (`True`) or classes (`False`).
        classes: the class names in the order of a model's outputs, instead of the sorted folder names.
        background: the colour (red, green, blue) laid under transparent pixels.
        workers: how many processes decode when the samples are read in order.
    """
    from fewbit.data.images.folder_source import FolderSource

    colour = _colour(background)
    found = lay_out(source, splits=splits)
    names = _classes(found, classes)
    chosen = _chosen(found, split)
    _judge_task(found, task)
    class_names.examine_classes(found, names)
    dropped = _meet_faults(found, chosen, policy)
    index = {name: number for number, name in enumerate(names)}
    members = [
        (entry, index.get(name))
        for part, name, entry in found.all_images()
        if part in chosen and (name in index or name == NO_CLASS) and (part, name) not in dropped
    ]
    opened = FolderSource(members, policy=policy, background=colour, workers=workers)
    opened.facts.update(_facts(found, names))
    _note(opened, found)
    return opened


def check(
    source: Path,
    report: DataReport,
    *,
    task: str | None = None,
    signature: Signature | None = None,
    quick: bool = False,
    splits: bool | None = None,
    classes: Sequence[str] | None = None,
    background: Sequence[int] = decode.WHITE,
    workers: int = 1,
) -> None:
    """Report every fault; a full check decodes every image. The arguments are those of `read`."""
    from fewbit.data.images.inspection import inspect_images

    _colour(background)
    found = lay_out(source, splits=splits, problem=report_into(report))
    names = _classes(found, classes)
    _judge_task(found, task)
    class_names.examine_classes(found, names)
    for fault in found.faults:
        report.add(fault.code, fault.message, fault.place)
    images = found.all_images()
    counts = Counter(name for _, name, _ in images)
    report.understood.update(
        **_facts(found, names),
        images=len(images),
        images_per_class={name: counts[name] for name in names},
    )
    seen = inspect_images([entry for _, _, entry in images], report, quick=quick, workers=workers)
    report.understood.update(seen.facts())
    strangers.report_strangers(found.others, report, quick=quick)
    if not quick:
        leakage.report_copies(images, report)


def fix(
    source: Path,
    out: Path,
    *,
    task: str | None = None,
    signature: Signature | None = None,
    splits: bool | None = None,
    classes: Sequence[str] | None = None,
    background: Sequence[int] = decode.WHITE,
    workers: int = 1,
) -> list[str]:
    """Write a copy without unreadable images, wrong suffixes, leaks and classes that train lacks."""
    from fewbit.data.images.folder_copy import copy_repaired
    from fewbit.data.images.inspection import inspect_images

    changes: list[str] = []
    found = lay_out(
        source, splits=splits, problem=lambda code, path, message: changes.append(f"left out {path}: {message}")
    )
    policy = Policy(CODES)
    for fault in found.faults:
        policy.meet(fault.code, fault.message, fault.place)
    aside = DataReport(str(source), codes=CODES)
    seen = inspect_images([entry for _, _, entry in found.all_images()], aside, quick=False, workers=workers)
    return changes + copy_repaired(found, _classes(found, classes), seen, out)


def _colour(background: Sequence[int]) -> tuple[int, int, int]:
    values = list(background)
    if len(values) != 3 or not all(isinstance(value, int) and 0 <= value <= 255 for value in values):
        raise UsageError(f"background={background!r} is no colour", expected="three whole numbers from 0 to 255")
    red, green, blue = values
    return red, green, blue


def _classes(found: Layout, given: Sequence[str] | None) -> list[str]:
    if given is None:
        return found.classes
    names = list(given)
    if isinstance(given, str) or len(set(names)) != len(names):
        raise UsageError(f"classes={given!r}", expected="a list of class names, each once")
    return names


def _chosen(found: Layout, split: str | None) -> list[str]:
    if split is None or split == UNSPLIT:
        return list(found.images)
    word = split_word(split)
    if word is None or word not in found.images:
        there = "the folder has no splits" if not found.split else nearest(split, found.images)
        raise UsageError(f"there is no split {split!r}", where=found.root, expected=there)
    return [word]


def _facts(found: Layout, names: list[str]) -> dict[str, Any]:
    task = {"task": TASK} if found.labelled else {}
    return {**task, "classes": names, "splits": found.counts()}


def _judge_task(found: Layout, task: str | None) -> None:
    # Images without answers serve any task as far as they serve one.
    if found.labelled and task is not None and task.replace("_", "-") not in (TASK, "classification"):
        found.fault("task-mismatch", f"the task {task!r} is not {TASK!r}, which folders of classes serve")


def _meet_faults(found: Layout, chosen: Sequence[str], policy: Policy) -> set[tuple[str | None, str]]:
    """Raise for what the policy does not let pass; the splits and classes that are dropped."""
    dropped = set()
    for fault in found.faults:
        if fault.split not in (None, *chosen):
            continue  # nothing of that split is read
        if policy.meet(fault.code, fault.message, fault.place) == "drop" and fault.name is not None:
            dropped.add((fault.split, fault.name))
    return dropped


def _note(opened: Source, found: Layout) -> None:
    """One line a code, not one a file: a folder can hold thousands that are passed over."""
    counts = Counter(fault.code for fault in found.faults)
    for fault in found.faults:
        if counts.get(fault.code):
            opened.record.note(fault.code, fault.message, where=fault.place, count=counts.pop(fault.code))
    if found.others:
        count = len(found.others)
        message = f"{count:,} files are not named like images and were passed over"
        opened.record.note("file-ignored", message, where=Place(found.others[0].name), count=count)
