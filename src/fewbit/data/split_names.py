# SPDX-License-Identifier: Apache-2.0
"""The names of splits, and the words people use for them."""

from __future__ import annotations

from collections.abc import Mapping

SPLITS = ("train", "val", "test")
"""Our names, in the order in which splits are read."""

UNSPLIT = "all"
"""What the one split of a dataset without splits is called."""

_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
FOLDER_WORDS = {**_WORDS, "training": "train"}
FILE_WORDS = {**_WORDS, "dev": "val"}


def split_word(name: str, words: Mapping[str, str] = FOLDER_WORDS) -> str | None:
    """Our name of the split that a folder is called by, or `None` for any other name.

    >>> split_word("Validation"), split_word("cat")
    ('val', None)
    """
    return words.get(name.lower())
