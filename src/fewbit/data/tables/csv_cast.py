# SPDX-License-Identifier: Apache-2.0
"""From text to the type a column was declared to have; nothing is cast that was not declared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fewbit.data.tables.csv_kinds import FLOAT, INT
from fewbit.errors import UsageError, nearest

Value = str | int | float | bool

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_DIGITS = 4300
"""The longest integer Python reads from text without being told to."""


@dataclass(frozen=True, slots=True)
class Cast:
    """One declared type.

    Args:
        name: as it will stand in messages.
        read: the value of a text; raises `ValueError` for one that is not of the type.
        kinds: the kinds of `csv_kinds` that are of the type for sure.
    """

    name: str
    read: Callable[[str], Value]
    kinds: tuple[int, ...] = ()


def _int(text: str) -> int:
    bare = text.strip(" ")
    if len(bare) > _DIGITS or not _INT.fullmatch(bare):
        raise ValueError(text)
    return int(bare)


def _float(text: str) -> float:
    bare = text.strip(" ")
    if not _FLOAT.fullmatch(bare):
        raise ValueError(text)
    return float(bare)


def _bool(text: str) -> bool:
    try:
        return _BOOLS[text.strip(" ").lower()]
    except KeyError:
        raise ValueError(text) from None


_CASTS = {
    "int": Cast("an integer", _int, (INT,)),
    "float": Cast("a number", _float, (INT, FLOAT)),
    "bool": Cast("true or false", _bool),
}
_STEMS = {"integer": "int", "uint": "int", "double": "float", "number": "float", "boolean": "bool"}


def casts(declared: Mapping[str, object]) -> dict[str, Cast]:
    """The casts a user declared, by column; text columns need none.

    Args:
        declared: column name to `str`, `int`, `float` or `bool`, or to a dtype's name such as `"int64"`.

    Raises:
        UsageError: a type that is not known, all of them named.

    >>> casts({"label": int, "text": str})["label"].read("007")
    7
    """
    found, faults = {}, []
    for column, kind in declared.items():
        name = kind.__name__ if isinstance(kind, type) else str(kind)
        stem = name.lower().rstrip("0123456789")
        stem = _STEMS.get(stem, stem)
        if stem in _CASTS:
            found[column] = _CASTS[stem]
        elif stem not in ("str", "string", "text"):
            faults.append(f"column {column!r}: no type {name!r}, {nearest(name, [*_CASTS, 'str'])}")
    if faults:
        raise UsageError("; ".join(faults), where="types", expected="str, int, float or bool for each column")
    return found
