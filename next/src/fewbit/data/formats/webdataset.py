# SPDX-License-Identifier: Apache-2.0
"""WebDataset: tar shards whose members of one stem are one sample, read at random through an index of members.

train-000000.tar: 0001.jpg 0001.cls 0001.json 0002.jpg …       one tar, a folder of shards, or a pattern
"""

from __future__ import annotations

import io
import itertools
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from fewbit.data.archives import SUFFIXES as ARCHIVE_SUFFIXES
from fewbit.data.arrays.files import BARE, FILE_ISSUES, ArrayError, ArrayFile
from fewbit.data.audio import AUDIO_ISSUES, decode_audio
from fewbit.data.files import SPECIAL_FILE, natural_key
from fewbit.data.images.decode import IMAGE_ISSUES, decode_image
from fewbit.data.members import ARCHIVE_BROKEN, ArchiveError, tar_members
from fewbit.data.members import ISSUES as ARCHIVE_ISSUES
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
    *ARCHIVE_ISSUES, SAMPLE_INCOMPLETE, SUFFIX_UNKNOWN, KEY_DUPLICATE, BAD_LABEL, BAD_JSON, BAD_ENCODING, FILE_IGNORED,
    NO_SAMPLES, *FILE_ISSUES, *IMAGE_ISSUES, *AUDIO_ISSUES,
)  # fmt: skip

_FIELDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp", "ppm", "gif", "tif", "tiff"), "image"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg"), "audio"),
    **{suffix: suffix for suffix in ("npz", "json", "text", "caption", "transcript", "cls2", "index", "inx", "id")},
    "npy": "array", "txt": "text", "cls": "label",
}  # fmt: skip
"""Suffixes that are decoded, and the key of their value in a sample."""
_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_METADATA_SUFFIXES = (".md", ".json", ".txt", ".yaml", ".yml")
_LONGEST_TEXT = 64 << 20
_CACHED_FROM = 16 << 20
_LEAST_SHARE = 0.9
"""A file that this share of the samples has is expected of all."""
_OPEN_SHARDS = 16

Placed = tuple[str, int, int]
"""Name, offset and size of a member."""


def detect(files: Files) -> Detection | None:
    """Tar shards whose first members form samples, or one tar of such members."""
    names = files.names()
    shards = [name for name in names if name.lower().endswith(".tar")]
    if not shards:
        is_tar = files.root.lower().endswith(ARCHIVE_SUFFIXES) and not files.root.lower().endswith(".zip")
        confidence = _confidence(names[:60]) if is_tar else 0.0
        return Detection(confidence, "a tar of samples by stem") if confidence else None
    if any(not name.lower().endswith((".tar", *_METADATA_SUFFIXES)) for name in names):
        return None
    inside = [name for name, _, _ in itertools.islice(_tar_files(files, shards[0], lambda *_: None), 60)]
    decodable = bool(inside) and all(name.lower().rpartition(".")[2] in _FIELDS for name in inside)
    confidence = _confidence(inside) or (0.6 if decodable else 0.0)
    return Detection(confidence, plural(len(shards), "tar shard")) if confidence else None


def _confidence(names: Sequence[str]) -> float:
    """How much names look like samples of several files each."""
    stems: dict[str, set[str]] = defaultdict(set)
    for name in names:
        key, suffix = split_name(name)
        stems[key].add(suffix)
    suffixes = [suffix for group in stems.values() for suffix in group]
    decodable = sum(suffix.rpartition(".")[2] in _FIELDS for suffix in suffixes)
    if not names or decodable * 2 < len(suffixes) or sum(len(group) > 1 for group in stems.values()) * 2 < len(stems):
        return 0.0
    return 0.95 if {"cls", "json"} & set(suffixes) else 0.8


def split_name(name: str) -> tuple[str, str]:
    """Key and suffix of a member: the suffix begins at the first dot of the last part.

    >>> split_name("a.b/0001.seg.PNG")
    ('a.b/0001', 'seg.png')
    """
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> WebDatasetSource:
    """Index the members of all shards; with `full` depth decode every sample."""
    names = files.names()
    shards = sorted((name for name in names if name.lower().endswith(".tar")), key=natural_key)
    for name in names if shards else ():
        if not name.lower().endswith((".tar", *_METADATA_SUFFIXES)):
            report.add(FILE_IGNORED, "not read", Location(name))
    source = WebDatasetSource(files, alone=not shards)
    if shards:
        for shard, split in _in_split_order(files, shards, options.get("split")):
            source.add_shard(shard, split, _members(files, shard, report), report)
    else:  # the tar itself was opened, and its members are the files
        source.add_shard("", None, [(name, number, files.size(name)) for number, name in enumerate(names)], report)
    source.finish(report)
    if not len(source):
        report.add(NO_SAMPLES, plural(len(shards), "shard"))
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


