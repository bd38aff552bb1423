# SPDX-License-Identifier: Apache-2.0
"""The beginning of a CSV file: delimiter, header, declared types; what is needed before a record can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewbit.data.rows.blocks import EMPTY_FILE, encoding_message
from fewbit.data.rows.csv_reader import TYPES, CsvReader
from fewbit.data.rows.dialect import HEADER_MISSING, MOST_COLUMNS, CsvRecord, column_names, find_dialect, parse_record
from fewbit.data.rows.text import TextFile
from fewbit.data.types import DataReport, Location, SampleError
from fewbit.errors import UsageError, nearest, plural

_HEADER_LIMIT = 1 << 20


def open_csv(text: TextFile, report: DataReport, options: Mapping[str, Any]) -> CsvReader | None:
    """Find delimiter and header of a file; `None` after reporting that it has none.

    Args:
        text: the file.
        report: takes issues of the header.
        options: `delimiter`, `header`, `types`.
    """
    delimiter = options.get("delimiter")
    head, is_complete = _head(text)
    if not head.strip():
        report.add(EMPTY_FILE, "there is nothing in it", Location(text.name))
        return None
    dialect = find_dialect(head, text.name, delimiter=delimiter)
    for issue in dialect.issues:
        report.add(issue.type, issue.message, issue.location)
    separator = dialect.delimiter.encode()
    user_names = _name_list(options.get("header"))
    begin, record = dialect.begin, None
    while begin < len(head):  # blank lines may come first
        record = parse_record(head, begin, separator)
        if record is None or record.fields != [b""]:
            break
        begin = record.end
    location = Location(text.name, line=1 + head.count(b"\n", 0, begin))
    if user_names:
        return CsvReader(text, user_names, dialect.delimiter, begin, _types(options.get("types"), user_names))
    reason = _unusable_header(record, is_complete)
    if record is None or reason:
        report.add(HEADER_MISSING, reason, location)
        return None
    fields = [field.decode() for field in record.fields]
    below = _below(head, record.end, separator)
    names, issues = column_names(fields, below, location)
    for issue in issues:
        report.add(issue.type, issue.message, issue.location)
    types = _types(options.get("types"), names)
    return CsvReader(text, names, dialect.delimiter, record.end, types, names != fields)


def _head(text: TextFile) -> tuple[bytes, bool]:
    """The first piece of a text that holds complete records, and whether it is the entire text."""
    head = b""
    try:
        for piece in text.pieces():
            head += piece
            if b"\n" in head or len(head) > _HEADER_LIMIT:
                return head, False
    except SampleError:
        pass  # reported by the scan
    return head, True


def _unusable_header(record: CsvRecord | None, is_complete: bool) -> str:
    """The reason why the first record cannot be the header; empty if it can."""
    if record is None:
        return "the first line opens a quote that is not closed"
    if not record.complete and not is_complete:
        return "the first line is too long"
    if len(record.fields) > MOST_COLUMNS:
        return f"the first line has {plural(len(record.fields), 'field')}"
    joined = b"".join(record.fields)
    if b"\0" in joined:
        return "the first line holds a NUL byte; UTF-16 needs its encoding named"
    try:
        joined.decode()
    except UnicodeDecodeError as error:
        return f"{encoding_message(joined, error)} in the first line; name the encoding, cp1252 for example"
    return ""


def _below(head: bytes, position: int, separator: bytes) -> list[list[str]]:
    rows: list[list[str]] = []
    while position < len(head) and len(rows) < 50:
        record = parse_record(head, position, separator)
        if record is None or not record.complete:
            break
        rows.append([field.decode("utf-8", "replace") for field in record.fields])
        position = record.end
    return rows


def _name_list(names: Any) -> list[str]:
    """Column names as the command line or Python writes them."""
    listed = names.split(",") if isinstance(names, str) else list(names or [])
    return [str(name).strip() for name in listed]


def _types(types: Any, names: Sequence[str]) -> dict[str, str]:
    """Declared types, `label=int,score=float` or a mapping.

    Raises:
        UsageError: there is no such type or column.
    """
    if not types:
        return {}
    pairs = (
        dict(types) if isinstance(types, Mapping) else dict(pair.partition("=")[::2] for pair in str(types).split(","))
    )
    declared = {str(name).strip(): getattr(kind, "__name__", str(kind)).strip() for name, kind in pairs.items()}
    for name, kind in declared.items():
        for noun, value, allowed in (("column", name, names), ("type", kind, TYPES)):
            if value not in allowed:
                raise UsageError(
                    f"no {noun} is called {value!r}", code="data-option", param="data_option",
                    expected=", ".join(nearest(value, allowed) or list(allowed)[:20]),
                    hint="{data_option=types=label=int}",
                )  # fmt: skip
    return {name: kind for name, kind in declared.items() if kind != "str"}
