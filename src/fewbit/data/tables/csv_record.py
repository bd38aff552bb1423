# SPDX-License-Identifier: Apache-2.0
"""One CSV record taken apart, by the same rule as `csv_scan` and one field at a time.

Python's `csv` module is not used: its limit on the size of a field (128 KB) belongs to the whole process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Record(NamedTuple):
    """The fields of a record and what is odd about its quotes.

    Args:
        fields: the values, unquoted.
        stray: the index of the first bare field with a quote in it, or `None`.
        early: the index of the first field with text behind its closing quote, or `None`.
    """

    fields: list[str]
    stray: int | None = None
    early: int | None = None


def parse(text: str, delimiter: str, most: int) -> Record:
    """The fields of one record.

    Args:
        text: the record without its line end; a quote it leaves open closes with it.
        delimiter: one character.
        most: how many fields to take apart; more come back as one, so that nobody can ask for millions.

    >>> parse('1,"say ""hi"", they said",', ",", 9).fields
    ['1', 'say "hi", they said', '']
    """
    if '"' not in text:
        return Record(text.split(delimiter, most))
    fields: list[str] = []
    stray = early = None
    at = 0
    while True:
        if text.startswith('"', at):
            close = _closing(text, at + 1)
            end = text.find(delimiter, close)
            tail = text[close + 1 : end if end >= 0 else len(text)]
            fields.append(text[at + 1 : close].replace('""', '"') + tail)
            if tail and early is None:
                early = len(fields) - 1
        else:
            end = text.find(delimiter, at)
            fields.append(text[at : end if end >= 0 else len(text)])
            if stray is None and '"' in fields[-1]:
                stray = len(fields) - 1
        if end < 0:
            return Record(fields, stray, early)
        at = end + 1
        if len(fields) == most:
            return Record([*fields, text[at:]], stray, early)


def joined(fields: Sequence[str], delimiter: str) -> str:
    """The fields as one record without a line end, quotes only where they are needed.

    Python's `csv` leaves a carriage return bare before version 3.13.

    >>> joined(["a", 'say "hi" now', "b,c", ""], ",")
    'a,"say ""hi"" now","b,c",'
    """
    special = {'"', "\r", "\n", delimiter}
    quoted = ['"' + field.replace('"', '""') + '"' if special & set(field) else field for field in fields]
    return delimiter.join(quoted) or '""'


def _closing(text: str, at: int) -> int:
    """Where the quoted text that begins at `at` is closed: a quote without a second one behind it, or the end."""
    while True:
        quote = text.find('"', at)
        if quote < 0:
            return len(text)
        if not text.startswith('"', quote + 1):
            return quote
        at = quote + 2
