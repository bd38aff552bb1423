# SPDX-License-Identifier: Apache-2.0
"""JSON and JSON Lines files: one object per row, as lines, an array, `{"data": [...]}` or objects one after another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.data.audio import AUDIO_ISSUES
from fewbit.data.images.decode import IMAGE_ISSUES
from fewbit.data.rows import blocks, json_reader, json_shape, shards, text
from fewbit.data.rows.json_reader import JsonReader
from fewbit.data.rows.json_shape import ENOUGH, Shape, find_shape
from fewbit.data.rows.meaning import ROW_ISSUES, ROW_OPTIONS, RowSource, row_source
from fewbit.data.rows.shards import IGNORED_FILE, detect_tables, row_files
from fewbit.data.rows.text import TextFile, open_text
from fewbit.data.rows.text_table import Shard, TextTable
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    IssueType,
    Location,
    SampleError,
    Severity,
)

SUFFIXES = (".jsonl", ".ndjson", ".json")
_HEAD = 1 << 16

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


def detect(files: Files) -> Detection | None:
    """JSON files by their names; not descriptions, annotations of images or single objects."""
    detection = detect_tables(files, SUFFIXES, "JSON")
    if detection is None or detection.confidence <= 0.5:
        return detection
    names = [name for name in files.names() if shards.is_row_file(name, SUFFIXES)]
    try:
        text_file, _ = open_text(files, names[0])
        shape = _shape(text_file)
    except SampleError:
        return detection
    if shape.coco:
        return None
    if shape.alone and shape.kind != "data" and shards.suffix_of(names[0]) == ".json":
        return Detection(0.3, "a single JSON object")
    return detection


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> RowSource:
    """Find out how each file is written; with `full` depth read every row."""
    table_shards: list[Shard] = []
    listed = row_files(files, SUFFIXES, report)
    for file in listed:
        try:
            text_file, issues = open_text(files, file.name, options.get("encoding"))
            shape = _shape(text_file)
        except SampleError as error:
            report.add(error.issue.type, error.issue.message, error.issue.location)
            continue
        if len(listed) > 1 and shape.alone and shards.suffix_of(file.name) == ".json" and shape.kind != "data":
            report.add(IGNORED_FILE, "a single object next to files of rows", Location(file.name))
            continue
        for issue in issues:
            report.add(issue.type, issue.message, issue.location)
        if _report_shape(shape, file.name, report):
            table_shards.append(Shard(JsonReader(text_file, shape), file.split))
    return row_source(TextTable(table_shards, report), files, report, depth=depth, options=options)


def _shape(text_file: TextFile) -> Shape:
    """The shape of a text, from as much of it as is needed."""
    head, shape, needed = b"", None, _HEAD
    for piece in text_file.pieces():
        head += piece
        if len(head) >= needed:
            shape = find_shape(head, False)
            if shape is not None:
                return shape
            needed = min(2 * len(head), ENOUGH)
    return find_shape(head, True) or Shape("lines")


def _report_shape(shape: Shape, name: str, report: DataReport) -> bool:
    """Report what is unusual about a file; whether it holds rows."""
    location = Location(name, line=1)
    if shape.coco:
        report.add(COCO_JSON, f"its keys are {', '.join(shape.keys[:6])}", location)
        return False
    if shape.kind == "data":
        unread = [key for key in shape.keys if key != "data"]
        report.add(
            ROWS_UNDER_DATA, f"not read: {', '.join(unread[:8])}" if unread else "nothing else is there", location
        )
    elif shape.kind == "array" and shards.suffix_of(name) in (".jsonl", ".ndjson"):
        report.add(NOT_LINES, "it is one array", location)
    elif shape.alone and shards.suffix_of(name) == ".json":
        report.add(NOT_ROWS, f"its keys are {', '.join(shape.keys[:6])}", location)
    return True


def write(source: RowSource, folder: Path) -> list[str]:
    """A copy without the rows that cannot be used."""
    from fewbit.data.rows.copy import write_tables

    return write_tables(source, folder)


def example(folder: Path) -> Path:
    """Chats as lines."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.jsonl").open("w", encoding="utf-8", newline="") as stream:
        for number in range(12):
            question, answer = f"What is {number} + {number}?", f"It is {2 * number}."
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            stream.write(json.dumps({"id": number, "messages": messages}) + "\n")
    return folder


FORMAT = Format(
    "json", "JSON and JSON Lines files", 'train.jsonl with one object per line, such as {"text": …, "label": …}',
    (
        *shards.ISSUES, *text.ISSUES, *blocks.ISSUES, *json_shape.ISSUES, *json_reader.ISSUES, COCO_JSON, NOT_LINES,
        NOT_ROWS, ROWS_UNDER_DATA, *ROW_ISSUES, *IMAGE_ISSUES, *AUDIO_ISSUES,
    ),
    detect, scan, example,
    (FormatOption("encoding", "of files that are not UTF-8, such as cp1252"), *ROW_OPTIONS), write, "row",
)  # fmt: skip
