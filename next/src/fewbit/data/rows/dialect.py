# SPDX-License-Identifier: Apache-2.0
"""How a CSV file is written: its delimiter, its header, and the parser of one record that may be wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fewbit.data.types import Issue, IssueType, Location, Severity
from fewbit.errors import UsageError, plural

DELIMITERS = (",", "\t", ";", "|")
MOST_COLUMNS = 1 << 14
_DELIMITER_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
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
    "header-missing", Severity.ERROR, "CSV file without a usable header", "write the column names into the first line",
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
    "header-space",
    Severity.WARNING,
    "column name with spaces around it",
    "remove the spaces, or name the column with them",
)
HEADER_LIKE_DATA = IssueType(
    "header-like-data", Severity.WARNING, "first line that looks like data, not like column names",
    "write the column names into the first line, or give them: {data_option=header=text,label}",
)  # fmt: skip
ISSUES = (
    DELIMITER_GUESSED, DELIMITER_UNCLEAR, HEADER_MISSING, HEADER_DUPLICATE, HEADER_EMPTY, HEADER_SPACE,
    HEADER_LIKE_DATA,
)  # fmt: skip

_COMMON = """
    text sentence content review document body comment tweet label labels class category target sentiment intent
    star stars sentence1 sentence2 question answer context premise hypothesis text_a text_b text1 text2 query
    passage anchor positive source input output prompt completion response instruction chosen rejected id idx index
    name title date time key value x y image file filename file_name path score
