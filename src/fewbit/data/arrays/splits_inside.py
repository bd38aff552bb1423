# SPDX-License-Identifier: Apache-2.0
"""One file with the arrays of several splits (`x_train`, `y_train`, `x_test` …): neither a sample nor a stack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.split_names import split_word

_BETWEEN = re.compile(r"[_\-./ ]")


def splits_inside(infos: Mapping[str, ArrayInfo]) -> dict[str, dict[str, str]]:
    """The arrays by split, each under the name it would have in a file of its own; nothing below two splits.

    Args:
        infos: the arrays of one file.

    >>> shapes = {"x_train": (60, 8), "y_train": (60,), "x_test": (10, 8), "y_test": (10,)}
    >>> splits_inside({name: ArrayInfo(shape, "float32") for name, shape in shapes.items()})
    {'train': {'x': 'x_train', 'y': 'y_train'}, 'test': {'x': 'x_test', 'y': 'y_test'}}
    """
    found: dict[str, dict[str, str]] = {}
    for name in infos:
        first, *middle, last = _BETWEEN.split(name) if _BETWEEN.search(name) else ("", name)
        for split, rest in ((split_word(last), [first, *middle]), (split_word(first), [*middle, last])):
            if split is not None:
                found.setdefault(split, {})["_".join(rest)] = name
                break
    counted = all(_rows(infos[name] for name in names.values()) > 1 for names in found.values())
    return found if len(found) > 1 and counted else {}


def _rows(infos: Iterable[ArrayInfo]) -> int:
    """The first axis that all arrays share; 0 where they share none."""
    firsts = {info.shape[:1] for info in infos}
    return next(iter(firsts.pop()), 0) if len(firsts) == 1 else 0


def in_words(splits: Mapping[str, Mapping[str, str]]) -> tuple[str, str]:
    """What was found, and what to do about it.

    >>> in_words({"train": {"x": "x_train"}, "test": {"x": "x_test"}})[0]
    'its arrays are called after 2 splits (train: x_train; test: x_test)'
    """
    there = "; ".join(f"{split}: {', '.join(names.values())}" for split, names in splits.items())
    split, names = next(iter(splits.items()))
    arrays = ", ".join(f"{rest}=data[{name!r}]" for rest, name in names.items())
    return (
        f"its arrays are called after {len(splits)} splits ({there})",
        f"save one file a split and open each: numpy.savez('{split}.npz', {arrays}); stacked=False if it is one sample",
    )
