# SPDX-License-Identifier: Apache-2.0
"""Excel and OpenDocument workbooks through python-calamine: the first row that is not empty names the columns.

Sheets named after splits are these splits. A location has the number of the row as Excel shows it.
"""

from __future__ import annotations

import io
import zipfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from fewbit.data.rows import header, shards
from fewbit.data.rows.arrow import json_value
from fewbit.data.rows.header import HEADER_MISSING, column_names
from fewbit.data.rows.shards import RowFile, row_files, split_order
from fewbit.data.rows.source import ROW_ISSUES, ROW_OPTIONS, row_source
from fewbit.data.rows.table import Row, Table, union
from fewbit.data.rows.text import EXPANSION_BOMB
from fewbit.data.splits import split_of_file
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
from fewbit.errors import UsageError, nearest, require

SUFFIXES = (".xlsx", ".xlsm", ".xls", ".xlsb", ".ods")
MOST_FILE, MOST_UNPACKED = 256 << 20, 1 << 30
"""Bytes of a workbook, and of what it unpacks to: it is read into memory."""

BAD_WORKBOOK = IssueType(
    "bad-workbook", Severity.ERROR, "workbook that cannot be read",
    "open it in Excel and save it again, without a password", "raise", ("drop",),
)  # fmt: skip
SEVERAL_SHEETS = IssueType(
    "several-sheets", Severity.ERROR, "workbook of several sheets", "choose one: {data_option=sheet=NAME}", "raise"
)


def detect(files: Files) -> Detection | None:
    """Workbooks, by their names."""
    return shards.detect_tables(files, SUFFIXES, "Excel", (b"\xd0\xcf\x11\xe0",))


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Read the sheets into memory."""
    sheets: list[Sheet] = []
    for file in row_files(files, SUFFIXES, report):
        try:
            sheets += _sheets(files, file, report, options.get("sheet"))
        except SampleError as error:
            report.add_error(error)
    table = SheetTable(sorted(sheets, key=lambda sheet: split_order(sheet.split)))
    return row_source(table, files, report, depth=depth, options=options)


class Sheet(NamedTuple):
    """The rows of one sheet: values of each row, and its number in the sheet, from 1."""

    file: str
    name: str
    split: str | None
    columns: list[str]
    rows: list[tuple[int, list[Any]]]


class SheetTable(Table):
    """The rows of sheets, one after the other; empty cells are `None`."""

    def __init__(self, sheets: Sequence[Sheet]):
        self._sheets = list(sheets)
        self._starts = [0]
        for sheet in self._sheets:
            self._starts.append(self._starts[-1] + len(sheet.rows))
        self.columns = union(sheet.columns for sheet in self._sheets)

    def __len__(self) -> int:
        return self._starts[-1]

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        found = [self._find(index) for index in indices]
        return [dict(zip(sheet.columns, sheet.rows[inside][1])) for sheet, inside in found]

    def location(self, index: int) -> Location:
        sheet, inside = self._find(index)
        return Location(sheet.file, line=sheet.rows[inside][0], index=index, field=sheet.name)

    def split(self, index: int) -> str | None:
        return self._find(index)[0].split

    def _find(self, index: int) -> tuple[Sheet, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        return self._sheets[number], index - self._starts[number]


def _sheets(files: Files, file: RowFile, report: DataReport, sheet: str | None) -> list[Sheet]:
    """The sheets of a workbook that are to be read."""
    calamine = require("python_calamine", extra="excel", purpose="Excel files")
    try:
        book = calamine.CalamineWorkbook.from_filelike(io.BytesIO(_content(files, file.name)))
        names = list(book.sheet_names)
        cells = {name: _cells(book, name) for name in names if sheet in (None, name)}
    except (KeyboardInterrupt, SystemExit, GeneratorExit, SampleError):
        raise
    except BaseException as error:  # a panic of its Rust code is no `Exception`
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise SampleError(Issue(BAD_WORKBOOK, reason, Location(file.name))) from error
    if sheet is not None and sheet not in names:
        raise UsageError(
            f"there is no sheet {sheet!r}", code="sheet-missing", param="data_option", where=file.name,
            expected=", ".join(nearest(sheet, names) or names), hint="check the spelling of {data_option=sheet=NAME}",
        )  # fmt: skip
    filled = {name: rows for name, rows in cells.items() if rows}
    splits = {name: split_of_file(name) for name in filled}
    if len(filled) > 1 and not all(splits.values()):
        report.add(SEVERAL_SHEETS, f"sheets: {', '.join(filled)}", Location(file.name), samples=0)
        return []
    if not filled:
        report.add(HEADER_MISSING, "every sheet is empty", Location(file.name))
    sheets = []
    for name, rows in filled.items():
        columns = _columns(rows, Location(file.name, line=rows[0][0], field=name), report)
        sheets.append(Sheet(file.name, name, splits[name] or file.split, columns, rows[1:]))
    return sheets


def _content(files: Files, name: str) -> bytes:
    """The bytes of a workbook, unless it is too large or a bomb."""
    size = files.size(name)
    if size > MOST_FILE:
        raise SampleError(Issue(EXPANSION_BOMB, f"{size:,} bytes; at most {MOST_FILE:,} are read", Location(name)))
    content = files.read(name, MOST_FILE)
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MOST_UNPACKED:
            message = f"it unpacks to {unpacked:,} bytes; at most {MOST_UNPACKED:,} are read"
            raise SampleError(Issue(EXPANSION_BOMB, message, Location(name)))
    return content


def _cells(book: Any, name: str) -> list[tuple[int, list[Any]]]:
    """Rows of a sheet that are not empty, with their numbers from 1."""
    sheet = book.get_sheet_by_name(name)
    first = (sheet.start or (0, 0))[0]
    rows = []
    for number, row in enumerate(sheet.to_python(skip_empty_area=True), first + 1):
        values = [_value(value) for value in row]
        if any(value is not None for value in values):
            rows.append((number, values))
    return rows


def _value(value: Any) -> Any:
    """A cell as JSON has it; Excel has no integers, so 2.0 becomes 2."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return None if value == "" else json_value(value)


