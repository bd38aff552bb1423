# SPDX-License-Identifier: Apache-2.0
"""JSON and JSON Lines files: one object per row, as lines, an array, `{"data": [...]}` or objects one after another.

Which of these a file is, is decided on its first kilobytes, never by its name. Two more are read into memory: columns,
as `{"text": [...], "label": [...]}`, and the nested form of SQuAD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from fewbit.data.rows import json_reader, shards, text
from fewbit.data.rows.copy import write_text_tables
from fewbit.data.rows.json_reader import TOKEN, JsonReader
from fewbit.data.rows.shards import IGNORED_FILE, RowFile, detect_tables, row_files, suffix_of
from fewbit.data.rows.source import ROW_ISSUES, ROW_OPTIONS, RowSource, row_source
from fewbit.data.rows.table import ListTable, Row
from fewbit.data.rows.text import TextFile, open_text, text_head
from fewbit.data.rows.text_table import Shard, TextTable
from fewbit.data.types import DataReport, Depth, Detection, Files, Format, FormatOption, IssueType, Location, Severity

SUFFIXES = (".jsonl", ".ndjson", ".json")
ENOUGH = 1 << 20
"""How much of a text is read at most to find its shape."""
_MOST_KEYS = 64
_COCO = frozenset({"images", "annotations"})
_BOXES = re.compile(rb'"(?:file_name|bbox)"\s*:')  # of a long file only one of the two arrays is seen

COCO_JSON = IssueType(
    "coco-json", Severity.ERROR, "COCO annotations, which are no rows",
    "open the folder that holds images and annotations", "raise",
)  # fmt: skip
NOT_LINES = IssueType("not-lines", Severity.NOTE, "file named as lines that is not", "rename it to .json")
NOT_ROWS = IssueType(
    "not-rows", Severity.WARNING, "single object, taken as one row", "write an array of rows, or one object per line"
)
ROWS_UNDER_DATA = IssueType(
    "rows-under-data", Severity.NOTE, 'rows in the array under "data"', "write the array alone to be clear"
)
COLUMNS_AS_OBJECT = IssueType(
    "columns-as-object", Severity.NOTE, "object of columns, read as rows", "write an array of rows to be clear"
)
COLUMNS_UNEVEN = IssueType(
    "columns-uneven", Severity.ERROR, "columns of different lengths", "write as many values into each column", "raise"
)


class Shape(NamedTuple):
    """What a JSON text is."""

    kind: str  # `lines`, `array`, `data` (an object around the array), `values` (objects one after another)
    begin: int = 0  # where the elements of an array begin
    alone: bool = False  # the text is a single object
    keys: tuple[str, ...] = ()  # of that object
    coco: bool = False  # it is a COCO annotation file


def detect(files: Files) -> Detection | None:
    """JSON files by their names; not descriptions, annotations of images or single objects."""
    detection = detect_tables(files, SUFFIXES, "JSON")
    if detection is None or detection.confidence <= 0.5:
        return detection
    name = next(name for name in files.names() if shards.is_row_file(name, SUFFIXES))
    text_file = open_text(files, name, DataReport())
    shape = _shape(text_file) if text_file is not None else Shape("lines")
    if shape.coco:
        return None
    is_single = shape.alone and shape.kind != "data" and suffix_of(name) == ".json"
    if text_file is None or not is_single or _rows_in_memory(text_file, shape) is not None:
        return detection
    if len(files.names()) > 1 or _uneven(text_file, shape) is None:
        return Detection(0.3, "a single JSON object")
    return detection


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> RowSource:
    """Find out how each file is written; with `full` depth read every row."""
    table_shards: list[Shard] = []
    listed = row_files(files, SUFFIXES, report)
    for file in listed:
        text_file = open_text(files, file.name, report, options.get("encoding"))
        if text_file is None:
            continue
        shape = _shape(text_file)
        if len(listed) == 1 and (rows := _rows_in_memory(text_file, shape)) is not None:
            if shape.kind != "data":
                report.add(COLUMNS_AS_OBJECT, f"{len(rows):,} rows of {', '.join(shape.keys[:6])}", Location(file.name))
            table = _MemoryTable(rows, files, file)
            return row_source(table, files, report, depth=depth, options=options)
        if len(listed) == 1 and (lengths := _uneven(text_file, shape)) is not None:
            message = ", ".join(f"{name} has {length:,}" for name, length in list(lengths.items())[:6])
            report.add(COLUMNS_UNEVEN, message, Location(file.name))
            return row_source(_MemoryTable([], files, file), files, report, depth=depth, options=options)
        if len(listed) > 1 and shape.alone and suffix_of(file.name) == ".json" and shape.kind != "data":
            report.add(IGNORED_FILE, "a single object next to files of rows", Location(file.name))
        elif _report_shape(shape, file.name, report):
            layout = "array" if shape.kind == "data" else shape.kind
            reader = JsonReader(text_file, layout, shape.begin, shape.kind == "data")  # type: ignore[arg-type]
            table_shards.append(Shard(reader, file.split))
    return row_source(TextTable(table_shards, report), files, report, depth=depth, options=options)


class _MemoryTable(ListTable):
    """Rows of one file, which is copied as it is."""

    def __init__(self, rows: list[Row], files: Files, file: RowFile):
        super().__init__(rows, file.name, file.split)
        self.files = files


def _shape(text_file: TextFile) -> Shape:
    """The shape of a text, from as much of it as is needed."""
    size = text.HEAD
    while True:
        head, is_complete = text_head(text_file.pieces(), size)
        shape = find_shape(head, is_complete)
        if shape is not None:
            return shape
        size = min(2 * len(head), ENOUGH)


def find_shape(head: bytes, is_complete: bool) -> Shape | None:
    """What a text is by its beginning; `None` if more of it is needed.

    >>> find_shape(b'[{"a": 1}]', True).kind, find_shape(b'{"a": 1}\\n{"a": 2}\\n', True).kind
    ('array', 'lines')
    >>> find_shape(b'{"version": 2, "data": [{"a": 1}]}', True).begin
    24
    """
    body = head.lstrip(b" \t\r\n")
    start = len(head) - len(body)
    if body.startswith(b"["):
        return Shape("array", start + 1)
    if not body.startswith(b"{"):
        return Shape("lines")
    end, data, keys = _first_object(head, start)
    holds_rows = data is not None and head[data:].lstrip()[:1] in (b"{", b"]")
    if end is None:  # the first value is longer than what was read, or never ends
        if not is_complete and len(head) < ENOUGH:
            return None
        coco = bool(_COCO & set(keys)) and bool(_BOXES.search(head))
        return Shape("data", data or 0, False, keys, coco) if holds_rows else Shape("lines", 0, False, keys, coco)
    alone = is_complete and not head[end:].strip()
    coco = alone and set(keys) >= _COCO
    keys = keys if alone else ()
    if alone and holds_rows:
        return Shape("data", data or 0, False, keys, coco)
    over_lines = b"\n" in head[start:end] and _loaded(head[start:end]) is not None  # else damage swallowed a line
    return Shape("values" if over_lines else "lines", 0, alone, keys, coco)


def _loaded(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _first_object(head: bytes, start: int) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Where the first object ends, where the array under its own key `data` begins, and its own keys."""
    keys: list[str] = []
    string, before, depth, data = b"", b"", 0, None
    for token in TOKEN.finditer(head, start):
        sign = token.group()
        if sign.startswith(b'"'):
            if not token[1]:  # it is not closed
                break
            string = sign
        elif sign == b":" and depth == 1 and len(keys) < _MOST_KEYS:
            keys.append(string[1:-1].decode(errors="replace"))
        elif sign in b"{[":
            is_value = before == b":" and depth == 1
            if is_value and sign == b"[" and string == b'"data"' and data is None:
                data = token.end()
            depth += 1
        elif sign in b"}]":
            depth -= 1
            if not depth:
                return token.end(), data, tuple(keys)
        before = sign
    return None, data, tuple(keys)


