# SPDX-License-Identifier: Apache-2.0
"""WebDataset: tar shards whose members of one stem are one sample, read at random through an index of members.

train-000000.tar: 0001.jpg 0001.cls 0001.json 0002.jpg …       one tar, a folder of shards, or a pattern
"""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from fewbit.data.archives import natural_key
from fewbit.data.audio import AUDIO_ISSUES, decode_audio
from fewbit.data.formats._npy import FILE_ISSUES, ArrayError, ArrayFile
from fewbit.data.images.decode import IMAGE_ISSUES, decode_image
from fewbit.data.members import ARCHIVE_BROKEN, ARCHIVE_END, ARCHIVE_LINK, ARCHIVE_UNSAFE, ArchiveError, tar_members
from fewbit.data.splits import SPLITS, Split, split_of_file, split_of_folder
from fewbit.data.streams import Handle
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    Issue,
    IssueType,
    Location,
    Sample,
    SampleError,
    Severity,
)
from fewbit.errors import UsageError, plural

SAMPLE_INCOMPLETE = IssueType(
    "sample-incomplete", Severity.WARNING, "sample without a file that nearly all others have",
    "write the shard again, or {on_error=drop}", "keep", ("drop", "raise"),
)  # fmt: skip
SUFFIX_UNKNOWN = IssueType(
    "suffix-unknown", Severity.NOTE, "suffix that is not decoded", "decode it in {transform=FILE.py:FN}"
)
KEY_DUPLICATE = IssueType(
    "key-duplicate", Severity.ERROR, "two files of one sample with the same suffix", "give every sample its own stem",
    "raise", ("drop", "keep"),
)  # fmt: skip
BAD_LABEL = IssueType(
    "bad-label", Severity.ERROR, "class file that is not an integer", "write the number of the class as text",
    "raise", ("drop",),
)  # fmt: skip
BAD_JSON = IssueType("bad-json", Severity.ERROR, "damaged JSON", "write the file again", "raise", ("drop",))
BAD_ENCODING = IssueType(
    "bad-encoding", Severity.ERROR, "text that is not UTF-8", "write it as UTF-8", "raise", ("drop",)
)
FILE_IGNORED = IssueType("file-ignored", Severity.NOTE, "file that is not a shard", "move it elsewhere")
NO_SAMPLES = IssueType("no-samples", Severity.ERROR, "no sample in the shards", "check how they were written", "raise")
ISSUES = (
    ARCHIVE_BROKEN, ARCHIVE_UNSAFE, ARCHIVE_LINK, ARCHIVE_END, SAMPLE_INCOMPLETE, SUFFIX_UNKNOWN, KEY_DUPLICATE,
    BAD_LABEL, BAD_JSON, BAD_ENCODING, FILE_IGNORED, NO_SAMPLES, *FILE_ISSUES, *IMAGE_ISSUES,
    *AUDIO_ISSUES,
)  # fmt: skip

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "gif", "tif", "tiff")
_AUDIO = ("wav", "flac", "mp3", "ogg")
_ARRAYS = ("npy", "npz")
_TEXTS = ("txt", "text", "caption", "transcript")
_LABELS = ("cls", "cls2", "index", "inx", "id")
_DECODED = frozenset((*_IMAGES, *_AUDIO, *_ARRAYS, *_TEXTS, *_LABELS, "json"))
_METADATA_SUFFIXES = (".md", ".json", ".txt", ".yaml", ".yml")
_LONGEST_TEXT = 64 << 20
_CACHED_FROM = 16 << 20
_LEAST_SHARE = 0.9
"""A file that this share of the samples has is expected of all."""


def detect(files: Files) -> Detection | None:
    """Tar shards whose first members form samples, or one tar of such members."""
    names = files.names()
    shards = [name for name in names if name.lower().endswith(".tar")]
    if shards:
        if any(not name.lower().endswith((".tar", *_METADATA_SUFFIXES)) for name in names):
            return None
        inside = [member.name for member in itertools.islice(_quiet_members(files, shards[0]), 60)]
        confidence = _looks_like_samples(inside) or (0.6 if _all_decodable(inside) else 0.0)
        return Detection(confidence, plural(len(shards), "tar shard")) if confidence else None
    if files.root.lower().endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
        confidence = _looks_like_samples(names[:60])
        return Detection(confidence, "a tar of samples by stem") if confidence else None
    return None


def _quiet_members(files: Files, shard: str) -> Iterator[Any]:
    try:
        handle = Handle(files, shard)
        yield from tar_members(handle.read_at, handle.size, lambda kind, message, name: None)
    except (ArchiveError, SampleError):
        return


