# SPDX-License-Identifier: Apache-2.0
"""Samples that are one file each: what image and audio datasets share, a quick check of many files, and copies."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fewbit.data.images import decode
from fewbit.data.images.signatures import HEAD, SUFFIXES, SUFFIXES_BY_FORMAT, image_format
from fewbit.data.splits import SPLITS
from fewbit.data.types import DataReport, Files, IssueType, Location, SampleError, Severity

IMAGE_SKIPPED = IssueType(
    "image-skipped", Severity.WARNING, "image that is not read because of its suffix",
    f"convert it, or correct its suffix; these are read: {' '.join(sorted(SUFFIXES))}", "drop",
    aliases=("image-not-read",),
)  # fmt: skip
NO_IMAGES = IssueType(
    "no-images", Severity.ERROR, "no images", "give the folder that holds the images and their labels", "raise"
)

MOST_OPENED = 2_000
"""Opening 2,000 files takes about 50 ms; of more, as many are opened, evenly spread."""


class FileSource:
    """Files in the order train, val, test, from entries with a `name` and a `split`; a subclass decodes one."""

    def __init__(self, files: Files, entries: Iterable[Any], facts: dict[str, Any]):
        order: tuple[str | None, ...] = (None, *SPLITS)
        self.files, self.entries = files, sorted(entries, key=lambda entry: order.index(entry.split))
        self.facts = {key: value for key, value in facts.items() if value}
        if counts := Counter(entry.split for entry in self.entries if entry.split):
            self.facts.setdefault("splits", dict(counts))

    def __len__(self) -> int:
        return len(self.entries)

    def location(self, index: int) -> Location:
        """The file."""
        return Location(self.entries[index].name, index=index)

    def strata(self) -> Sequence[Any] | None:
        """The split of each file, if there are several."""
        splits = [entry.split for entry in self.entries]
        return splits if len(set(splits)) > 1 else None

    def leave_out(self, names: Collection[str]) -> None:
        """Remove entries by the names of their files."""
        self.entries = [entry for entry in self.entries if entry.name not in names]


def read_head(files: Files, name: str, limit: int) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    try:
        return files.read(name, limit)
    except SampleError:
        return b""


def example_image(path: Path, seed: int, **options: Any) -> None:
    """Write an image of noise, 32 x 24 pixels, for the example of a format."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (24, 32, 3), np.uint8)).save(path, **options)


def copy_file(files: Files, name: str, folder: Path, target: str | None = None) -> list[str]:
    """Copy one file, under another name if one is given or the name is taken; returns what changed."""
    path = folder / (target or name)
    stem, number = path.stem, 2
    while path.exists():
        path = path.with_stem(f"{stem}-{number}")
        number += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.open(name) as stream, path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
    except SampleError as error:
        return [f"left out {name}: {error.issue.message}"]
    return [] if path.name == PurePosixPath(name).name else [f"renamed {name} to {path.name}"]


def check_first_bytes(
    files: Files,
    names: Sequence[str],
    report: DataReport,
    judge: Callable[[bytes, Location], None] | None = None,
) -> set[str]:
    """Report files that are empty or do not begin like what their name says; returns those to leave out.

    Only files on this machine are opened: reading the beginning of a member may mean to unpack all before it.
    `judge` raises a `SampleError` for a beginning that is wrong, nothing included; by default that of no image.
    """
    judge = judge or _judge_image
    opened = set(names[:: len(names) // MOST_OPENED + 1]) if names and files.path(names[0]) else set()
    dropped = set()
    for name in names:
        location = Location(name)
        try:
            if files.size(name) == 0:
                judge(b"", location)
            elif name in opened:
                judge(files.read(name, HEAD), location)
        except SampleError as error:
            issue = error.issue
            if report.add(issue.type, issue.message, issue.location) == "drop":
                dropped.add(name)
    return dropped


def _judge_image(head: bytes, location: Location) -> None:
    if image_format(head) not in SUFFIXES_BY_FORMAT:
        decode.image_size(head, location)  # says what is wrong
