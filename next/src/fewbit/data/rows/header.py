# SPDX-License-Identifier: Apache-2.0
"""The beginning of a CSV file: its delimiter and its column names. Workbooks have the same rules for names."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
INDEX_COLUMN = IssueType(
    "index-column", Severity.NOTE, "first column without a name, as pandas writes an index",
    "nothing to do; `to_csv(index=False)` does not write it",
)  # fmt: skip
HEADER_SPACE = IssueType(
    "header-space", Severity.NOTE, "column name with spaces around it, which are not part of the name",
    "remove the spaces",
)  # fmt: skip
HEADER_LIKE_DATA = IssueType(
    "header-like-data", Severity.WARNING, "first line that looks like data, not like column names",
    "write the column names into the first line, or give them: {data_option=header=text,label}",
)  # fmt: skip
ISSUES = (
    DELIMITER_GUESSED, DELIMITER_UNCLEAR, HEADER_MISSING, HEADER_DUPLICATE, HEADER_EMPTY, INDEX_COLUMN, HEADER_SPACE,
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

    >>> column_names(["id", " id", ""], Location("a.csv", line=1), DataReport())
    ['id', 'id_2', 'column_3']
    """
    names: list[str] = []
    for position, title in enumerate(fields, 1):
        if title.strip() and title != title.strip():
            report.add(HEADER_SPACE, f"column {position} is called {title!r}", location)
    fields = [title.strip() for title in fields]
    first_position = {name: position for position, name in reversed(list(enumerate(fields, 1)))}
    for position, title in enumerate(fields, 1):
        name = title
        if not title and position == 1 and len(fields) > 1 and all(fields[1:]):
            report.add(INDEX_COLUMN, "column 1 has no name", location, samples=0)
            name = "column_1"
        elif not title:
            report.add(HEADER_EMPTY, f"column {position} has no name", location)
            name = f"column_{position}"
        elif first_position[title] != position:
            message = f"columns {first_position[title]} and {position} are both called {title!r}"
            report.add(HEADER_DUPLICATE, message, location)
            name = f"{title}_{position}"
        while first_position.setdefault(name, position) != position:
            name += "_"
        names.append(name)
    return names


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ][\d:.+Z-]*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}", re.ASCII)


def like_data(fields: Sequence[str], below: Sequence[Sequence[str]]) -> str:
    """The reason why a first record looks like the rows below it; empty if it looks like names of columns.

    >>> like_data(["great film", "1"], [["bad film", "0"]]), like_data(["text", "1"], [["a", "5"]])
    ("'1' is a number, like every value below it", '')
    """
    rows = [row for row in below if len(row) == len(fields) and list(row) != list(fields)]
    columns = [set(column) - {""} for column in zip(*rows)]
    odd = next((title for title in fields if _kind(title) != "text"), None)
    if all(_kind(title) == "number" for title in fields):
        return "every name is a number"
    # The name of a column differs in kind from its values.
    like_columns = all({_kind(title)} >= set(map(_kind, column)) for title, column in zip(fields, columns))
    if odd is not None and columns and like_columns and not _are_usual_names(fields):
        return f"{odd!r} is a {_kind(odd)}, like every value below it"
    repeated = [title for title, column in zip(fields, columns) if title in column]
    return f"{repeated[0]!r} is also a value of its column" if repeated else ""


def _kind(title: str) -> str:
    bare = title.strip()
    return "number" if _NUMBER.fullmatch(bare) else "date" if _DATE.fullmatch(bare) else "text"


def _are_usual_names(fields: Sequence[str]) -> bool:
    """Whether columns are often called so, or their names are consecutive years or positions."""
    if not COMMON_NAMES.isdisjoint(title.strip().lower() for title in fields):
        return True
    numbers = [title.strip() for title in fields if _kind(title) == "number"]
    if len(numbers) < 2 or not all(re.fullmatch("[0-9]{1,8}", number) for number in numbers):
        return False
    return list(map(int, numbers)) == list(range(int(numbers[0]), int(numbers[0]) + len(numbers)))
