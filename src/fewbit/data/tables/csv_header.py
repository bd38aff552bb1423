# SPDX-License-Identifier: Apache-2.0
"""The names of a CSV file's columns, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from fewbit.data.tables.layout import USUAL_NAMES
from fewbit.data.tables.table import Fault

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ][\d:.+Z-]*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}", re.ASCII)
_NAMES = USUAL_NAMES | {"id", "idx", "index", "name", "title", "date", "time", "key", "value", "x", "y"}
COLUMNS = 1 << 14
"""More columns than this are not a header but a file that is read with the wrong delimiter, or a trap."""


def header(fields: Sequence[str], below: Sequence[Sequence[str]], line: int) -> tuple[list[str], list[Fault]]:
    """The names of the columns, all different and none empty, and the faults that had to be repaired for that.

    Args:
        fields: the first record.
        below: a few records after it.
        line: the header's line.

    >>> names, faults = header(["id", "id", ""], [], 1)
    >>> names, [fault.message for fault in faults]
    (['id', 'id_2', 'column_3'], ["columns 1 and 2 are both called 'id'", 'column 3 has no name'])
    """
    faults: list[Fault] = []
    names: list[str] = []
    taken = {name: position for position, name in reversed(list(enumerate(fields)))}
    for position, field in enumerate(fields):
        name = field
        if not field.strip():
            faults.append(Fault("header-empty", f"column {position + 1} has no name", line))
            name = _free(f"column_{position + 1}", taken)
        elif taken[field] != position:
            message = f"columns {taken[field] + 1} and {position + 1} are both called {field!r}"
            faults.append(Fault("header-duplicate", message, line, field=field))
            name = _free(f"{field}_{position + 1}", taken)
        elif field != field.strip():
            faults.append(Fault("header-space", f"column {position + 1} is called {field!r}", line, field=field))
        taken.setdefault(name, position)
        names.append(name)
    if looks := _like_data(fields, below):
        faults.append(Fault("header-like-data", f"the header looks like data: {looks}", line))
    return names, faults


def _kind(field: str) -> str:
    bare = field.strip()
    return "number" if _NUMBER.fullmatch(bare) else "date" if _DATE.fullmatch(bare) else "text"


def _plausible(fields: Sequence[str], kinds: Sequence[str]) -> bool:
    """Whether one of the fields is what columns are called, or the numbers are years or positions in a row."""
    numbers = [field.strip() for field, kind in zip(fields, kinds) if kind == "number"]
    steps = len(numbers) > 1 and all(number.isdecimal() and len(number) < 9 for number in numbers)
    in_step = steps and all(int(after) - int(before) == 1 for before, after in pairwise(numbers))
    return in_step or any(field.strip().lower() in _NAMES for field in fields)


def _free(name: str, taken: dict[str, int]) -> str:
    while name in taken:
        name += "_"
    return name


def _like_data(fields: Sequence[str], below: Sequence[Sequence[str]]) -> str:
    kinds = [_kind(field) for field in fields]
    if set(kinds) == {"number"}:
        return "every name is a number"
    rows = [row for row in below if len(row) == len(fields) and list(row) != list(fields)]
    # A name stands above values that are not like it; a row stands above rows that are.
    alike = bool(rows) and all(_kind(value) == kind for row in rows for value, kind in zip(row, kinds) if value)
    if alike and set(kinds) != {"text"} and not _plausible(fields, kinds):
        at = next(position for position, kind in enumerate(kinds) if kind != "text")
        return f"{fields[at]!r} is a {kinds[at]}, and the rows below have one there too"
    for position, field in enumerate(fields):
        if field and any(row[position] == field for row in rows):
            return f"{field!r} is also a value of column {position + 1}"
    return ""
