# SPDX-License-Identifier: Apache-2.0
"""The image files of a dataset, checked: headers always, pixels too unless it has to be quick."""

from __future__ import annotations

from dataclasses import dataclass, field

from fewbit.data.boxes.finder import Item
from fewbit.data.duplicates import duplicates
from fewbit.data.findings import Code, DataReport, Severity
from fewbit.data.images import decode, pool, sniff
from fewbit.data.images.decode import ImageFault
from fewbit.data.sample import Place

CODES = {
    **decode.CODES,
    "split-leak": Code(
        Severity.WARN, "the same image is in more than one split", "keep it in one split; a test on it proves nothing"
    ),
}


@dataclass
class Pictures:
    """What was seen of the images: sizes by (width, height), and the names of those that cannot be used."""

    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)


def check_pictures(items: list[Item], report: DataReport, *, quick: bool, workers: int = 1) -> Pictures:
    """Report every image that cannot be used or is suspect.

    Args:
        items: the images.
        report: where to.
        quick: look at headers only, and compare no contents.
        workers: how many processes decode.
    """
    seen = Pictures()
    unique = list({item.image.path: item for item in items}.values())
    for item in report.progress.track(unique, total=len(unique), label="image headers"):
        try:
            _check_header(item, report, seen)
        except ImageFault as fault:
            _report(item, fault, report, seen)
    if not quick:
        well = [item for item in unique if item.image.name not in seen.broken]
        outcomes = pool.verify_in_order((item.image.path for item in well), workers)
        pairs = report.progress.track(zip(well, outcomes), total=len(well), label="images")
        for item, outcome in pairs:
            if outcome is not None:
                _report(item, outcome, report, seen)
    _check_leaks(items, report, by_content=not quick)
    return seen


def _check_header(item: Item, report: DataReport, seen: Pictures) -> None:
    header = decode.read_header(item.image.path)
    place = Place(item.image.name)
    size = (header.width, header.height)
    seen.sizes[size] = seen.sizes.get(size, 0) + 1
    suffix = sniff.suffix(item.image.name)
    if suffix not in sniff.NAMES.get(header.kind, ()):
        report.add("image-extension-mismatch", f"is named {suffix} but is a {header.kind.upper()}", place)
    if header.frames > 1:
        code = "image-multipage" if header.kind == "tiff" else "image-animated"
        report.add(code, f"has {header.frames} frames", place)
    if min(size) < decode.TINY:
        report.add("image-tiny", f"is {size[0]} x {size[1]} pixels", place)


def _report(item: Item, fault: ImageFault, report: DataReport, seen: Pictures) -> None:
    report.add(fault.code, fault.message, Place(item.image.name))
    seen.broken.add(item.image.name)


def _check_leaks(items: list[Item], report: DataReport, *, by_content: bool) -> None:
    splits: dict[str, set[str]] = {}
    for item in items:
        splits.setdefault(item.image.path, set()).add(item.split)
    groups = [[item.image] for item in {item.image.path: item for item in items}.values()]
    if by_content and len({item.split for item in items}) > 1:
        alike = duplicates(group[0] for group in groups)
        grouped = {entry.path for group in alike for entry in group}
        groups = [*alike, *(group for group in groups if group[0].path not in grouped)]
    for group in groups:
        found = sorted(set().union(*(splits[entry.path] for entry in group)))
        if len(found) > 1:
            others = f"; the same content: {', '.join(entry.name for entry in group[1:4])}" if len(group) > 1 else ""
            report.add("split-leak", f"is in {' and '.join(found)}{others}", Place(group[0].name))