def _looks_like_samples(names: Sequence[str]) -> float:
    stems: dict[str, set[str]] = defaultdict(set)
    for name in names:
        key, suffix = split_name(name)
        stems[key].add(suffix)
    multi_file = sum(len(suffixes) > 1 for suffixes in stems.values())
    decodable = sum(suffix.rpartition(".")[2] in _DECODED for suffixes in stems.values() for suffix in suffixes)
    total = sum(len(suffixes) for suffixes in stems.values())
    if not total or decodable < total / 2 or multi_file < len(stems) / 2:
        return 0.0
    labelled = any(suffix in ("cls", "json") for suffixes in stems.values() for suffix in suffixes)
    return 0.95 if labelled else 0.8


def _all_decodable(names: Sequence[str]) -> bool:
    return bool(names) and all(name.lower().rpartition(".")[2] in _DECODED for name in names)


def split_name(name: str) -> tuple[str, str]:
    """Key and suffix of a member: the suffix begins at the first dot of the last part.

    >>> split_name("a.b/0001.seg.PNG")
    ('a.b/0001', 'seg.png')
    """
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> WebDatasetSource:
    """Index the members of all shards; with `full` depth decode every sample.

    Args:
        files: shards, or the members of a single one.
        report: takes issues.
        depth: how much is read.
        options: `split`.
    """
    names = files.names()
    shards = sorted((name for name in names if name.lower().endswith(".tar")), key=natural_key)
    for name in names if shards else ():
        if not name.lower().endswith((".tar", *_METADATA_SUFFIXES)):
            report.add(FILE_IGNORED, "not read", Location(name))
    index = _ShardIndex(report)
    if shards:
        for shard, split in _in_split_order(files, shards, options.get("split")):
            index.add_shard(shard, split, _members(files, shard, report))
    else:
        index.add_shard("", None, [(name, number, files.size(name)) for number, name in enumerate(names)])
    index.report_suffixes()
    source = WebDatasetSource(files, index, () if shards else names)
    if not len(source):
        report.add(NO_SAMPLES, f"{plural(len(shards), 'shard')}")
    if depth == "full":
        source.keep([number for number in range(len(source)) if _decodes(source, number, report)])
    report.facts |= source.facts
    return source


def _decodes(source: WebDatasetSource, number: int, report: DataReport) -> bool:
    try:
        source[number]
    except SampleError as error:
        return report.add(error.issue.type, error.issue.message, error.issue.location) != "drop"
    return True


def _in_split_order(files: Files, shards: Sequence[str], split_option: str | None) -> list[tuple[str, Split | None]]:
    splits = {shard: split_of_folder(shard.partition("/")[0]) or split_of_file(shard) for shard in shards}
    if split_option is not None:
        split = split_of_folder(split_option)
        if split is None or split not in splits.values():
            available = [name for name in SPLITS if name in splits.values()]
            raise UsageError(
                f"there is no split {split_option!r}", code="split-unknown", param="split", where=files.root,
                expected=", ".join(available) or "no splits", hint="leave {split} out",
            )  # fmt: skip
        shards = [shard for shard in shards if splits[shard] == split]
    order = {split: number for number, split in enumerate((*SPLITS, None))}
    return sorted(((shard, splits[shard]) for shard in shards), key=lambda pair: order[pair[1]])


def _members(files: Files, shard: str, report: DataReport) -> list[tuple[str, int, int]]:
    """Name, offset and size of each member; kept in the cache, since it takes a read per member."""
    problems = 0

    def problem(kind: IssueType, message: str, name: str) -> None:
        nonlocal problems
        problems += 1
        report.add(kind, message, Location(f"{shard}!/{name}" if name else shard))

    def index() -> list[tuple[str, int, int]]:
        handle = Handle(files, shard)
        return [
            (member.name, member.offset, member.size) for member in tar_members(handle.read_at, handle.size, problem)
        ]

    def write(target: BinaryIO) -> None:
        members = index()
        if problems:
            raise _Problems(members)
        target.write(json.dumps(members).encode())

    try:
        if files.size(shard) < _CACHED_FROM:
            return index()
        from fewbit.data.cache import cached_file

        path = cached_file(f"tar index 1\0{files.root}\0{shard}\0{files.fingerprint(shard)}", write)
        return [(name, offset, size) for name, offset, size in json.loads(path.read_bytes())]
    except _Problems as error:
        return error.members
    except ArchiveError as error:
        report.add(error.type, error.message, Location(shard))
    except SampleError as error:
        report.add(error.issue.type, error.issue.message, error.issue.location)
    return []