def _in_split_order(files: Files, shards: Sequence[str], wanted: str | None) -> list[tuple[str, Split | None]]:
    splits = {shard: split_of_folder(shard.partition("/")[0]) or split_of_file(shard) for shard in shards}
    available = [split for split in SPLITS if split in splits.values()]
    selected = split_of_folder(wanted) if wanted is not None else None
    if wanted is not None and selected not in available:
        raise UsageError(
            f"there is no split {wanted!r}", code="split-unknown", param="split", where=files.root,
            expected=", ".join(available) or "no splits", hint="leave {split} out",
        )  # fmt: skip
    chosen = [(shard, splits[shard]) for shard in shards if wanted is None or splits[shard] == selected]
    return sorted(chosen, key=lambda pair: (*SPLITS, None).index(pair[1]))


def _members(files: Files, shard: str, report: DataReport) -> list[Placed]:
    """The members of a shard; those of a large one are kept in the cache, since each takes a read."""
    from fewbit.data.cache import cached_file

    def index() -> dict[str, Any]:
        problems: list[tuple[str, str, str]] = []
        members = list(_tar_files(files, shard, lambda kind, *rest: problems.append((kind.code, *rest))))
        return {"members": members, "problems": problems}

    def write(target: BinaryIO) -> None:
        target.write(orjson.dumps(index()))

    try:
        if files.size(shard) < _CACHED_FROM:
            content = index()
        else:
            path = cached_file(f"tar index 2\0{files.root}\0{shard}\0{files.fingerprint(shard)}", write)
            content = orjson.loads(path.read_bytes())
    except SampleError as error:
        report.add(error.issue.type, error.issue.message, error.issue.location)
        return []
    kinds = {kind.code: kind for kind in (*ARCHIVE_ISSUES, SPECIAL_FILE)}
    for code, message, name in content["problems"]:
        report.add(kinds[code], message, Location(f"{shard}!/{name}" if name else shard))
    return [(name, offset, size) for name, offset, size in content["members"]]


def _tar_files(files: Files, shard: str, problem: Callable[[IssueType, str, str], None]) -> Iterator[Placed]:
    handle = Handle(files, shard)
    try:
        for member in tar_members(handle.read_at, handle.size, problem):
            if not member.name.endswith("/"):
                yield member.name, member.offset, member.size
    except ArchiveError as error:
        problem(error.type, error.message, "")


