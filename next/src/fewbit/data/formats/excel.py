# SPDX-License-Identifier: Apache-2.0
"""Excel and OpenDocument workbooks through python-calamine: the first row that is not empty names the columns.

Sheets named after splits are these splits. A location has the number of the row as Excel shows it.
"""

from __future__ import annotations

import datetime
import io
import zipfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewbit.data.formats._workbook import write_workbook
from fewbit.data.rows import shards
from fewbit.data.rows.dialect import HEADER_DUPLICATE, HEADER_EMPTY, HEADER_MISSING, MOST_COLUMNS
from fewbit.data.rows.meaning import ROW_ISSUES, ROW_OPTIONS, row_source
from fewbit.data.rows.shards import RowFile, row_files
from fewbit.data.rows.table import Row, union
from fewbit.data.rows.text import EXPANSION_BOMB
from fewbit.data.splits import SPLITS, split_of_file
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    Issue,
    IssueType,
    Location,
    SampleError,
    Severity,
    Source,
)
from fewbit.errors import UsageError, nearest, plural, require

SUFFIXES = (".xlsx", ".xlsm", ".xls", ".xlsb", ".ods")
MOST_FILE, MOST_UNPACKED = 256 << 20, 1 << 30
"""Bytes of a workbook, and of what it unpacks to: it is read into memory."""
_BLOCK = 1000

BAD_WORKBOOK = IssueType(
    "bad-workbook", Severity.ERROR, "workbook that cannot be read",
    "open it in Excel and save it again, without a password", "raise", ("drop",), "leaves the file out",
)  # fmt: skip
SEVERAL_SHEETS = IssueType(
    "several-sheets", Severity.ERROR, "workbook of several sheets", "choose one: {data_option=sheet=NAME}", "raise"
)


