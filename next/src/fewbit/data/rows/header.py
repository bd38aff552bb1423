# SPDX-License-Identifier: Apache-2.0
"""The beginning of a CSV file: its delimiter and its column names. Workbooks have the same rules for names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fewbit.data.rows.csv_reader import parse_record
from fewbit.data.types import DataReport, IssueType, Location, Severity
from fewbit.errors import UsageError, plural

DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
MOST_COLUMNS = 1 << 14
_SEP_LINE = re.compile(rb'"?sep=([!#-*,/:-@\[-^`{-~\t ])"?(?:\r?\n|\r|$)', re.IGNORECASE)
_RECORDS_TO_COMPARE = 100

DELIMITER_GUESSED = IssueType(
    "delimiter-guessed", Severity.NOTE, "delimiter found by looking at the first rows",
    "name it to be sure: {data_option=delimiter=;}",
)  # fmt: skip
DELIMITER_UNCLEAR = IssueType(
    "delimiter-unclear", Severity.WARNING, "more than one delimiter fits the first rows",
    "choose one: {data_option=delimiter=;}",
)  # fmt: skip
HEADER_MISSING = IssueType(
    "header-missing", Severity.ERROR, "table without a usable header", "write the column names into the first line",
    "raise", ("drop",), "leaves the file out",
)  # fmt: skip
HEADER_DUPLICATE = IssueType(
    "header-duplicate", Severity.ERROR, "two columns of the same name", "rename one of them", "raise", ("repair",),
    "numbers the second one",
)  # fmt: skip
HEADER_EMPTY = IssueType(
    "header-empty", Severity.ERROR, "column without a name",
    "name it, or remove the delimiter at the end of the header", "raise", ("repair",), "calls it column_N",
)  # fmt: skip
HEADER_SPACE = IssueType(
    "header-space", Severity.WARNING, "column name with spaces around it",
    "remove the spaces, or name the column with them",
)  # fmt: skip
HEADER_LIKE_DATA = IssueType(
    "header-like-data", Severity.WARNING, "first line that looks like data, not like column names",
    "write the column names into the first line, or give them: {data_option=header=text,label}",
)  # fmt: skip
ISSUES = (
    DELIMITER_GUESSED, DELIMITER_UNCLEAR, HEADER_MISSING, HEADER_DUPLICATE, HEADER_EMPTY, HEADER_SPACE,
    HEADER_LIKE_DATA,
)  # fmt: skip

_NAMES = """
    text sentence content review document body comment tweet label labels class category target sentiment intent
    star stars sentence1 sentence2 question answer context premise hypothesis text_a text_b text1 text2 query
    passage anchor positive source input output prompt completion response instruction chosen rejected id idx index
    name title date time key value x y image file filename file_name path score split