class WebDatasetSource:
    """Samples of tar shards, indexed in flat columns: 1M samples of three files take about 100 MB.

    Args:
        files: the shards, or the members of one.
        alone: whether `files` is a shard itself.
    """

    def __init__(self, files: Files, *, alone: bool):
        self._files, self._alone = files, alone
        self._shards: list[tuple[str, Split | None]] = []
        self._keys: list[str] = []
        self._suffix_numbers: dict[str, int] = {}
        self._columns: dict[str, Any] = {"shard": [], "start": [0], "suffix": [], "offset": [], "size": []}
        self._handles: dict[int, Handle] = {}
        self.facts: dict[str, Any] = {}

    def add_shard(self, shard: str, split: Split | None, members: Sequence[Placed], report: DataReport) -> None:
        """Group the members of one shard into samples."""
        groups: dict[str, dict[str, tuple[int, int]]] = {}
        dropped = set()
        prefix = f"{shard}!/" if shard else ""
        for name, offset, size in members:
            key, suffix = split_name(name)
            if name.rpartition("/")[2].startswith((".", "_")) or not suffix:  # __index__ and system files
                continue
            if suffix in groups.setdefault(key, {}):
                if report.add(KEY_DUPLICATE, f"two files .{suffix}", Location(prefix + name)) == "drop":
                    dropped.add(key)
            else:
                groups[key][suffix] = offset, size
        counts = Counter(suffix for group in groups.values() for suffix in group)
        expected = {suffix for suffix, count in counts.items() if count >= _LEAST_SHARE * len(groups)}
        self._shards.append((shard, split))
        for key, group in groups.items():
            if missing := expected - group.keys():
                message = f"no .{', .'.join(sorted(missing))}"
                if report.add(SAMPLE_INCOMPLETE, message, Location(prefix + key)) == "drop":
                    dropped.add(key)
            if key not in dropped:
                self._add_sample(key, group)

    def _add_sample(self, key: str, group: Mapping[str, tuple[int, int]]) -> None:
        columns, numbers = self._columns, self._suffix_numbers
        self._keys.append(key)
        columns["shard"].append(len(self._shards) - 1)
        for suffix, (offset, size) in group.items():
            columns["suffix"].append(numbers.setdefault(suffix, len(numbers)))
            columns["offset"].append(offset)
            columns["size"].append(size)
        columns["start"].append(len(columns["offset"]))

    def finish(self, report: DataReport) -> None:
        """Turn the index into arrays, and note suffixes that are not decoded."""
        self._columns = {name: np.array(values, np.int64) for name, values in self._columns.items()}
        self._suffixes = list(self._suffix_numbers)
        self._order = np.arange(len(self._keys))
        counts = np.bincount(self._columns["suffix"], minlength=len(self._suffixes))
        for suffix, count in zip(self._suffixes, counts):
            if suffix.rpartition(".")[2] not in _FIELDS:
                report.add(SUFFIX_UNKNOWN, f".{suffix} of {plural(int(count), 'sample')}, left out")
        fields = {_field(suffix) for suffix in self._suffixes if suffix.rpartition(".")[2] in _FIELDS}
        self.facts |= {"columns": sorted(fields), "shards": len(self._shards)}
        splits = Counter(self._shards[shard][1] for shard in self._columns["shard"])
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
        number, place = int(self._order[index]), self.location(index).file
        sample: Sample = {"key": self._keys[number]}
        start, end = self._columns["start"][number : number + 2]
        for entry in range(int(start), int(end)):
            suffix = self._suffixes[self._columns["suffix"][entry]]
            extension = suffix.rpartition(".")[2]
            if extension not in _FIELDS:
                continue
            location = Location(f"{place}.{suffix}", index=index)
            value = _decode(self._read(number, entry, location), extension, location)
            if suffix == "json" and isinstance(value, dict):
                sample = {**value, **sample}  # files win over fields of the same name
            elif suffix == "npz":
                sample |= value
            elif _FIELDS[extension] == "audio":
                sample[_field(suffix)], sample["sampling_rate"] = value
            else:
                sample[_field(suffix)] = value
        return sample

    def _read(self, number: int, entry: int, location: Location) -> bytes:
        offset, size = int(self._columns["offset"][entry]), int(self._columns["size"][entry])
        if self._alone:
            return self._files.read(self._files.names()[offset], size)
        shard = int(self._columns["shard"][number])
        if shard not in self._handles:
            if len(self._handles) >= _OPEN_SHARDS:
                self._handles.pop(next(iter(self._handles)))
            self._handles[shard] = Handle(self._files, self._shards[shard][0])
        content = self._handles[shard].read_at(offset, size)
        if len(content) < size:
            raise SampleError(Issue(ARCHIVE_BROKEN, "cut off", location))
        return content

    def location(self, index: int) -> Location:
        """The shard and the key of a sample."""
        number = int(self._order[index])
        shard = self._shards[self._columns["shard"][number]][0]
        return Location(f"{shard}!/{self._keys[number]}" if shard else self._keys[number], index=index)

    def strata(self) -> Sequence[Any] | None:
        """The split, or the shard, of each sample."""
        if len(self._shards) < 2:
            return None
        by_split = len(self.facts.get("splits", ())) > 1
        labels = [split if by_split else shard for shard, split in self._shards]
        return [labels[shard] for shard in self._columns["shard"][self._order]]


def _field(suffix: str) -> str:
    """The key of a sample's value: `image`, `label`, `text`; the first part of a double suffix, as in `seg.png`."""
    first, _, extension = suffix.rpartition(".")
    return first or _FIELDS[extension]


def _decode(content: bytes, extension: str, location: Location) -> Any:
    field = _FIELDS[extension]
    if field == "image":
        return decode_image(content, location)
    if field == "audio":
        return decode_audio(content, location)
    if extension in ("npy", "npz"):
        return _arrays(content, extension == "npy", location)
    if len(content) > _LONGEST_TEXT:
        raise SampleError(Issue(BAD_ENCODING, f"a text of {len(content):,} bytes", location))
    try:
        if extension == "json":
            return orjson.loads(content)
        text = content.decode("utf-8")
    except orjson.JSONDecodeError as error:
        raise SampleError(Issue(BAD_JSON, str(error), location)) from error
    except UnicodeDecodeError as error:
        raise SampleError(Issue(BAD_ENCODING, f"byte {error.start}", location)) from error
    if extension in _NUMBERS and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text):
        return int(text)
    if extension == "cls":
        raise SampleError(Issue(BAD_LABEL, repr(text[:40]), location))
    return text


def _arrays(content: bytes, bare: bool, location: Location) -> Any:
    file = ArrayFile.of_bytes(content, bare)
    try:
        for problem in file.problems:
            raise problem
        arrays = {name: file.array(name) for name in file.headers}
    except ArrayError as error:
        raise SampleError(Issue(error.type, error.message, location)) from error
    return arrays[BARE] if bare else arrays


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
