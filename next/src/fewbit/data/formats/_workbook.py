# SPDX-License-Identifier: Apache-2.0
"""Writes the smallest `.xlsx` file that holds some cells; the example and the tests of `excel.py` need one."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_SHEET_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"
_BOOK_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
_RELATION_TYPE = "application/vnd.openxmlformats-package.relationships+xml"


def write_workbook(path: Path, sheets: Mapping[str, Sequence[Sequence[Any]]]) -> None:
    """Write a workbook.

    Args:
        path: of the new file.
        sheets: rows of texts, numbers and `None` by name of the sheet.
    """
    types, targets, entries = "", "", ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (name, rows) in enumerate(sheets.items(), 1):
            sheet_path = f"worksheets/sheet{number}.xml"
            lines = "".join(_row(row, row_number) for row_number, row in enumerate(rows, 1))
            archive.writestr(
                f"xl/{sheet_path}", f"<worksheet xmlns='{_MAIN}'><sheetData>{lines}</sheetData></worksheet>"
            )
            types += f"<Override PartName='/xl/{sheet_path}' ContentType='{_SHEET_TYPE}'/>"
            targets += f"<Relationship Id='r{number}' Type='{_RELATIONS}/worksheet' Target='{sheet_path}'/>"
            entries += f"<sheet name={quoteattr(name)} sheetId='{number}' r:id='r{number}'/>"
        book = f"<workbook xmlns='{_MAIN}' xmlns:r='{_RELATIONS}'><sheets>{entries}</sheets></workbook>"
        archive.writestr("xl/workbook.xml", book)
        archive.writestr("xl/_rels/workbook.xml.rels", _relations(targets))
        to_book = f"<Relationship Id='r1' Type='{_RELATIONS}/officeDocument' Target='xl/workbook.xml'/>"
        archive.writestr("_rels/.rels", _relations(to_book))
        types = (
            f"<Default Extension='rels' ContentType='{_RELATION_TYPE}'/>"
            "<Default Extension='xml' ContentType='application/xml'/>"
            f"<Override PartName='/xl/workbook.xml' ContentType='{_BOOK_TYPE}'/>{types}"
        )
        archive.writestr("[Content_Types].xml", f"<Types xmlns='{_PACKAGE}/content-types'>{types}</Types>")


def _row(values: Sequence[Any], number: int) -> str:
    cells = ""
    for column, value in enumerate(values):
        cell = f"{_letters(column)}{number}"
        if isinstance(value, str):
            cells += f"<c r='{cell}' t='inlineStr'><is><t>{escape(value)}</t></is></c>"
        elif value is not None:
            cells += f"<c r='{cell}'><v>{value}</v></c>"
    return f"<row r='{number}'>{cells}</row>"


def _relations(targets: str) -> str:
    return f"<Relationships xmlns='{_PACKAGE}/relationships'>{targets}</Relationships>"


def _letters(column: int) -> str:
    """`A`, …, `Z`, `AA` for columns from 0.

    >>> _letters(0), _letters(27)
    ('A', 'AB')
    """
    letters = ""
    column += 1
    while column:
        column, remainder = divmod(column - 1, 26)
        letters = chr(65 + remainder) + letters
    return letters