def detect(files: Files) -> Detection | None:
    """Workbooks, by their names."""
    names = files.names()[:500]
    books = [name for name in names if shards.suffix_of(name) in SUFFIXES]
    if not books:
        return None
    return Detection(0.9 * len(books) / len(names), plural(len(books), "workbook"))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the sheets into memory."""
    sheets: list[Sheet] = []
    for file in row_files(files, SUFFIXES, report):
        try:
            sheets += _sheets(files, file, report, options.get("sheet"))
        except SampleError as error:
            report.add(error.issue.type, error.issue.message, error.issue.location)
    order = {split: number for number, split in enumerate((*SPLITS, None))}
    table = SheetTable(sorted(sheets, key=lambda sheet: order[sheet.split]))  # type: ignore[index]
    if not sheets and report.raising():  # do not also report that there are no rows
        return row_source(table, None, DataReport(), depth="index", options={})
    return row_source(table, files, report, depth=depth, options=options)


@dataclass
class Sheet:
    """The rows of one sheet.

    Args:
        file: of the workbook.
        name: of the sheet.
        split: of the sheet, else of the file.
        columns: names in the header.
        rows: values of each row.
        numbers: of the rows in the sheet, from 1.
    """

    file: str
    name: str
    split: str | None
    columns: list[str]
    rows: list[list[Any]]
    numbers: list[int]


class SheetTable:
    """The rows of sheets, one after the other."""

    def __init__(self, sheets: Sequence[Sheet]):
        self._sheets = list(sheets)
        self._starts = [0]
        for sheet in self._sheets:
            self._starts.append(self._starts[-1] + len(sheet.rows))
        self.columns: Sequence[str] = union(sheet.columns for sheet in self._sheets)

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Row:
        """One row; empty cells are `None`."""
        sheet, inside = self._find(index)
        return dict(zip(sheet.columns, sheet.rows[inside]))

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows."""
        return [self.row(index) for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        """All rows in order."""
        for start in range(0, len(self), _BLOCK):
            yield start, self.fetch(range(start, min(start + _BLOCK, len(self))))

    def location(self, index: int) -> Location:
        """Workbook, sheet, and row as Excel numbers it."""
        if not len(self):
            return Location()
        sheet, inside = self._find(index)
        return Location(sheet.file, line=sheet.numbers[inside], index=index, field=sheet.name)

    def split(self, index: int) -> str | None:
        """The split of the sheet."""
        return self._find(index)[0].split

    def _find(self, index: int) -> tuple[Sheet, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        return self._sheets[number], index - self._starts[number]


def _sheets(files: Files, file: RowFile, report: DataReport, sheet: str | None) -> list[Sheet]:
    """The sheets of a workbook that are to be read."""
    book = _open(files, file.name)
    try:
        names = list(book.sheet_names)
        if sheet is not None and sheet not in names:
            raise UsageError(
                f"there is no sheet {sheet!r}", code="sheet-missing", param="data_option", where=file.name,
                expected=", ".join(nearest(sheet, names) or names),
                hint="check the spelling of {data_option=sheet=NAME}",
            )  # fmt: skip
        cells = {name: _cells(book, name) for name in names if sheet in (None, name)}
    except UsageError:
        raise
    except BaseException as error:
        raise _bad(error, file.name) from error
    filled = {name: rows for name, rows in cells.items() if rows}
    splits = {name: split_of_file(name) for name in filled}
    if len(filled) > 1 and not all(splits.values()):
        report.add(SEVERAL_SHEETS, f"sheets: {', '.join(filled)}", Location(file.name), samples=0)
        return []
    if not filled:
        report.add(HEADER_MISSING, "every sheet is empty", Location(file.name))
    return [_sheet(file, name, splits[name] or file.split, rows, report) for name, rows in filled.items()]


def _open(files: Files, name: str) -> Any:
    calamine = require("python_calamine", extra="excel", purpose="Excel files")
    size = files.size(name)
    if size > MOST_FILE:
        raise SampleError(Issue(EXPANSION_BOMB, f"{size:,} bytes; at most {MOST_FILE:,} are read", Location(name)))
    content = files.read(name, MOST_FILE)
    if content.startswith(b"PK"):
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise _bad(error, name) from error
        if unpacked > MOST_UNPACKED:
            message = f"it unpacks to {unpacked:,} bytes; at most {MOST_UNPACKED:,} are read"
            raise SampleError(Issue(EXPANSION_BOMB, message, Location(name)))
    try:
        return calamine.CalamineWorkbook.from_filelike(io.BytesIO(content))
    except BaseException as error:
        raise _bad(error, name) from error


def _bad(error: BaseException, name: str) -> SampleError:
    """What the library raised; a panic of its Rust code is no `Exception`."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | SampleError):
        raise error
    reason = str(error).partition("\n")[0][:200] or type(error).__name__
    return SampleError(Issue(BAD_WORKBOOK, reason, Location(name)))


def _cells(book: Any, name: str) -> list[tuple[int, list[Any]]]:
    """Rows of a sheet that are not empty, with their numbers from 1."""
    sheet = book.get_sheet_by_name(name)
    first = (sheet.start or (0, 0))[0]
    rows = []
    for number, row in enumerate(sheet.to_python(skip_empty_area=True), first + 1):
        values = [_json_value(value) for value in row]
        if any(value is not None for value in values):
            rows.append((number, values))
    return rows


def _json_value(value: Any) -> Any:
    """A cell as JSON has it; Excel has no integers, so 2.0 becomes 2."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value


def _sheet(
    file: RowFile, name: str, split: str | None, cells: list[tuple[int, list[Any]]], report: DataReport
) -> Sheet:
    number, header = cells[0]
    location = Location(file.name, line=number, field=name)
    if len(header) > MOST_COLUMNS:
        raise SampleError(Issue(BAD_WORKBOOK, f"{len(header):,} columns", location))
    columns: list[str] = []
    for position, value in enumerate(header, 1):
        title = "" if value is None else str(value).strip()
        if not title:
            if any(position <= len(row) and row[position - 1] is not None for _, row in cells[1:]):
                report.add(HEADER_EMPTY, f"column {position}", location)
            title = f"column_{position}"
        if title in columns:
            report.add(HEADER_DUPLICATE, f"column {title!r}", location)
            title = next(f"{title}_{suffix}" for suffix in range(2, position + 2) if f"{title}_{suffix}" not in columns)
        columns.append(title)
    return Sheet(file.name, name, split, columns, [row for _, row in cells[1:]], [number for number, _ in cells[1:]])


def example(folder: Path) -> Path:
    """A workbook of one sheet with twelve reviews."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[list[Any]] = [["text", "label"], *([f"review {number}", number % 2] for number in range(12))]
    write_workbook(folder / "reviews.xlsx", {"Sheet1": rows})
    return folder / "reviews.xlsx"


FORMAT = Format(
    "excel", "Excel workbook", ".xlsx, .xls or .ods; the first row names the columns",
    (
        BAD_WORKBOOK, SEVERAL_SHEETS, EXPANSION_BOMB, HEADER_DUPLICATE, HEADER_EMPTY, HEADER_MISSING, *shards.ISSUES,
        *ROW_ISSUES,
    ),
    detect, scan, example, options=(FormatOption("sheet", "sheet to read"), *ROW_OPTIONS), unit="row",
)  # fmt: skip
