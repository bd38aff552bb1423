# SPDX-License-Identifier: Apache-2.0
"""Which files of a dataset hold rows, in natural order, each with the split its name says; how sure a format is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fewbit.data import audio
from fewbit.data.images import signatures
from fewbit.data.splits import SPLITS, split_of_file, split_of_folder
from fewbit.data.types import DataReport, Detection, Files, IssueType, Location, SampleError, Severity
from fewbit.errors import plural

IGNORED_FILE = IssueType(
    "ignored-file", Severity.NOTE, "file that is not read", "name a single file to read only that one",
    aliases=("several-kinds",),
)  # fmt: skip
SEVERAL_SPLITS = IssueType(
    "several-splits", Severity.WARNING, "file whose name contains more than one split",
    "keep one of the words in the name",
)  # fmt: skip
NO_FILES = IssueType("no-files", Severity.ERROR, "no file of rows", "check the path", "raise")
ISSUES = (IGNORED_FILE, SEVERAL_SPLITS, NO_FILES)

IMAGE_SUFFIXES = tuple(sorted(signatures.SUFFIXES | signatures.SKIPPED_SUFFIXES))
AUDIO_SUFFIXES = tuple(sorted(audio.SUFFIXES | audio.SKIPPED_SUFFIXES))
_MEDIA = (*IMAGE_SUFFIXES, *AUDIO_SUFFIXES)
_PACKED = (".gz", ".zst")
_NAMES_TO_LOOK_AT = 200_000
_DOCUMENTS = (".md", ".txt", ".yaml", ".yml", ".py", ".ipynb", ".html", "license", "readme", ".gitattributes", ".json")
"""Files next to rows that do not lower the confidence."""
_SAVED = frozenset(("state.json", "dataset_dict.json", "dataset_info.json"))
# What lies next to rows in folders people download, and is never rows itself.
_NAMES = """
    dataset_info.json dataset_infos.json state.json config.json metadata.json manifest.json package.json
    tokenizer.json tokenizer_config.json special_tokens_map.json dataset_dict.json generation_config.json
    preprocessor_config.json vocab.json added_tokens.json model.safetensors.index.json
"""
_DESCRIPTIONS = frozenset(_NAMES.split())


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
    """Whether a file holds rows, by its name; the sample submission of a competition does not."""
    base = name.rpartition("/")[2].lower()
    return suffix_of(name) in suffixes and base not in _DESCRIPTIONS and not base.startswith("sample_submission")


def detect_tables(files: Files, suffixes: Sequence[str], title: str, magic: tuple[bytes, ...] = ()) -> Detection | None:
    """How sure a format of tables is; `magic` are the first bytes of a binary one.

    The rows of a text format may name images that lie next to them.
    """
    names = files.names()[:_NAMES_TO_LOOK_AT]
    rows = [name for name in names if is_row_file(name, suffixes)]
    if not rows:
        is_table = bool(magic) and len(names) == 1 and files.read(names[0], 8).startswith(magic)
        return Detection(0.95, f"{title} by its first bytes") if is_table else None
    if len(names) == 1:
        return Detection(0.95, f"a {title} file")
    if _SAVED & {name.rpartition("/")[2] for name in names}:
        return Detection(0.4, f"{title} files next to a saved dataset")
    reason = f"{plural(len(rows), 'file')} such as {rows[0]}"
    if not magic and any(name.lower().endswith(_MEDIA) for name in names):
        names_media = len(rows) <= len(SPLITS) + 1 and any(_names_media(files, names, name) for name in rows)
        return Detection(0.95, f"{rows[0]} names the images or audio files") if names_media else Detection(0.3, reason)
    others = [name for name in names if name not in rows and not name.lower().endswith(_DOCUMENTS)]
    return Detection(0.9 if not others else 0.7 if len(rows) >= len(others) else 0.4, reason)


def _names_media(files: Files, names: Sequence[str], table: str) -> bool:
    """Whether the first lines of a table name files that lie next to it, with their suffix or as a column of ids."""
    try:
        lines = files.read(table, 1 << 14).decode("utf-8", "replace").splitlines()[:30]
    except SampleError:
        return False
    bases = {name.rpartition("/")[2] for name in names if name.lower().endswith(_MEDIA)}
    fields = [[field.strip("\"' ") for field in re.split(r'[,;\t|]|":', line)] for line in lines]
    if any(re.split(r"[/\\]", field)[-1] in bases for line in fields for field in line):
        return True
    return are_stems([line[0] for line in fields[1:] if line[0]], {base.rpartition(".")[0] for base in bases})


def are_stems(values: Sequence[str], stems: set[str]) -> bool:
    """Whether values are names of files without their suffixes: hardly any twice, and most of them are there.

    >>> are_stems(["a", "b"], {"a", "b"}), are_stems(["a", "a"], {"a"}), are_stems(["a"], {"a"})
    (True, False, False)
    """
    present = sum(value in stems for value in values)
    return len(values) > 1 and 4 * len(set(values)) >= 3 * len(values) and 2 * present > len(values)


def row_files(files: Files, suffixes: Sequence[str], report: DataReport) -> list[RowFile]:
    """Every file of rows: train, val, test, then those of no split; in each split in natural order."""
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
    return sorted(listed, key=lambda file: (split_order(file.split), _natural(file.name)))


def split_order(split: str | None) -> int:
    """Train, val, test, then all others."""
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


def _splits_of(name: str) -> Sequence[str]:
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
    splits = [split_of_folder(folder) for folder in reversed(folders)]
    return [split for split in splits if split][:1]


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that puts `part2` before `part10`."""
    return tuple((int(token), "") if token.isdecimal() else (-1, token) for token in re.split(r"([0-9]{1,18})", name))