"""
COMMON_NAMES = frozenset(_COMMON.split())
"""Common names of dataset columns."""


class CsvRecord(NamedTuple):
    """One record of a CSV file.

    Args:
        fields: undecoded values.
        end: position after its line end.
        complete: its line end was seen.
        early: the first field with text after its closing quote.
        stray: the first field without quotes around it that holds one.
    """

    fields: list[bytes]
    end: int
    complete: bool
    early: int | None = None
    stray: int | None = None


def parse_record(data: bytes, position: int, delimiter: bytes) -> CsvRecord | None:
    """One record from a position on; `None` if a quote is opened and not closed.

    Quotes open a field only at its start, and a line ends at LF, so this reads what the `csv` module refuses.

    >>> parse_record(b'a,"b ""c""\\n",5" disk\\nnext', 0, b",").fields
    [b'a', b'b "c"\\n', b'5" disk']
    """
    fields: list[bytes] = []
    early = stray = None
    while True:
        if data.startswith(b'"', position):
            close = position
            while True:
                close = data.find(b'"', close + 1)
                if close < 0:
                    return None
                if not data.startswith(b'"', close + 1):
                    break
                close += 1
            value, position = data[position + 1 : close].replace(b'""', b'"'), close + 1
        else:
            value = None
        line_end = data.find(b"\n", position)
        stop = len(data) if line_end < 0 else line_end
        cut = data.find(delimiter, position, stop)
        bare = data[position : stop if cut < 0 else cut]
        if cut < 0 and bare.endswith(b"\r"):
            bare = bare[:-1]
        if value is None:
            value = bare
            if b'"' in bare and stray is None:
                stray = len(fields)
        elif bare:
            value += bare
            early = len(fields) if early is None else early
        fields.append(value)
        if cut < 0:
            return CsvRecord(fields, stop + (line_end >= 0), line_end >= 0, early, stray)
        position = cut + len(delimiter)


class Dialect(NamedTuple):
    """How to read a CSV file: the delimiter, and how many bytes come before the header."""

    delimiter: str
    begin: int
    issues: list[Issue]


def find_dialect(head: bytes, name: str, *, delimiter: str | None = None) -> Dialect:
    """The delimiter of a text: the user's choice, Excel's `sep=;` line, or what the first rows agree on.

    Args:
        head: the first kilobytes.
        name: of the file; `.tsv` promises tabs.
        delimiter: the user's choice.

    >>> find_dialect(b"id;score\\n1;2,5\\n2;3,5\\n", "a.csv").delimiter
    ';'
    >>> find_dialect(b"sep=|\\na|b\\n", "a.csv")[:2]
    ('|', 6)
    """
    sep = _SEP_LINE.match(head)
    begin = sep.end() if sep else 0
    if delimiter is not None:
        return Dialect(checked_delimiter(delimiter), begin, [])
    if sep:
        return Dialect(sep[1].decode(), begin, [])
    default = "\t" if ".tsv" in name.lower() else ","
    fits = [fit for fit in (_fit(head, candidate) for candidate in DELIMITERS) if fit is not None]
    if not fits:
        return Dialect(default, 0, [])
    best = max(fits, key=lambda fit: (fit.score, fit.delimiter == default == "\t", fit.columns))
    rivals = [fit for fit in fits if fit is not best and fit.score >= best.score]
    share = f"{best.agree:.0%} of the first rows have the header's {plural(best.columns, 'field')}"
    issues = []
    if rivals:
        alternatives = ", ".join(
            f"{_DELIMITER_NAMES[fit.delimiter]} ({plural(fit.columns, 'field')})" for fit in rivals
        )
        message = f"read with the {_DELIMITER_NAMES[best.delimiter]} ({share}); {alternatives} would fit as well"
        issues.append(Issue(DELIMITER_UNCLEAR, message, Location(name, line=1)))
    elif best.delimiter != default:
        message = f"read with the {_DELIMITER_NAMES[best.delimiter]}: {share}"
        issues.append(Issue(DELIMITER_GUESSED, message, Location(name, line=1)))
    return Dialect(best.delimiter, 0, issues)


def checked_delimiter(delimiter: str) -> str:
    """A delimiter the user chose.

    Raises:
        UsageError: it cannot separate fields.
    """
    delimiter = "\t" if delimiter in ("\\t", "tab") else delimiter  # what one can type at a command line
    if len(delimiter) != 1 or not _SEP_LINE.fullmatch(b"sep=" + delimiter.encode("utf-8", "replace")):
        raise UsageError(
            f"{delimiter!r} cannot separate fields", code="delimiter", param="data_option",
            expected="one ASCII character that is no letter, digit, quote or line end",
            hint="{data_option=delimiter=;} or tab",
        )  # fmt: skip
    return delimiter


class _Fit(NamedTuple):
    """How well a delimiter fits: fields of the header, share of rows with as many, misplaced quotes per row."""

    delimiter: str
    columns: int
    agree: float
    odd: float

    @property
    def score(self) -> float:
        # A wrong delimiter finds quotes in the middle of fields: "a;b","c" is no semicolon file.
        return self.agree - min(1.0, self.odd)


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
    return _Fit(delimiter, widths[0], agree, odd / len(widths))


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ][\d:.+Z-]*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}", re.ASCII)


def column_names(
    fields: Sequence[str], below: Sequence[Sequence[str]], location: Location
) -> tuple[list[str], list[Issue]]:
    """Names of the columns, all different and none empty, and what had to be changed for that.

    Args:
        fields: the first record.
        below: a few records after it.
        location: of the header.

    >>> names, issues = column_names(["id", "id", ""], [], Location("a.csv", line=1))
    >>> names, [issue.message for issue in issues]
    (['id', 'id_2', 'column_3'], ["columns 1 and 2 are both called 'id'", 'column 3 has no name'])
    """
    issues: list[Issue] = []
    names: list[str] = []
    first_position = {name: position for position, name in reversed(list(enumerate(fields)))}
    for position, title in enumerate(fields):
        name = title
        if not title.strip():
            issues.append(Issue(HEADER_EMPTY, f"column {position + 1} has no name", location))
            name = _free(f"column_{position + 1}", first_position)
        elif first_position[title] != position:
            message = f"columns {first_position[title] + 1} and {position + 1} are both called {title!r}"
            issues.append(Issue(HEADER_DUPLICATE, message, location))
            name = _free(f"{title}_{position + 1}", first_position)
        elif title != title.strip():
            issues.append(Issue(HEADER_SPACE, f"column {position + 1} is called {title!r}", location))
        first_position.setdefault(name, position)
        names.append(name)
    if reason := _like_data(fields, below):
        issues.append(Issue(HEADER_LIKE_DATA, reason, location))
    return names, issues


def _free(name: str, first_position: dict[str, int]) -> str:
    while name in first_position:
        name += "_"
    return name


def _like_data(fields: Sequence[str], below: Sequence[Sequence[str]]) -> str:
    """The reason why the header looks like data; empty if it does not."""
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
