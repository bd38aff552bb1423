# SPDX-License-Identifier: Apache-2.0
"""Which columns of a Hugging Face dataset hold classes, and what the classes are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def class_columns(features: Any) -> dict[str, list[str]]:
    """The names of the classes of each column that has them, in the order of their numbers.

    A list of classes, such as a tag a word, counts; a column within a column is named with a dot.

    Args:
        features: the dataset's, or nothing.

    >>> from datasets import ClassLabel, Features, List, Value
    >>> tags = List(ClassLabel(names=["O", "B-PER"]))
    >>> class_columns(Features({"words": List(Value("string")), "tags": tags}))
    {'tags': ['O', 'B-PER']}
    """
    return dict(_walk("", features or {}))


def of_all_splits(splits: Sequence[Mapping[str, list[str]]]) -> tuple[dict[str, list[str]], list[str]]:
    """The names that columns have in the first split that has them, and the columns that another one names otherwise.

    Args:
        splits: what `class_columns` says of each.

    >>> of_all_splits([{"label": ["a", "b"]}, {"label": ["b", "a"]}])
    ({'label': ['a', 'b']}, ['label'])
    """
    found: dict[str, list[str]] = {}
    differ = []
    for columns in splits:
        for name, classes in columns.items():
            if found.setdefault(name, classes) != classes and name not in differ:
                differ.append(name)
    return found, differ


def _walk(name: str, kind: Any) -> Iterator[tuple[str, list[str]]]:
    if hasattr(kind, "names") and hasattr(kind, "str2int"):  # ClassLabel, without importing the library for it
        if kind.names:
            yield name, [str(each) for each in kind.names]
    elif isinstance(kind, Mapping):
        for key, inner in kind.items():
            yield from _walk(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(kind, list | tuple):
        for inner in kind:
            yield from _walk(name, inner)
    elif getattr(kind, "feature", None) is not None:
        yield from _walk(name, kind.feature)
