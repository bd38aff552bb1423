# SPDX-License-Identifier: Apache-2.0
"""Check many files: decode each in a pool of threads, report in the order of the names, find equal files.

Pillow's decoders release the interpreter lock, so threads are as fast as processes and start at once.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fewbit.data.files import FILE_UNREADABLE
from fewbit.data.images import decode
from fewbit.data.images.decode import ImageHeader
from fewbit.data.images.signatures import SUFFIXES_BY_FORMAT, suffix_of
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, SampleError, Severity

DUPLICATE_ACROSS_SPLITS = IssueType(
    "duplicate-across-splits", Severity.WARNING, "same file in two splits, so results on the second are too good",
    "keep it in one split", fix="leaves the copy out of the later split", by_code=("drop",),
)  # fmt: skip
DUPLICATE_ACROSS_CLASSES = IssueType(
    "duplicate-across-classes", Severity.WARNING, "same file in two classes, so one label is wrong",
    "keep it in the class it belongs to",
)  # fmt: skip
DUPLICATE = IssueType("duplicate", Severity.NOTE, "same file twice in one class", "remove one of them")
DUPLICATE_ISSUES = (DUPLICATE_ACROSS_SPLITS, DUPLICATE_ACROSS_CLASSES, DUPLICATE)

_AHEAD = 32
_Input = TypeVar("_Input")
_Output = TypeVar("_Output")


@dataclass
class Inspection:
    """What was found, by name."""

    headers: dict[str, ImageHeader]
    sizes: dict[str, int]  # bytes of the images that were decoded
    damaged: dict[str, Issue]  # of the others
    dropped: set[str]  # to leave out of the source, by the user's choice of `on_error`


def inspect_images(files: Files, names: Sequence[str], report: DataReport) -> Inspection:
    """Decode every image and report what is wrong; also puts `image_sizes` and `image_formats` into the report."""
    results, damaged, dropped = try_each(lambda name: _inspect(files, name), names, report)
    headers = {name: header for name, (header, _) in results.items()}
    for name, header in headers.items():
        location = Location(name)
        if suffix_of(name) not in SUFFIXES_BY_FORMAT[header.format]:
            report.add(decode.IMAGE_SUFFIX, f"a {header.format} file", location)
        decode.report_frames(header, location, report)
        if min(header.width, header.height) < decode.TINY:
            report.add(decode.IMAGE_TINY, f"{header.width} x {header.height} pixels", location)
    if headers:
        formats = Counter(sorted(header.format for header in headers.values())).most_common()
        counts = [f"{format} {count:,}" for format, count in formats]
        report.facts["image_formats"] = ", ".join(counts) if len(formats) > 1 else formats[0][0]
        by_area = sorted({(h.width * h.height, f"{h.width:,} x {h.height:,}") for h in headers.values()})
        extremes = dict.fromkeys((by_area[0][1], by_area[-1][1]))
        report.facts["image_sizes"] = " to ".join(extremes)
    return Inspection(headers, {name: size for name, (_, size) in results.items()}, damaged, dropped)


def _inspect(files: Files, name: str) -> tuple[ImageHeader, int]:
    """What the file holds, and its bytes."""
    location = Location(name)
    with files.open(name) as stream:
        size = stream.seek(0, os.SEEK_END)
        with decode.open_image(stream, location) as (image, opened):
            header = decode.read_header(image, opened)
            if header.format == "JPEG":
                # An eighth of the size is decoded in half the time, and reads the data to its end all the same.
                image.draft("L", (64, 64))
                image.load()
        if header.format != "JPEG":
            decode.decode_image(stream, location)
    return header, size


def try_each(
    function: Callable[[str], _Output], names: Sequence[str], report: DataReport
) -> tuple[dict[str, _Output], dict[str, Issue], set[str]]:
    """Call a function for every name, in threads, and report each `SampleError` in the order of the names.

    Returns:
        Results by name, issues of the others, and names to leave out, by the user's choice of `on_error`.
    """

    def outcome(name: str) -> _Output | Issue:
        try:
            return function(name)
        except SampleError as error:
            return error.issue
        except OSError as error:
            return Issue(FILE_UNREADABLE, str(error), Location(name))

    results, damaged, dropped = {}, {}, set()
    for name, result in zip(names, in_threads(outcome, names)):
        if not isinstance(result, Issue):
            results[name] = result
            continue
        damaged[name] = result
        if report.add(result.type, result.message, result.location) == "drop":
            dropped.add(name)
    return results, damaged, dropped


def report_duplicates(
    files: Files, entries: Iterable[tuple[str, str, str]], sizes: Mapping[str, int], report: DataReport
) -> dict[str, str]:
    """Report every file that repeats an earlier one, from split, class and name of each in the order of reading.

    Returns:
        The copies in a later split than the original: the original of each.
    """
    members = {name: (split, label) for split, label, name in entries}
    leaks: dict[str, str] = {}
    for original, *copies in equal_files(files, list(members), sizes):
        for name in copies:
            kinds = [DUPLICATE] if members[name] == members[original] else []
            if members[name][1] != members[original][1]:
                kinds.append(DUPLICATE_ACROSS_CLASSES)
            if members[name][0] != members[original][0]:
                kinds.append(DUPLICATE_ACROSS_SPLITS)
                leaks[name] = original
            for kind in kinds:
                both = kind is DUPLICATE_ACROSS_CLASSES  # either label may be the wrong one
                report.add(kind, f"same bytes as {original}", Location(name), samples=2 if both else 1)
    return leaks


def leaks_to_drop(leaks: Mapping[str, str], report: DataReport) -> Mapping[str, str]:
    """Copies in a later split, if the user chose to leave them out."""
    return leaks if report.action(DUPLICATE_ACROSS_SPLITS) == "drop" else {}


def equal_files(files: Files, names: Sequence[str], sizes: Mapping[str, int]) -> list[list[str]]:
    """Groups of files with the same bytes, in the order of the names; only files of equal size are read."""
    counts = Counter(sizes[name] for name in names if name in sizes)
    candidates = [name for name in names if name in sizes and counts[sizes[name]] > 1]
    by_content: dict[bytes, list[str]] = defaultdict(list)
    for name, digest in zip(candidates, in_threads(lambda name: _digest(files, name), candidates)):
        by_content[digest].append(name)
    return [group for group in by_content.values() if len(group) > 1]


def _digest(files: Files, name: str) -> bytes:
    try:
        with files.open(name) as stream:
            return hashlib.file_digest(stream, "blake2b").digest()  # type: ignore[arg-type]
    except (SampleError, OSError):
        return os.fsencode(name)  # it has vanished: equal to nothing


def in_threads(function: Callable[[_Input], _Output], inputs: Iterable[_Input]) -> Iterator[_Output]:
    """Results in the order of the inputs; only a few are under way at a time, so memory stays bounded."""
    workers = min(8, (os.cpu_count() or 1) + 1)
    pending: deque[Future[_Output]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="fewbit-images") as pool:
        for item in inputs:
            pending.append(pool.submit(function, item))
            if len(pending) >= _AHEAD * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
