# SPDX-License-Identifier: Apache-2.0
"""Excel workbooks."""

from __future__ import annotations

import pickle
import random
import zipfile

import pytest

from fewbit.data.formats import excel
from fewbit.data.formats.excel import write_workbook
from fewbit.data.opening import open_source, scan_source
from fewbit.errors import DataError, UsageError

pytest.importorskip("python_calamine")


def rows(source):
    return [source[index] for index in range(len(source))]


def test_the_first_filled_row_names_the_columns(tmp_path):
    cells = [[], ["text", "label"], ["good film", 1], [], ["bad film", 0.5], ["no label"]]
    write_workbook(tmp_path / "a.xlsx", {"Reviews": cells})
    source, report = open_source(tmp_path / "a.xlsx", data_option={"label_type": "number"})
    assert report.data_format == "excel"
    assert [row["text"] for row in rows(source)] == ["good film", "bad film", "no label"]
    assert source[0]["label"] == 1 and source[1]["label"] == 0.5
    assert [str(source.location(index)) for index in (0, 1)] == ["a.xlsx:3 (Reviews)", "a.xlsx:5 (Reviews)"]
    assert pickle.loads(pickle.dumps(source))[1]["text"] == "bad film"


def test_numbers_and_empty_cells(tmp_path):
    write_workbook(tmp_path / "a.xlsx", {"S": [["a", "b", "c"], [2, 2.5, None], ["007", None, "x"]]})
    assert rows(open_source(tmp_path / "a.xlsx")[0]) == [
        {"a": 2, "b": 2.5, "c": None},
        {"a": "007", "b": None, "c": "x"},
    ]


def test_sheets_named_after_splits_are_splits(tmp_path):
    write_workbook(tmp_path / "a.xlsx", {"Test": [["text"], ["t"]], "Train": [["text"], ["a"], ["b"]]})
    source, _ = open_source(tmp_path / "a.xlsx")
    assert [row["text"] for row in rows(source)] == ["a", "b", "t"] and source.facts["splits"] == {
        "train": 2,
        "test": 1,
    }
    assert rows(open_source(tmp_path / "a.xlsx", split="test")[0]) == [{"text": "t"}]


def test_several_sheets_are_listed_and_one_can_be_chosen(tmp_path):
    write_workbook(tmp_path / "a.xlsx", {"Rows": [["text"], ["a"]], "Notes": [["by"], ["me"]], "Empty": []})
    with pytest.raises(DataError, match="several sheets") as caught:
        open_source(tmp_path / "a.xlsx")
    assert caught.value.code == "several-sheets" and "Rows, Notes" in str(caught.value)
    assert rows(open_source(tmp_path / "a.xlsx", data_option={"sheet": "Rows"})[0]) == [{"text": "a"}]
    with pytest.raises(UsageError, match="no sheet 'rws'"):
        open_source(tmp_path / "a.xlsx", data_option={"sheet": "rws"})


def test_headers_that_are_empty_or_repeat(tmp_path):
    write_workbook(tmp_path / "a.xlsx", {"S": [["a", "a", None], [1, 2, 3]]})
    report = scan_source(tmp_path / "a.xlsx")[1]
    assert report.counts == {"header-duplicate": 1, "header-empty": 1} and report.errors[0].location.line == 1
    source, _ = open_source(tmp_path / "a.xlsx", on_error="repair")
    assert source[0] == {"a": 1, "a_2": 2, "column_3": 3}


def test_an_empty_workbook_is_an_issue(tmp_path):
    write_workbook(tmp_path / "a.xlsx", {"S": []})
    assert "header-missing" in scan_source(tmp_path / "a.xlsx")[1].counts


def test_damaged_workbooks_give_rows_or_typed_issues(tmp_path):
    path = excel.example(tmp_path)
    original = path.read_bytes()
    chance = random.Random(5)
    for _ in range(150):
        content = bytearray(original)
        for _ in range(4):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.randrange(len(content))] if chance.random() < 0.2 else content)
        try:
            source, _ = open_source(path, depth="full", on_error="drop", data_format="excel")
            rows(source)
        except DataError:
            pass


def test_damaged_xml_inside_a_whole_zip(tmp_path):
    path = excel.example(tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chance = random.Random(7)
    for _ in range(100):
        name = chance.choice(list(members))
        content = bytearray(members[name])
        for _ in range(3):
            content[chance.randrange(len(content))] = chance.randrange(256)
        with zipfile.ZipFile(path, "w") as archive:
            for member, original in members.items():
                archive.writestr(member, bytes(content) if member == name else original)
        try:
            rows(open_source(path, depth="full", on_error="drop", data_format="excel")[0])
        except DataError:
            pass


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = excel.example(tmp_path)
    monkeypatch.setattr(excel, "MOST_UNPACKED", 1000)
    assert scan_source(path)[1].counts == {"expansion-bomb": 1}