"""
COMMON_NAMES = frozenset(_NAMES.split())


def find_delimiter(head: bytes, name: str, report: DataReport, delimiter: str | None = None) -> tuple[str, int]:
    """The delimiter of a text, and how many bytes come before its header.

    It is the user's choice, else that of Excel's `sep=;` line, else what the first rows agree on.

    >>> find_delimiter(b"id;score\\n1;2,5\\n2;3,5\\n", "a.csv", DataReport())
    (';', 0)
    >>> find_delimiter(b"sep=|\\na|b\\n", "a.csv", DataReport())
    ('|', 6)
    """
    sep = _SEP_LINE.match(head)
    begin = sep.end() if sep else 0
    if delimiter is not None:
        return _checked_delimiter(delimiter), begin
    if sep:
        return sep[1].decode(), begin
    default = "\t" if ".tsv" in name.lower() else ","
    fits = [fit for fit in (_fit(head, candidate) for candidate in DELIMITERS) if fit is not None]
    if not fits:
        return default, 0
    best = max(fits, key=lambda fit: (fit.score, fit.delimiter == default == "\t", fit.columns))
    rivals = [fit for fit in fits if fit is not best and fit.score >= best.score]
    share = f"{best.agree:.0%} of the first rows have the header's {plural(best.columns, 'field')}"
    word = DELIMITERS[best.delimiter]
    if rivals:
        others = ", ".join(f"{DELIMITERS[fit.delimiter]} ({plural(fit.columns, 'field')})" for fit in rivals)
        message = f"read with the {word} ({share}); {others} would fit as well"
        report.add(DELIMITER_UNCLEAR, message, Location(name, line=1))
    elif best.delimiter != default:
        report.add(DELIMITER_GUESSED, f"read with the {word}: {share}", Location(name, line=1))
    return best.delimiter, 0


def _checked_delimiter(delimiter: str) -> str:
    delimiter = "\t" if delimiter in ("\\t", "tab") else delimiter  # what one can type at a command line
    if len(delimiter) != 1 or not _SEP_LINE.fullmatch(b"sep=" + delimiter.encode("utf-8", "replace")):
        raise UsageError(
            f"{delimiter!r} cannot separate fields", code="delimiter", param="data_option",
            expected="one ASCII character that is no letter, digit, quote or line end",
            hint="{data_option=delimiter=;} or tab",
        )  # fmt: skip
    return delimiter


class _Fit(NamedTuple):
    """How well a delimiter fits: fields of the header, share of rows with as many, and that less misplaced quotes."""

    delimiter: str
    columns: int
    agree: float
    score: float


def _fit(head: bytes, delimiter: str) -> _Fit | None:
    """`None` if the header has one field only."""
    widths: list[int] = []
    position = odd = 0
    while position < len(head) and len(widths) < _RECORDS_TO_COMPARE:
        record = parse_record(head, position, delimiter.encode())
        if record is None or (widths and not record.complete):
            break  # cut off by the end of the head
        position = record.end
        if record.fields != [b""]:
            widths.append(len(record.fields))
            odd += (record.early is not None) + (record.stray is not None)
    if not widths or widths[0] < 2:
        return None
    agree = sum(width == widths[0] for width in widths[1:]) / (len(widths) - 1) if len(widths) > 1 else 1.0
    # A wrong delimiter finds quotes in the middle of fields: "a;b","c" is no semicolon file.
    return _Fit(delimiter, widths[0], agree, agree - min(1.0, odd / len(widths)))


def column_names(fields: Sequence[str], location: Location, report: DataReport) -> list[str]:
    """Names of the columns, all different and none empty; what had to be changed for that is reported.

    >>> column_names(["id", "id", ""], Location("a.csv", line=1), DataReport())
    ['id', 'id_2', 'column_3']
    """
    names: list[str] = []
    first_position = {name: position for position, name in reversed(list(enumerate(fields, 1)))}
    for position, title in enumerate(fields, 1):
        name = title
        if not title.strip():
            report.add(HEADER_EMPTY, f"column {position} has no name", location)
            name = f"column_{position}"
        elif first_position[title] != position:
            message = f"columns {first_position[title]} and {position} are both called {title!r}"
            report.add(HEADER_DUPLICATE, message, location)
            name = f"{title}_{position}"
        elif title != title.strip():
            report.add(HEADER_SPACE, f"column {position} is called {title!r}", location)
        while first_position.setdefault(name, position) != position:
            name += "_"
        names.append(name)
    return names


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ][\d:.+Z-]*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}", re.ASCII)


def like_data(fields: Sequence[str], below: Sequence[Sequence[str]]) -> str:
    """The reason why a header looks like a row of data; empty if it does not.

    Args:
        fields: the first record.
        below: a few records after it.

    >>> like_data(["great film", "1"], [["bad film", "0"]]), like_data(["text", "1"], [["a", "5"]])
    ("'1' is a number, and the rows below have one there too", '')
    """
    kinds = [_kind(title) for title in fields]
    if set(kinds) == {"number"}:
        return "every name is a number"
    rows = [row for row in below if len(row) == len(fields) and list(row) != list(fields)]
    # A column name differs in kind from the values below it; a row of data does not.
    same_kinds = bool(rows) and all(_kind(value) == kind for row in rows for value, kind in zip(row, kinds) if value)
    if same_kinds and set(kinds) != {"text"} and not _are_plausible_names(fields, kinds):
        position = next(position for position, kind in enumerate(kinds) if kind != "text")
        return f"{fields[position]!r} is a {kinds[position]}, and the rows below have one there too"
    for position, title in enumerate(fields):
        if title and any(row[position] == title for row in rows):
            return f"{title!r} is also a value of column {position + 1}"
    return ""


def _kind(title: str) -> str:
    bare = title.strip()
    return "number" if _NUMBER.fullmatch(bare) else "date" if _DATE.fullmatch(bare) else "text"


def _are_plausible_names(fields: Sequence[str], kinds: Sequence[str]) -> bool:
    """Whether a field is what columns are called, or the numbers are consecutive years or positions."""
    numbers = [title.strip() for title, kind in zip(fields, kinds) if kind == "number"]
    are_positions = len(numbers) > 1 and all(number.isdecimal() and len(number) < 9 for number in numbers)
    consecutive = are_positions and all(int(after) - int(before) == 1 for before, after in pairwise(numbers))
    return consecutive or any(title.strip().lower() in COMMON_NAMES for title in fields)
