# SPDX-License-Identifier: Apache-2.0
"""Every fault of every image file, into a report: names and first bytes when quick, else headers and all pixels.

A truncated JPEG passes every test short of decoding it, so a full check decodes everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fewbit.data.findings import DataReport
from fewbit.data.images import sniff
from fewbit.data.images.decode import TINY, Header, ImageFault, kind_of, read_header, refusal
from fewbit.data.images.pool import verify_in_order
from fewbit.data.sample import Place
from fewbit.data.walk import Entry


@dataclass
class Inspection:
    """What was found out about the files.

    Args:
        kinds: how many files of each kind.
        sizes: how many images of each (width, height); empty after a quick look.
        broken: the faults by the file's path.
        renames: the suffix a file should have, by the file's path.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    broken: dict[str, ImageFault] = field(default_factory=dict)
    renames: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What a person wants to know of it, as JSON values."""
        facts: dict[str, Any] = {"kinds": dict(self.kinds.most_common())}
        if self.sizes:
            widths, heights = (sorted(size[axis] for size in self.sizes.elements()) for axis in (0, 1))
            facts["width"], facts["height"] = (
                {"min": sides[0], "median": sides[len(sides) // 2], "max": sides[-1]} for sides in (widths, heights)
            )
        return facts


def inspect_images(entries: Sequence[Entry], report: DataReport, *, quick: bool, workers: int = 1) -> Inspection:
    """Look at every image file and report what is wrong with it.

    Args:
        entries: the files, named like images.
        report: where findings go; its progress is told.
        quick: look at sizes and first bytes only.
        workers: how many processes decode.
    """
    found = Inspection()
    for entry in report.progress.track(entries, total=len(entries), label="looking at image files"):
        try:
            header = None if quick else read_header(entry.path)
            kind = header.kind if header else read_kind(entry.path)
        except ImageFault as fault:
            _broken(entry, fault, found, report)
            continue
        found.kinds[kind] += 1
        _compare_name(entry, kind, found, report)
        if header:
            found.sizes[header.width, header.height] += 1
            _judge_header(entry, header, report)
    if not quick:
        well = [entry for entry in entries if entry.path not in found.broken]
        verdicts = zip(well, verify_in_order((entry.path for entry in well), workers))
        for entry, verdict in report.progress.track(verdicts, total=len(well), label="decoding images"):
            if verdict:
                _broken(entry, verdict, found, report)
    return found


def read_kind(path: str) -> str:
    """The kind of an image file by its first bytes; raises `ImageFault` for an empty, foreign or unread file."""
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(sniff.HEAD)
    except OSError as error:
        raise refusal(error) from error
    if not head:
        raise ImageFault("image-empty", "the file is empty (0 bytes)")
    return kind_of(head)


def _broken(entry: Entry, fault: ImageFault, found: Inspection, report: DataReport) -> None:
    found.broken[entry.path] = fault
    report.add(fault.code, fault.message, Place(entry.name))


def _compare_name(entry: Entry, kind: str, found: Inspection, report: DataReport) -> None:
    claimed = sniff.suffix(entry.name)
    if claimed not in sniff.NAMES.get(kind, ()):
        report.add("image-extension-mismatch", f"is a {kind.upper()}, not {claimed!r}", Place(entry.name))
        if kind in sniff.NAMES:
            found.renames[entry.path] = sniff.NAMES[kind][0]


def _judge_header(entry: Entry, header: Header, report: DataReport) -> None:
    place = Place(entry.name)
    if header.frames > 1:
        code = "image-multipage" if header.kind == "tiff" else "image-animated"
        report.add(code, f"holds {header.frames} frames; the first is used", place)
    if min(header.width, header.height) < TINY:
        report.add("image-tiny", f"is {header.width} x {header.height} pixels", place)