def _rows_in_memory(text_file: TextFile, shape: Shape) -> list[Row] | None:
    """The rows of a file of columns, or of nested questions; `None` if it is neither, or too long for memory."""
    maybe_columns = shape.kind in ("lines", "values") and len(shape.keys) > 1 and suffix_of(text_file.name) == ".json"
    head, _ = text_head(text_file.pieces(), text.HEAD)
    if shape.coco or not (maybe_columns or (shape.kind == "data" and b'"paragraphs"' in head)):
        return None
    content, is_complete = text_head(text_file.pieces(), text.MOST_RECORD)
    value = _loaded(content) if is_complete else None
    if not isinstance(value, dict):
        return None
    return _flattened(value.get("data")) if shape.kind == "data" else _transposed(value)


def _uneven(text_file: TextFile, shape: Shape) -> dict[str, int] | None:
    """The length of each column of a file of lists that are not equally long; `None` if it is something else."""
    if shape.coco or not shape.alone or shape.kind == "data" or len(shape.keys) < 2:
        return None
    content, is_complete = text_head(text_file.pieces(), text.MOST_RECORD)
    value = _loaded(content) if is_complete and suffix_of(text_file.name) == ".json" else None
    if not isinstance(value, dict) or not all(isinstance(column, list) for column in value.values()):
        return None
    lengths = {str(name): len(column) for name, column in value.items()}
    return lengths if len(set(lengths.values())) > 1 else None


