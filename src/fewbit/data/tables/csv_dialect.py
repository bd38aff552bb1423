# SPDX-License-Identifier: Apache-2.0
"""What separates the fields of a CSV file: the user's word, Excel's `sep=;` line, or what the first rows agree on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fewbit.data.tables.csv_scan import tokens
from fewbit.data.tables.table import Fault
from fewbit.errors import UsageError

DELIMITERS = (",", "\t", ";", "|")
_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_SEP = re.compile(rb'"?sep=([!#-*,/:-@\[-^`{-~\t ])"?(?:[\r\n]|$)', re.IGNORECASE)
_RECORDS = 200


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to read a CSV file.

    Args:
        delimiter: one character.
        lead: how many records come before the first row: the header, and the `sep=` line if there is one.
        notes: what is to say about the choice.
    """

    delimiter: str
    lead: int = 1
    notes: tuple[Fault, ...] = ()


def checked(delimiter: str) -> str:
    """The user's delimiter, if it can be one.

    Raises:
        UsageError: it is not one ASCII character, or one that a field or a line may hold.
    """
    delimiter = "\t" if delimiter in ("\\t", "tab") else delimiter  # what one can type at a command line
    if len(delimiter) != 1 or not _SEP.fullmatch(b"sep=" + delimiter.encode()):
        raise UsageError(
            f"{delimiter!r} cannot separate fields",
            where="delimiter",
            expected="one ASCII character that is no letter, quote or line end and no part of a number",
            try_="delimiter=',' or ';' or '|' or '\\t'",
        )
    return delimiter


def sniff(head: bytes, *, usual: str = ",", chosen: str | None = None) -> Dialect:
    """Find the delimiter of a text by its beginning.

    Args:
        head: the first kilobytes.
        usual: what the file's name promises: a tab for `.tsv`.
        chosen: the user's own word.

    >>> sniff(b"id;price\\n1;2,5\\n2;3,5\\n").delimiter
    ';'
    >>> sniff(b"sep=|\\na|b\\n")
    Dialect(delimiter='|', lead=2, notes=())
    """
    sep = _SEP.match(head)
    lead = 2 if sep else 1
    if chosen is not None:
        return Dialect(checked(chosen), lead)
    if sep:
        return Dialect(sep[1].decode(), lead)
    candidates = [found for found in (_fit(head, delimiter) for delimiter in DELIMITERS) if found is not None]
    if not candidates:
        return Dialect(usual)
    best = max(candidates, key=lambda fit: (fit.score, fit.delimiter == usual and usual == "\t", fit.columns))
    return Dialect(best.delimiter, notes=tuple(_notes(best, candidates, usual)))


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well a delimiter fits: columns of the header, the share of rows that have as many, odd quotes a row."""

    delimiter: str
    columns: int
    agree: float
    odd: float

    @property
    def score(self) -> float:
        # The wrong delimiter finds quotes in the middle of fields: "a;b","c" is not two fields of a semicolon file.
        return self.agree - min(1.0, self.odd)


def _fit(head: bytes, delimiter: str) -> _Fit | None:
    """`None` for a delimiter that does not occur in the header."""
    found = tokens(head, ord(delimiter))
    if not len(found.closing):
        found = tokens(head + b"\n", ord(delimiter))
    first = np.concatenate((np.zeros(1, np.int64), found.closing + 1))
    counts = np.diff(first)
    starts = np.concatenate((np.zeros(1, np.int64), found.after))[first[:-1]]
    counts = counts[starts != found.ends[first[:-1]]] if len(counts) else counts
    counts = counts[:_RECORDS]
    if not len(counts) or counts[0] < 2:
        return None
    agree = float((counts[1:] == counts[0]).mean()) if len(counts) > 1 else 1.0
    return _Fit(delimiter, int(counts[0]), agree, (len(found.stray) + len(found.early)) / len(first))


def _notes(best: _Fit, candidates: Sequence[_Fit], usual: str) -> list[Fault]:
    rivals = [fit for fit in candidates if fit is not best and fit.score >= best.score]
    share = f"{best.agree:.0%} of the first rows have the header's {best.columns} fields"
    if rivals:
        others = ", ".join(f"{_NAMES[fit.delimiter]} ({fit.columns} fields)" for fit in rivals)
        message = f"read with the {_NAMES[best.delimiter]} as delimiter ({share}); as well would fit: {others}"
        return [Fault("delimiter-unclear", message, 1)]
    if best.delimiter != usual:
        return [Fault("delimiter-guessed", f"read with the {_NAMES[best.delimiter]} as delimiter: {share}", 1)]
    return []
