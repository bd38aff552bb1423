# SPDX-License-Identifier: Apache-2.0
"""Files among images that do not end like an image we read: images all the same, or something else."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.data.findings import Code, DataReport, Severity
from fewbit.data.images import sniff
from fewbit.data.sample import Place
from fewbit.data.walk import Entry

CODES = {
    "image-skipped": Code(
        Severity.WARN,
        "an image is passed over: its suffix is not one that is read",
        f"convert it to PNG or JPEG, or give it its suffix; read are {' '.join(sorted(sniff.EXTENSIONS))}",
        policy="drop",
    ),
    "file-ignored": Code(
        Severity.INFO, "a file that is no image is passed over", "nothing, if it belongs there", policy="drop"
    ),
}


def report_strangers(entries: Sequence[Entry], report: DataReport, *, quick: bool) -> None:
    """Report the files that are passed over, told apart by suffix and first bytes.

    Args:
        entries: files whose names do not end like an image we read.
        report: where findings go.
        quick: do not count the frames of animations.
    """
    for entry in entries:
        place = Place(entry.name)
        kind = _sniffed(entry.path)
        if kind is None and sniff.suffix(entry.name) not in sniff.UNREAD_EXTENSIONS:
            report.add("file-ignored", "is no image by name or content", place)
            continue
        what = f"is a {kind.upper()} image" if kind else "is named like an image"
        if kind == "gif" and not quick and (frames := _frames(entry.path)) > 1:
            what += f" of {frames} frames"
        report.add("image-skipped", f"{what}; files ending in {sniff.suffix(entry.name)!r} are not read", place)


def _sniffed(path: str) -> str | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return sniff.sniff(file.read(sniff.HEAD))
    except OSError:
        return None


def _frames(path: str) -> int:
    from fewbit.data.images.decode import ImageFault, read_header

    try:
        return read_header(path).frames
    except ImageFault:
        return 1
