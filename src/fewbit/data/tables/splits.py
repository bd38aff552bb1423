# SPDX-License-Identifier: Apache-2.0
"""Which split a file belongs to, by whole words of its name: `test-0.jsonl` is, `latest.jsonl` is not."""

from __future__ import annotations

import re

from fewbit.data.split_names import FILE_WORDS

_LETTERS = re.compile(r"[^\W\d_]+")


def canonical(word: str) -> str:
    """The name we use for a split, whatever the user calls it.

    >>> canonical("validation"), canonical("holdout")
    ('val', 'holdout')
    """
    return FILE_WORDS.get(word.lower(), word)


def splits_in(name: str) -> list[str]:
    """The splits a file or folder name speaks of, each once, in the order of the name.

    >>> splits_in("train-00001-of-00005"), splits_in("contest"), splits_in("train_vs_test")
    (['train'], [], ['train', 'test'])
    """
    words = (FILE_WORDS.get(word) for word in _LETTERS.findall(name.lower()))
    return list(dict.fromkeys(word for word in words if word))


def split_of(name: str) -> tuple[str | None, bool]:
    """The split of a relative file name, and whether its name was clear about it.

    The file's own name decides, then the nearest folder that names a split.

    >>> split_of("train/part-0.jsonl"), split_of("wiki.test.csv"), split_of("train_vs_test.csv")
    (('train', True), ('test', True), (None, False))
    """
    *folders, file = name.split("/")
    for part in (file, *reversed(folders)):
        found = splits_in(part)
        if found:
            return (found[0], True) if len(found) == 1 else (None, False)
    return None, True
