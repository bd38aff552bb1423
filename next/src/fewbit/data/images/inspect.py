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
    "keep it in one split", fix="leaves the copy out of the later split",
)  # fmt: skip
DUPLICATE_ACROSS_CLASSES = IssueType(
    "duplicate-across-classes", Severity.WARNING, "same file in two classes, so one label is wrong",
    "keep it in the class it belongs to",
)  # fmt: skip
DUPLICATE = IssueType("duplicate", Severity.NOTE, "same file twice in one class", "remove one of them")
DUPLICATE_ISSUES = (DUPLICATE_ACROSS_SPLITS, DUPLICATE_ACROSS_CLASSES, DUPLICATE)

_AHEAD = 32
_CHUNK = 1 << 20
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
        counts = ", ".join(f"{format} {count:,}" for format, count in formats)
        report.facts["image_formats"] = counts if len(formats) > 1 else formats[0][0]
        sizes = {(header.width * header.height, header.width, header.height) for header in headers.values()}
        smallest, largest = (f"{width:,} x {height:,}" for _, width, height in (min(sizes), max(sizes)))
        report.facts["image_sizes"] = smallest if smallest == largest else f"{smallest} to {largest}"
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
                return header, size
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
        if isinstance(result, Issue):
            damaged[name] = result
            if report.add(result.type, result.message, result.location) == "drop":
                dropped.add(name)
        else:
            results[name] = result
    return results, damaged, dropped


def report_duplicates(
    files: Files, entries: Iterable[tuple[str, str, str]], sizes: Mapping[str, int], report: DataReport
) -> dict[str, str]:
    """Report every file that repeats an earlier one, from split, class and name of each in the order of reading.

    Returns:
        The copies in a later split than the original: the original of each.
    """
    memberships = {name: (split, label) for split, label, name in entries}
    leaks: dict[str, str] = {}
    for original, *copies in equal_files(files, list(memberships), sizes):
        for name in copies:
            message, location = f"same bytes as {original}", Location(name)
            same_split, same_class = (a == b for a, b in zip(memberships[name], memberships[original]))
            if not same_class:
                report.add(DUPLICATE_ACROSS_CLASSES, message, location)
            if not same_split:
                report.add(DUPLICATE_ACROSS_SPLITS, message, location)
                leaks[name] = original
            elif same_class:
                report.add(DUPLICATE, message, location)
    return leaks


def equal_files(files: Files, names: Sequence[str], sizes: Mapping[str, int]) -> list[list[str]]:
    """Groups of files with the same bytes, in the order of the names; only files of equal size are read."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for name in names:
        if name in sizes:
            by_size[sizes[name]].append(name)
    candidates = [name for group in by_size.values() if len(group) > 1 for name in group]
    by_content: dict[bytes, list[str]] = defaultdict(list)
    for name, digest in zip(candidates, in_threads(lambda name: _digest(files, name), candidates)):
        by_content[digest].append(name)
    return [group for group in by_content.values() if len(group) > 1]


def _digest(files: Files, name: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with files.open(name) as stream:
            while block := stream.read(_CHUNK):
                digest.update(block)
    except (SampleError, OSError):
        digest.update(os.fsencode(name))  # it has vanished: equal to nothing
    return digest.digest()


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