def _columns(rows: list[tuple[int, list[Any]]], location: Location, report: DataReport) -> list[str]:
    """Column names of a sheet; a column without a name counts only if it holds something."""
    titles = rows[0][1]
    if len(titles) > header.MOST_COLUMNS:
        raise SampleError(Issue(BAD_WORKBOOK, f"{len(titles):,} columns", location))
    names = []
    for position, title in enumerate(titles):
        is_filled = any(position < len(row) and row[position] is not None for _, row in rows[1:])
        name = "" if title is None else str(title).strip()
        names.append(name or ("" if is_filled else f"column_{position + 1}"))
    return column_names(names, location, report)


def write_workbook(path: Path, sheets: Mapping[str, Sequence[Sequence[Any]]]) -> None:
    """Write the smallest `.xlsx` file that holds some rows of texts, numbers and `None`, for examples and tests."""
    schemas = "http://schemas.openxmlformats.org"
    office, package = f"{schemas}/officeDocument/2006/relationships", f"{schemas}/package/2006"
    main = f"{schemas}/spreadsheetml/2006/main"
    types, targets, entries = "", "", ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (name, rows) in enumerate(sheets.items(), 1):
            part = f"worksheets/sheet{number}.xml"
            lines = "".join(f"<row r='{line}'>{_xml_cells(row, line)}</row>" for line, row in enumerate(rows, 1))
            archive.writestr(f"xl/{part}", f"<worksheet xmlns='{main}'><sheetData>{lines}</sheetData></worksheet>")
            content_type = "application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"
            types += f"<Override PartName='/xl/{part}' ContentType='{content_type}'/>"
            targets += f"<Relationship Id='r{number}' Type='{office}/worksheet' Target='{part}'/>"
            entries += f"<sheet name='{escape(name)}' sheetId='{number}' r:id='r{number}'/>"
        book = f"<Relationship Id='r1' Type='{office}/officeDocument' Target='xl/workbook.xml'/>"
        for part, relations in (("_rels/.rels", book), ("xl/_rels/workbook.xml.rels", targets)):
            archive.writestr(part, f"<Relationships xmlns='{package}/relationships'>{relations}</Relationships>")
        content = f"<workbook xmlns='{main}' xmlns:r='{office}'><sheets>{entries}</sheets></workbook>"
        archive.writestr("xl/workbook.xml", content)
        archive.writestr("[Content_Types].xml", f"<Types xmlns='{package}/content-types'>{types}</Types>")


def _xml_cells(values: Sequence[Any], line: int) -> str:
    cells = ""
    for column, value in enumerate(values):
        name = f"{chr(65 + column)}{line}"  # up to Z
        if isinstance(value, str):
            cells += f"<c r='{name}' t='inlineStr'><is><t>{escape(value)}</t></is></c>"
        elif value is not None:
            cells += f"<c r='{name}'><v>{value}</v></c>"
    return cells


def example(folder: Path) -> Path:
    """A workbook of one sheet with twelve reviews."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[list[Any]] = [["text", "label"], *([f"review {number}", number % 2] for number in range(12))]
    write_workbook(folder / "reviews.xlsx", {"Sheet1": rows})
    return folder / "reviews.xlsx"


FORMAT = Format(
    "excel", "Excel workbook", ".xlsx, .xls or .ods; the first row names the columns",
    (
        BAD_WORKBOOK, SEVERAL_SHEETS, EXPANSION_BOMB, header.HEADER_DUPLICATE, header.HEADER_EMPTY, HEADER_MISSING,
        *shards.ISSUES, *ROW_ISSUES,
    ),
    detect, scan, example, options=(FormatOption("sheet", "sheet to read"), *ROW_OPTIONS), unit="row",
    suffixes=SUFFIXES,
)  # fmt: skip