class _Problems(Exception):
    """A shard with problems, which are to be reported each time: its index is not cached."""

    def __init__(self, members: list[tuple[str, int, int]]):
        super().__init__()
        self.members = members


class _ShardIndex:
    """Samples as flat columns: 1M samples of three files take about 100 MB."""

    def __init__(self, report: DataReport):
        self.report = report
        self.keys: list[str] = []
        self.shards: list[tuple[str, Split | None]] = []
        self.shard_of: list[int] = []
        self.starts, self.suffixes, self.offsets, self.sizes = [0], list[int](), list[int](), list[int]()
        self.names: dict[str, int] = {}

    def add_shard(self, shard: str, split: Split | None, members: Sequence[tuple[str, int, int]]) -> None:
        """Group the members of one shard into samples."""
        groups: dict[str, dict[str, tuple[int, int]]] = {}
        doubled = set()
        for name, offset, size in members:
            key, suffix = split_name(name)
            if name.rpartition("/")[2].startswith((".", "_")) or not suffix:  # __index__ and system files
                continue
            group = groups.setdefault(key, {})
            if suffix in group:
                action = self.report.add(KEY_DUPLICATE, f"two files .{suffix}", Location(f"{shard}!/{name}"))
                doubled |= {key} if action == "drop" else set()
                continue
            group[suffix] = offset, size
        expected = self._expected(groups)
        self.shards.append((shard, split))
        for key, group in groups.items():
            missing = expected - group.keys()
            location = Location(f"{shard}!/{key}" if shard else key)
            dropped = (
                missing and self.report.add(SAMPLE_INCOMPLETE, f"no .{', .'.join(sorted(missing))}", location) == "drop"
            )
            if not dropped and key not in doubled:
                self._add(key, group)

    def _add(self, key: str, group: Mapping[str, tuple[int, int]]) -> None:
        self.keys.append(key)
        self.shard_of.append(len(self.shards) - 1)
        for suffix, (offset, size) in group.items():
            self.suffixes.append(self.names.setdefault(suffix, len(self.names)))
            self.offsets.append(offset)
            self.sizes.append(size)
        self.starts.append(len(self.offsets))

    def _expected(self, groups: Mapping[str, Mapping[str, Any]]) -> set[str]:
        counts = Counter(suffix for group in groups.values() for suffix in group)
        return {suffix for suffix, count in counts.items() if count >= _LEAST_SHARE * len(groups)}

    def report_suffixes(self) -> None:
        """Note suffixes that are not decoded."""
        counts = Counter(self.suffixes)
        for suffix, number in self.names.items():
            if suffix.rpartition(".")[2] not in _DECODED:
                self.report.add(SUFFIX_UNKNOWN, f".{suffix} of {plural(counts[number], 'sample')}, left out")


