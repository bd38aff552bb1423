# SPDX-License-Identifier: Apache-2.0
"""Every fault that only a CSV or TSV file can have."""

from __future__ import annotations

from fewbit.data.findings import Code, Severity

CODES = {
    "header-missing": Code(
        Severity.ERROR,
        "the file has no usable header",
        "write the column names into the first line",
        policy="raise",
    ),
    "header-duplicate": Code(
        Severity.ERROR,
        "two columns have the same name",
        "rename one of them; policy `repair` numbers them",
        policy="raise",
        policies=("repair",),
    ),
    "header-empty": Code(
        Severity.ERROR,
        "a column has no name",
        "name it, or remove the trailing delimiter; policy `repair` calls it column_N",
        policy="raise",
        policies=("repair",),
    ),
    "header-space": Code(
        Severity.WARN, "a column's name has spaces round it", "remove them, or ask for the name with its spaces"
    ),
    "header-like-data": Code(
        Severity.WARN, "the first line looks like data, not like names", "put a line with the column names above it"
    ),
    "delimiter-guessed": Code(
        Severity.INFO, "the delimiter was found by looking at the first rows", "pass `delimiter=` to be sure"
    ),
    "delimiter-unclear": Code(
        Severity.WARN, "more than one delimiter fits the first rows", "pass `delimiter=` to choose"
    ),
    "row-short": Code(
        Severity.ERROR,
        "a row has fewer fields than the header",
        "add what is missing; policy `drop` leaves the row out, `repair` fills it with empty text",
        policy="raise",
        policies=("drop", "repair"),
    ),
    "row-long": Code(
        Severity.ERROR,
        "a row has more fields than the header",
        "put quotes round the field that holds the delimiter; policy `drop` leaves the row out, `repair` cuts it",
        policy="raise",
        policies=("drop", "repair"),
    ),
    "trailing-delimiter": Code(
        Severity.WARN,
        "a row ends in delimiters with nothing behind them",
        "remove them; readers pass over them",
        policy="repair",
        policies=("drop", "raise"),
    ),
    "quote-stray": Code(
        Severity.WARN,
        "a quote stands inside a field without quotes round it",
        "put quotes round the field and double the one inside; it is read as it stands",
        policy="keep",
        policies=("drop", "raise"),
    ),
    "quote-early": Code(
        Severity.ERROR,
        "text follows the quote that closes a field",
        'double the quotes inside the field ("" for each "); policy `keep` takes both parts, `drop` leaves the row out',
        policy="raise",
        policies=("drop", "keep"),
    ),
    "quote-unclosed": Code(
        Severity.ERROR,
        "a quote is opened and never closed",
        "close it, or double it if it belongs to the text; policy `drop` goes on at the next line",
        policy="raise",
        policies=("drop",),
    ),
    "bad-cast": Code(
        Severity.ERROR,
        "a value is not of the type its column was declared to have",
        "correct the value or the declared type; policy `drop` leaves the row out, `repair` makes it None",
        policy="raise",
        policies=("drop", "repair"),
    ),
}
