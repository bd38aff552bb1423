# SPDX-License-Identifier: Apache-2.0
"""Which files of a dataset hold rows, in natural order, each with the split its name says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fewbit.data.splits import SPLITS, split_of_file, split_of_folder
from fewbit.data.types import DataReport, Detection, Files, IssueType, Location, SampleError, Severity
from fewbit.errors import plural

IGNORED_FILE = IssueType(
    "ignored-file", Severity.NOTE, "file that is not read", "name a single file to read only that one"
)
SEVERAL_SPLITS = IssueType(
    "several-splits",
    Severity.WARNING,
    "file whose name contains more than one split",
    "keep one of the words in the name",
)
NO_FILES = IssueType("no-files", Severity.ERROR, "no file of rows", "check the path", "raise")
ISSUES = (IGNORED_FILE, SEVERAL_SPLITS, NO_FILES)

_PACKED = (".gz", ".zst")
_NAMES_TO_LOOK_AT = 500
_DOCUMENT_SUFFIXES = (
    ".md",
    ".txt",
    ".yaml",
    ".yml",
    ".py",
    ".ipynb",
    ".html",
    "license",
    "readme",
    ".gitattributes",
    ".json",
)
"""Files next to rows that do not lower the confidence."""
_MEDIA_SUFFIXES = """
    .jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp .gif .jfif .heic .avif .wav .flac .mp3 .ogg .opus .m4a
"""
_MEDIA = tuple(_MEDIA_SUFFIXES.split())
# What lies next to rows in folders people download, and is never rows itself.
_DESCRIPTION_FILES = """
    dataset_info.json dataset_infos.json state.json config.json metadata.json manifest.json package.json
    tokenizer.json tokenizer_config.json special_tokens_map.json dataset_dict.json generation_config.json
    preprocessor_config.json vocab.json added_tokens.json model.safetensors.index.json
"""
_DESCRIPTIONS = frozenset(_DESCRIPTION_FILES.split())


class RowFile(NamedTuple):
    """One file of rows and its split."""

    name: str
    split: str | None


def suffix_of(name: str) -> str:
    """The suffix of a file without `.gz` or `.zst`, in lower case.

    >>> suffix_of("a.JSONL.gz"), suffix_of("data/a.csv"), suffix_of("README")
    ('.jsonl', '.csv', '')
    """
    base = name.rpartition("/")[2].lower()
    for packed in _PACKED:
        base = base.removesuffix(packed)
    return base[base.rfind(".") :] if "." in base else ""


def is_row_file(name: str, suffixes: Sequence[str]) -> bool:
    """Whether a file holds rows, by its name."""
    return suffix_of(name) in suffixes and name.rpartition("/")[2].lower() not in _DESCRIPTIONS


def detect_tables(files: Files, suffixes: Sequence[str], title: str) -> Detection | None:
    """How sure a format of tables is, by names alone, or by the first file if images lie next to it.

    Args:
        files: the dataset.
        suffixes: of the format.
        title: such as `CSV`.
    """
    names = files.names()[:_NAMES_TO_LOOK_AT]
    bases = {name.rpartition("/")[2].lower() for name in names}
    rows = [name for name in names if is_row_file(name, suffixes)]
    if not rows or ({"state.json", "dataset_dict.json", "dataset_info.json"} & bases and suffixes[0] != ".csv"):
        return None
    if len(names) == 1:
        return Detection(0.95, f"a {title} file")
    reason = f"{plural(len(rows), 'file')} such as {rows[0]}"
    media = [name for name in names if name.lower().endswith(_MEDIA)]
    other_files = [name for name in names if name not in rows and not name.lower().endswith(_DOCUMENT_SUFFIXES)]
    if media:
        if len(rows) <= len(SPLITS) + 1 and _names_media(files, rows[0]):
            return Detection(0.95, f"{rows[0]} names the images or audio files")
        return Detection(0.3, reason)
    return Detection(0.9 if not other_files else 0.7 if len(rows) >= len(other_files) else 0.4, reason)


def _names_media(files: Files, name: str) -> bool:
    """Whether the first lines of a file name files that lie next to it."""
    try:
        head = files.read(name, 1 << 14).decode("utf-8", "replace")
    except SampleError:
        return False
    folder = name.rpartition("/")[0]
    file_names = {file_name.removeprefix(f"{folder}/") for file_name in files.names()} if folder else set(files.names())
    suffixes = "|".join(suffix[1:] for suffix in _MEDIA)
    named = re.findall(rf"[^\s,;\t|\"']+\.(?:{suffixes})\b", head, re.IGNORECASE)
    return any(value.replace("\\", "/").removeprefix("./") in file_names for value in named[:20])


def row_files(files: Files, suffixes: Sequence[str], report: DataReport) -> list[RowFile]:
    """Every file of rows: train, val, test, then those of no split; in each split in natural order.

    Args:
        files: the dataset; a single file is taken whatever it is called.
        suffixes: such as `.csv`.
        report: takes the files that are skipped.
    """
    names = files.names()
    listed = []
    for name in names:
        if len(names) > 1 and not is_row_file(name, suffixes):
            if not name.lower().endswith(_MEDIA):
                report.add(IGNORED_FILE, "no file of rows by its name", Location(name))
            continue
        splits = _splits_of(name)
        if len(splits) > 1:
            report.add(SEVERAL_SPLITS, f"{' and '.join(splits)}; it counts as none", Location(name))
        listed.append(RowFile(name, splits[0] if len(splits) == 1 else None))
    if not listed:
        report.add(NO_FILES, f"no {', '.join(suffixes)} file, also not as .gz or .zst", Location(files.root))
    order = {split: number for number, split in enumerate((*SPLITS, None))}
    return sorted(listed, key=lambda file: (order[file.split], _natural(file.name)))  # type: ignore[index]


def _splits_of(name: str) -> list[str]:
    """The splits a name contains: its own words, else those of the nearest folder that has any.

    >>> _splits_of("test/part-0.csv"), _splits_of("wiki.train.jsonl.gz"), _splits_of("train_vs_test.csv")
    (['test'], ['train'], ['train', 'test'])
    """
    *folders, base = name.split("/")
    words = [word for word in re.split(r"[^a-z]+", base.lower()) if word]
    if "notes" not in words and "readme" not in words:
        named = [split for split in dict.fromkeys(split_of_file(word) for word in words) if split]
        if named:
            return list(named)
    for folder in reversed(folders):
        if split := split_of_folder(folder):
            return [split]
    return []


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that puts `part2` before `part10`."""
    return tuple((int(token), "") if token.isdecimal() else (-1, token) for token in re.split(r"([0-9]{1,18})", name))