class WebDatasetSource:
    """Samples of tar shards.

    Args:
        files: the shards, or the members of one.
        index: where the files of each sample are.
        members: names, if `files` is a shard itself.
    """

    def __init__(self, files: Files, index: _ShardIndex, members: Sequence[str]):
        self._files, self._members = files, members
        self._keys, self._shards, self._suffix_names = index.keys, index.shards, list(index.names)
        self._shard_of = np.array(index.shard_of, np.int32)
        self._starts, self._offsets = np.array(index.starts, np.int64), np.array(index.offsets, np.int64)
        self._sizes, self._suffixes = np.array(index.sizes, np.int64), np.array(index.suffixes, np.int32)
        self._order = np.arange(len(self._keys))
        self._handles: dict[int, Handle] = {}
        columns = {_field(suffix) for suffix in self._suffix_names if suffix.rpartition(".")[2] in _DECODED}
        self.facts: dict[str, Any] = {"columns": sorted(columns), "shards": len(self._shards)}
        splits = Counter(self._shards[shard][1] for shard in index.shard_of)
        if any(splits):
            self.facts["splits"] = {split: splits[split] for split in SPLITS if splits[split]}

    def keep(self, positions: Sequence[int]) -> None:
        """Leave the other samples out."""
        self._order = self._order[np.asarray(positions, np.int64)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Sample:
        number = int(self._order[index])
        sample: Sample = {"key": self._keys[number]}
        for entry in range(int(self._starts[number]), int(self._starts[number + 1])):
            suffix = self._suffix_names[self._suffixes[entry]]
            extension = suffix.rpartition(".")[2]
            if extension in _DECODED:
                location = Location(f"{self.location(index).file}.{suffix}", index=index)
                value = _decode(self._read(number, entry, extension, location), extension, location)
                if extension == "json" and suffix == "json" and isinstance(value, dict):
                    sample = {**value, **sample}  # files win over fields of the same name
                elif isinstance(value, dict) and suffix == "npz":
                    sample |= value
                elif extension in _AUDIO:
                    sample[_field(suffix)], sample["sampling_rate"] = value
                else:
                    sample[_field(suffix)] = value
        return sample

    def _read(self, number: int, entry: int, extension: str, location: Location) -> bytes:
        size = int(self._sizes[entry])
        if extension in (*_TEXTS, *_LABELS, "json") and size > _LONGEST_TEXT:
            raise SampleError(Issue(BAD_ENCODING, f"a text of {size:,} bytes", location))
        if self._members:
            with self._files.open(self._members[int(self._offsets[entry])]) as stream:
                return stream.read(size)
        shard = int(self._shard_of[number])
        if shard not in self._handles:
            if len(self._handles) >= 16:  # shards are many, open files few
                self._handles.pop(next(iter(self._handles)))
            self._handles[shard] = Handle(self._files, self._shards[shard][0])
        content = self._handles[shard].read_at(int(self._offsets[entry]), size)
        if len(content) < size:
            raise SampleError(Issue(ARCHIVE_BROKEN, "cut off", location))
        return content

    def location(self, index: int) -> Location:
        """The shard and the key of a sample."""
        number = int(self._order[index])
        shard = self._shards[int(self._shard_of[number])][0]
        return Location(f"{shard}!/{self._keys[number]}" if shard else self._keys[number], index=index)

    def strata(self) -> Sequence[Any] | None:
        """The split, or the shard, of each sample."""
        if len(self._shards) < 2:
            return None
        by_split = "splits" in self.facts and len(self.facts["splits"]) > 1
        labels = [split if by_split else shard for shard, split in self._shards]
        return [labels[shard] for shard in self._shard_of[self._order]]


def _field(suffix: str) -> str:
    """The key of a sample's value: `image`, `label`, `text`; the first part of a double suffix, as in `seg.png`."""
    first, _, extension = suffix.rpartition(".")
    if first:
        return first
    for field, extensions in (("image", _IMAGES), ("label", ("cls",)), ("text", ("txt",)), ("array", ("npy",))):
        if extension in extensions:
            return field
    return "audio" if extension in _AUDIO else extension


def _decode(content: bytes, extension: str, location: Location) -> Any:
    if extension in _IMAGES:
        return decode_image(content, location)
    if extension in _ARRAYS:
        return _arrays(content, extension, location)
    if extension in _AUDIO:
        return decode_audio(content, location)
    try:
        if extension == "json":
            return orjson.loads(content)
        text = content.decode("utf-8")
    except orjson.JSONDecodeError as error:
        raise SampleError(Issue(BAD_JSON, str(error), location)) from error
    except UnicodeDecodeError as error:
        raise SampleError(Issue(BAD_ENCODING, f"byte {error.start}", location)) from error
    if extension not in _LABELS:
        return text
    if re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text):
        return int(text)
    if extension == "cls":
        raise SampleError(Issue(BAD_LABEL, repr(text[:40]), location))
    return text


def _arrays(content: bytes, extension: str, location: Location) -> Any:
    file = ArrayFile(
        lambda offset, count: content[offset : offset + count], len(content), "array" if extension == "npy" else None
    )
    try:
        for problem in file.problems:
            raise problem
        arrays = {name: file.array(name) for name in file.infos}
    except ArrayError as error:
        raise SampleError(Issue(error.type, error.message, location)) from error
    return arrays["array"] if extension == "npy" else arrays


def example(folder: Path) -> Path:
    """Two shards of four samples: image, class, fields."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        with tarfile.open(folder / f"train-{shard:06}.tar", "w") as archive:
            for number in range(4):
                key = f"{shard * 4 + number:04}"
                image = io.BytesIO()
                Image.new("RGB", (12, 10), (number * 40, shard * 90, 30)).save(image, "PNG")
                members = {"png": image.getvalue(), "cls": str(number % 2).encode(), "json": b'{"width": 12}'}
                for suffix, content in members.items():
                    info = tarfile.TarInfo(f"{key}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return folder


FORMAT = Format(
    name="webdataset",
    title="WebDataset",
    layout="tar shards (name-000000.tar) whose members of one stem are one sample: 0001.jpg, 0001.cls, 0001.json",
    issues=ISSUES,
    detect=detect,
    scan=scan,
    example=example,
)
