# SPDX-License-Identifier: Apache-2.0
"""Names of splits: which folders and files are train, val or test."""

from __future__ import annotations

import re
from typing import Literal

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
_WORDS: dict[str, Split] = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
    "testing": "test",
}  # fmt: skip
_FILE_WORDS: dict[str, Split] = {**_WORDS, "dev": "val", "eval": "val"}


def split_of_folder(name: str) -> Split | None:
    """The split a folder is named after; a year may follow, as in `val2017`.

    >>> split_of_folder("Train"), split_of_folder("val2017"), split_of_folder("training-notes")
    ('train', 'val', None)
    """
    match = re.fullmatch(r"([a-z]+?)_?(?:(?:19|20)\d\d)?", name.lower())
    return _WORDS.get(match[1]) if match else None


def split_of_file(name: str) -> Split | None:
    """The split a file is named after, by whole words; `None` if it names none or several.

    >>> [split_of_file(name) for name in ("train-00001-of-3.jsonl", "wiki.valid.txt", "latest.csv", "train_val.csv")]
    ['train', 'val', None, None]
    """
    words = set(re.split(r"[^a-z]+", name.rpartition("/")[2].lower()))
    splits = {_FILE_WORDS[word] for word in words & _FILE_WORDS.keys()}
    return splits.pop() if len(splits) == 1 and not words & {"notes", "readme"} else None