def _transposed(columns: Mapping[str, Any]) -> list[Row] | None:
    """Rows of columns, which are lists of one length, or objects with the same keys, as pandas writes them.

    >>> _transposed({"a": [1, 2], "b": ["x", "y"]}) == _transposed({"a": {"0": 1, "1": 2}, "b": {"0": "x", "1": "y"}})
    True
    >>> _transposed({"a": [1, 2], "b": [1]}), _transposed({"name": "x"})
    (None, None)
    """
    values = list(columns.values())
    if values and all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
        values = [list(value.values()) for value in values]
    if not values or not all(isinstance(value, list) for value in values) or len({len(v) for v in values}) != 1:
        return None
    return [dict(zip(columns, fields)) for fields in zip(*values)]


def _flattened(articles: Any) -> list[Row] | None:
    """Rows of question, context and answers from `data[].paragraphs[].qas[]`; `None` if it is something else."""
    rows: list[Row] = []
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers") or []
                    columns = {
                        "text": [answer["text"] for answer in answers],
                        "answer_start": [answer["answer_start"] for answer in answers],
                    }
                    row = {"id": question.get("id"), "title": article.get("title"), "question": question["question"]}
                    rows.append({**row, "context": paragraph["context"], "answers": columns})
    except (TypeError, KeyError, AttributeError):
        return None
    return rows


def _report_shape(shape: Shape, name: str, report: DataReport) -> bool:
    """Report what is unusual about a file; whether it holds rows."""
    location = Location(name, line=1)
    keys = ", ".join(shape.keys[:6])
    if shape.coco:
        report.add(COCO_JSON, f"its keys are {keys}", location)
        return False
    if shape.kind == "data":
        unread = ", ".join([key for key in shape.keys if key != "data"][:8])
        report.add(ROWS_UNDER_DATA, f"not read: {unread}" if unread else "nothing else is there", location)
    elif shape.kind == "array" and suffix_of(name) in (".jsonl", ".ndjson"):
        report.add(NOT_LINES, "it is one array", location)
    elif shape.alone and suffix_of(name) == ".json":
        report.add(NOT_ROWS, f"its keys are {keys}", location)
    return True


def example(folder: Path) -> Path:
    """Chats as lines."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.jsonl").open("wb") as stream:
        for number in range(12):
            question, answer = f"What is {number} + {number}?", f"It is {2 * number}."
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            stream.write(orjson.dumps({"id": number, "messages": messages}) + b"\n")
    return folder


FORMAT = Format(
    "json", "JSON and JSON Lines files", 'train.jsonl with one object per line, such as {"text": …, "label": …}',
    (
        *shards.ISSUES, *text.ISSUES, *json_reader.ISSUES, COCO_JSON, NOT_LINES, NOT_ROWS, ROWS_UNDER_DATA,
        COLUMNS_AS_OBJECT, COLUMNS_UNEVEN, *ROW_ISSUES,
    ),
    detect, scan, example,
    (FormatOption("encoding", "of files that are not UTF-8, such as cp1252"), *ROW_OPTIONS), write_text_tables, "row",
    SUFFIXES,
)  # fmt: skip
