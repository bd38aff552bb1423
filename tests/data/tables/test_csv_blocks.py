# SPDX-License-Identifier: Apache-2.0
"""Records from pieces of any size are those of Python's `csv`; odd ones come alone and nothing is swallowed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data import limits
from fewbit.data.tables.csv_blocks import Blocks, Odd
from fewbit.data.tables.csv_feed import Feed
from fewbit.data.tables.csv_record import parse
from fewbit.data.tables.table import Broken

COMMA = ord(",")


def records(data: bytes, size: int, chunk: int = 7) -> list[tuple[bytes | None, int, int, int | None]]:
    """Every record: bytes, line, offset, the line of an open quote."""
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    found: list[tuple[bytes | None, int, int, int | None]] = []
    for item in Blocks(Feed(chunks, size), COMMA):
        if isinstance(item, Odd):
            found.append((item.data, item.line, item.offset, item.quote_line))
        else:
            offsets = (item.begins() + item.offset).tolist()
            found += [(*three, None) for three in zip(item.records(), item.lines.tolist(), offsets)]
    return found


def fields(data: bytes, size: int) -> list[list[str]]:
    return [parse((raw or b"").decode(), ",", 10**6).fields for raw, *_ in records(data, size)]


cells = st.text(alphabet=st.sampled_from('ab1,;"\n\r\tä😀\u2028 '), max_size=12)
tables = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), max_size=8))


@settings(max_examples=300, deadline=None)
@given(
    tables,
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_what_csv_writes_is_read_back_whatever_the_piece(
    table: list[list[str]], quoting: int, end: str, size: int, cut: bool
) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=quoting, lineterminator=end).writerows(table)  # type: ignore[arg-type]
    text = out.getvalue()
    data = (text[: -len(end)] if cut and text else text).encode()
    if quoting == csv.QUOTE_MINIMAL:  # csv leaves a lone \r bare when rows end in \n
        table = [row for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]
    assert fields(data, size) == table


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(['"', ",", "\n", "\r", "\r\n", "a", '""', "ä"]), max_size=40).map("".join),
    st.integers(1, 30),
)
def test_adversarial_text_is_read_as_csv_reads_it(text: str, size: int) -> None:
    wanted = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    found = records(text.encode(), size)
    if any(quote for *_, quote in found):
        return  # the one place where we go on and `csv` does not
    assert [parse((raw or b"").decode(), ",", 99).fields for raw, *_ in found] == wanted
    assert found == records(text.encode(), 1 << 20)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(['"', ",", "\n", "\r\n", "a", '""']), max_size=60).map("".join), st.integers(1, 9))
def test_records_do_not_depend_on_the_piece_even_with_a_quote_left_open(text: str, size: int) -> None:
    assert records(text.encode(), size) == records(text.encode(), 1 << 20)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(['"', ",", "\n", "\r", "a" * 9, '""', "b" * 30]), max_size=40).map("".join),
    st.integers(1, 13),
    st.integers(1, 13),
)
def test_records_near_the_limit_do_not_depend_on_the_piece(text: str, one: int, other: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ROW_BYTES", 50)
        assert records(text.encode(), one) == records(text.encode(), other, chunk=3)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='a,"\n\r', max_size=60), st.integers(1, 9))
def test_offsets_and_lines_say_where_a_record_begins(text: str, size: int) -> None:
    for raw, line, offset, _ in records(text.encode(), size):
        before = text[:offset]
        assert text.encode()[offset:].startswith(raw or b"")
        assert line == 1 + before.count("\n") + before.count("\r") - before.count("\r\n")


def test_a_quote_never_closed_costs_one_line_and_names_it() -> None:
    data = b'a,b\n1,x\n2,"never closed\n3,y\n4,z\n'
    for size in (3, 8, 1 << 16):
        found = records(data, size)
        assert [raw for raw, *_ in found] == [b"a,b", b"1,x", b'2,"never closed', b"3,y", b"4,z"]
        assert found[2][1:] == (3, 8, 3)


def test_an_open_quote_in_a_record_of_many_lines_names_the_line_it_was_opened_on() -> None:
    found = records(b'a\n"x\ny","open\nz\n', 4)
    assert [(raw, line, quote) for raw, line, _, quote in found] == [
        (b"a", 1, None),
        (b'"x\ny","open', 2, 3),
        (b"z", 4, None),
    ]


@pytest.mark.parametrize("size", [5, 16, 40])
def test_a_row_beyond_the_limit_is_passed_over_without_being_kept(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(limits, "ROW_BYTES", 100)
    found = records(b"a,b\n" + b"x" * 1000 + b"\n1,2\n", size)
    assert found == [(b"a,b", 1, 0, None), (None, 2, 4, None), (b"1,2", 3, 1005, None)]


@pytest.mark.parametrize("extra", [b"\n", b"\r\n", b"\r", b""])
@pytest.mark.parametrize("size", [5, 16, 40])
def test_a_row_of_exactly_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch, size: int, extra: bytes) -> None:
    monkeypatch.setattr(limits, "ROW_BYTES", 100)
    assert records(b"x" * 100 + extra, size)[0][0] == b"x" * 100
    assert records(b"x" * 101 + extra, size)[0][0] is None


@pytest.mark.parametrize("size", [5, 16, 40])
def test_a_quote_open_beyond_the_limit_goes_on_at_the_next_line(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(limits, "ROW_BYTES", 100)
    data = b'a\n"open\n' + b"row\n" * 200 + b'"end"\n'
    found = records(data, size)
    assert found[1] == (b'"open', 2, 2, 2)
    assert [raw for raw, *_ in found[2:]] == [b"row"] * 200 + [b'"end"']


def test_a_file_of_nothing_but_quotes_or_delimiters_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_BYTES", 1000)
    for byte in (b'"', b",", b"\r", b"\n", b'",', b'"\n'):
        for count in (4999, 5000):
            for size in (16, 64):
                assert len(records(byte * count, size)) <= 2 * count


def test_a_long_field_is_one_field() -> None:
    value = "x" * 300_000 + '""' + "\n,y"
    data = f'a,b\n1,"{value}"\n2,z\n'.encode()
    rows = fields(data, 1 << 12)
    assert rows == [["a", "b"], ["1", value.replace('""', '"')], ["2", "z"]]


def test_a_stream_that_breaks_off_ends_before_the_record_it_broke() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"a,b\n1,2\n3,"
        raise Broken("bad-compression", "cut off")

    for size in (2, 100):
        feed = Feed(chunks(), size)
        blocks = Blocks(feed, COMMA)
        items = list(blocks)
        assert sum(1 if isinstance(item, Odd) else len(item) for item in items) == 2
        assert feed.fault is not None and feed.fault.code == "bad-compression"
        assert (blocks.offset, blocks.line) == (8, 3)


def test_u2028_is_no_line_end() -> None:
    assert fields("a,b\nx\u2028y,z\n".encode(), 64) == [["a", "b"], ["x\u2028y", "z"]]
