# SPDX-License-Identifier: Apache-2.0
"""The delimiter, and the header's rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.tables.csv_dialect import DELIMITERS, checked, sniff
from fewbit.data.tables.csv_header import header
from fewbit.errors import UsageError


@pytest.mark.parametrize("delimiter", DELIMITERS)
def test_delimiter_sniff_among_four(delimiter: str) -> None:
    text = "\r\n".join(delimiter.join(row) for row in (["id", "text", "label"], ["1", "a", "x"], ["2", "b", "y"]))
    assert sniff(text.encode()).delimiter == delimiter


def test_delimiter_sniff_is_confirmed_by_the_rows_not_by_the_header_alone() -> None:
    head = b"id;name, first;label\n1;Ann;0\n2;Bob;1\n3;Cy;0\n"
    found = sniff(head)
    assert found.delimiter == ";"
    assert [note.code for note in found.notes] == ["delimiter-guessed"]


def test_delimiters_inside_quotes_do_not_count() -> None:
    assert sniff(b'"a;b;c","d;e;f"\n"1;2;3","4;5;6"\n').delimiter == ","


def test_decimal_commas() -> None:
    assert sniff(b"x;y\n1,5;2,5\n3,5;4,5\n").delimiter == ";"


def test_two_delimiters_that_fit_are_a_warning() -> None:
    assert [note.code for note in sniff(b"a,b|c\n1,2|3\n").notes] == ["delimiter-unclear"]


def test_one_column_has_no_delimiter() -> None:
    assert sniff(b"text\nhello\n") == sniff(b"")
    assert sniff(b"text\n", usual="\t").delimiter == "\t"


def test_blank_lines_before_the_header() -> None:
    assert sniff(b"\n\r\na;b\n1;2\n").delimiter == ";"


@pytest.mark.parametrize("line", [b"sep=;\n", b'"sep=;"\r\n', b"SEP=;\r"])
def test_the_excel_sep_line(line: bytes) -> None:
    found = sniff(line + b"a;b,c,d\r\n1;2\r\n")
    assert (found.delimiter, found.lead) == (";", 2)


def test_the_users_word_wins() -> None:
    assert sniff(b"a,b\n1,2\n", chosen="|").delimiter == "|"
    assert sniff(b"sep=;\na,b\n", chosen=",").lead == 2


@pytest.mark.parametrize("delimiter", ["", "a", '"', "\n", "ab", "é", "1", "-", "."])
def test_a_delimiter_that_cannot_be_one_is_wrong_use(delimiter: str) -> None:
    with pytest.raises(UsageError, match="cannot separate"):
        checked(delimiter)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_have_a_dialect(head: bytes) -> None:
    assert len(sniff(head).delimiter) == 1


def codes(fields: list[str], below: list[list[str]] | None = None) -> list[str]:
    return [fault.code for fault in header(fields, below or [], 1)[1]]


def test_header_duplicate_and_empty_names_are_errors() -> None:
    names, faults = header(["a", "a", "", "a_2", " "], [], 3)
    assert names == ["a", "a_2_", "column_3", "a_2", "column_5"]
    assert [fault.code for fault in faults] == ["header-duplicate", "header-empty", "header-empty"]
    assert {fault.line for fault in faults} == {3}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "", "a_2", "column_1", "b", "a_3", "a_2_"]), min_size=1, max_size=8))
def test_repaired_names_are_all_different(fields: list[str]) -> None:
    names, _ = header(fields, [], 1)
    assert len(set(names)) == len(fields)
    assert all(names)


def test_header_that_looks_like_data_is_a_warning() -> None:
    assert codes(["1", "2.5", "-3"]) == ["header-like-data"]
    assert codes(["great film", "1"], [["bad film", "0"], ["fine", "1"]]) == ["header-like-data"]
    assert codes(["country", "2019", "2020"], [["FR", "1", "2"]]) == []


def test_header_with_spaces_is_a_warning() -> None:
    assert codes(["id", " text"]) == ["header-space"]


def test_a_first_line_with_some_numbers_or_dates_looks_like_data_when_the_rows_below_are_like_it() -> None:
    like = ["header-like-data"]
    assert codes(["1", "hello"], [["2", "bye"]]) == like
    assert codes(["2020-01-01", "3"], [["2020-01-02", "4"]]) == like
    assert codes(["hello there", "0"], [["bye", "1"], ["", "2"]]) == like
    assert codes(["id", "1"], [["7", "2"]]) == []  # a name above numbers
    assert codes(["text", "1"], [["a", "5"]]) == []  # what columns are called
    assert codes(["country", "2019", "2020"], [["France", "1", "2"]]) == []  # years in a row
    assert codes(["a", "b"], [["1", "x"]]) == []
    assert codes(["1", "hello"]) == []  # nothing below to compare with
