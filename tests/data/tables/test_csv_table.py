# SPDX-License-Identifier: Apache-2.0
"""CSV files as tables: each rule of the guide, both ways of reading, and the pass that checks."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewbit.data import limits
from fewbit.data.tables import csv_opening, plain
from fewbit.data.tables.codes import CSV as CODES
from fewbit.data.tables.codes import ROW
from fewbit.data.tables.csv_kinds import KINDS
from fewbit.data.tables.csv_table import CsvTable
from fewbit.data.tables.table import Columns, Fault, Row, Survey
from fewbit.data.tables.text_column import TextColumn
from fewbit.errors import UsageError


class Listener(Survey):
    """A survey that keeps everything."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.found: dict[int | None, Row] = {}
        self.kinds: dict[str, Counter[str]] = {}
        self.lengths: dict[str, list[int]] = {}
        self.digests: dict[int | None, int] = {}

    def fault(self, fault: Fault) -> None:
        self.faults.append(fault)

    def rows(self, rows: Sequence[Row], digests: Any = None) -> None:
        for row, digest in zip(rows, digests or [0] * len(rows)):
            self.found[row.line] = row
            self.digests[row.line] = digest

    def columns(self, batch: Columns) -> None:
        self.digests.update(zip(batch.lines, batch.digests, strict=True))
        for name, column in zip(batch.names, batch.values):
            if isinstance(column, TextColumn):
                kinds = self.kinds.setdefault(name, Counter())
                kinds.update(KINDS[kind] for kind in column.kinds)
                self.lengths.setdefault(name, []).extend(column.lengths.tolist())
                assert [len(value) for value in column] == column.lengths.tolist()
                assert [column[at] for at in range(len(column))] == list(column)
        for line, *values in zip(batch.lines, *batch.values):
            self.found[line] = Row(dict(zip(batch.names, values)), line)


def made(folder: Path, text: str | bytes, name: str = "a.csv", **options: Any) -> CsvTable:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return CsvTable(path, name, **options)


def listened(table: CsvTable) -> Listener:
    listener = Listener()
    table.scan(listener)
    return listener


def everything(table: CsvTable) -> list[Row]:
    """The rows, after making sure that all three ways of reading agree."""
    rows = list(table.rows())
    assert [table.row(index) for index in range(table.count())] == rows
    assert [table.line(index) for index in range(table.count())] == [row.line for row in rows]
    found = listened(table).found
    assert len(found) == len({row.line for row in rows})
    assert all(found[row.line] == row for row in rows)
    return rows


def values(table: CsvTable) -> list[dict[str, Any] | None]:
    return [row.values for row in everything(table)]


def codes(table: CsvTable) -> list[tuple[str, int | None]]:
    return [(fault.code, fault.line) for row in everything(table) for fault in row.faults]


def test_values_stay_the_text_they_are(tmp_path: Path) -> None:
    # pandas turns "NA" and "null" into None and "007" into 7.
    table = made(tmp_path, "id,text,n\n007,NA,\n1,null,1.0\n")
    assert values(table) == [{"id": "007", "text": "NA", "n": ""}, {"id": "1", "text": "null", "n": "1.0"}]


def test_kinds_are_counted_and_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    lines = ["1,a", "2,", "x,1.5", "007,-0"]
    counts = [listened(made(tmp_path, "\n".join(["n,v", *order]))).kinds for order in (lines, lines[::-1])]
    assert counts[0] == counts[1] == {"n": {"int": 2, "text": 2}, "v": {"text": 1, "empty": 1, "float": 1, "int": 1}}


def test_rfc_4180_quotes_embedded_newlines_and_delimiters(tmp_path: Path) -> None:
    table = made(tmp_path, 'a,b\r\n"x, ""y""\r\nz",1\r\n"",2\r\n')
    assert values(table) == [{"a": 'x, "y"\r\nz', "b": "1"}, {"a": "", "b": "2"}]
    assert [row.line for row in table.rows()] == [2, 4]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_every_kind_and_blank_lines(tmp_path: Path, end: str) -> None:
    table = made(tmp_path, end.join(["a,b", "1,2", "", "", "3,4"]))
    assert [(row.values, row.line) for row in everything(table)] == [
        ({"a": "1", "b": "2"}, 2),
        ({"a": "3", "b": "4"}, 5),
    ]


def test_u2028_is_no_line_end(tmp_path: Path) -> None:
    assert values(made(tmp_path, "a\nx\u2028y\u0085z\x0bw\n")) == [{"a": "x\u2028y\u0085z\x0bw"}]


def test_ragged_rows_name_their_line_and_the_file_goes_on(tmp_path: Path) -> None:
    # datasets aborts the whole file at a long row, and a short one turns the column's ints into floats.
    table = made(tmp_path, "text,label\nfine,1\nshort\na,b,2\ntrailing,0,\nlast,1\n")
    assert codes(table) == [("row-short", 3), ("row-long", 4), ("trailing-delimiter", 5)]
    assert values(table)[1:4] == [
        {"text": "short", "label": ""},
        {"text": "a", "label": "b"},
        {"text": "trailing", "label": "0"},
    ]
    assert CODES["row-short"].policy == CODES["row-long"].policy == "raise"
    assert {"drop", "repair"} <= set(CODES["row-short"].policies)


def test_trailing_commas_in_the_header_are_a_column_without_a_name(tmp_path: Path) -> None:
    table = made(tmp_path, "a,b,\n1,2,\n")
    assert [fault.code for fault in table.notes()] == ["header-empty"]
    assert values(table) == [{"a": "1", "b": "2", "column_3": ""}]


def test_odd_quotes_are_found_with_their_line(tmp_path: Path) -> None:
    table = made(tmp_path, 'a,b\n5" disk,1\n"x"y,2\n"say "hi" now",3\nok,4\n')
    assert codes(table) == [("quote-stray", 2), ("quote-early", 3), ("quote-early", 4)]
    assert [row["a"] for row in values(table) if row] == ['5" disk', "xy", 'say hi" now"', "ok"]


def test_a_quote_never_closed_is_found_on_the_line_it_was_opened_and_the_rest_is_still_checked(tmp_path: Path) -> None:
    table = made(tmp_path, 'a,b\n1,2\n"x\ny",3\n4,"never\n5,6\n7\n')
    assert codes(table) == [("quote-unclosed", 5), ("row-short", 7)]
    assert [row.line for row in table.rows()] == [2, 3, 5, 6, 7]


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_a_file_without_a_header_has_no_rows_and_says_so(tmp_path: Path, text: str) -> None:
    table = made(tmp_path, text)
    assert everything(table) == []
    assert [fault.code for fault in table.notes()] == ["header-missing"]


def test_a_header_whose_quote_is_never_closed_is_no_header(tmp_path: Path) -> None:
    table = made(tmp_path, 'a,"b\n1,2\n')
    assert everything(table) == []
    assert [fault.code for fault in table.notes()] == ["header-missing"]


def test_fields_beyond_128_kb(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    text = "x" * 700_000
    assert values(made(tmp_path, f'a,b\n"{text}\n{text}",1\n{text},2\n')) == [
        {"a": f"{text}\n{text}", "b": "1"},
        {"a": text, "b": "2"},
    ]
    assert csv.field_size_limit() == limit


def test_rows_beyond_the_limit_are_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_BYTES", 2000)
    table = made(tmp_path, b"a,b\n1," + b"x" * 5000 + b"\n2,y\n", piece=256)
    assert codes(table) == [("row-too-long", 2)]
    assert values(table) == [None, {"a": "2", "b": "y"}]


def test_nul_bytes_are_a_finding(tmp_path: Path) -> None:
    table = made(tmp_path, b"a,b\n1,x\0y\n2,z\n")
    assert codes(table) == [("nul-byte", 2)]
    assert everything(table)[0].faults[0].offset == 7


def test_bytes_that_are_not_utf8_are_found_with_offset_and_line(tmp_path: Path) -> None:
    table = made(tmp_path, b'a,b\ncaf\xe9,1\nok,2\n"x\n\xff",3\n')
    faults = [fault for row in everything(table) for fault in row.faults]
    assert [(fault.code, fault.line, fault.offset) for fault in faults] == [
        ("bad-encoding", 2, 7),
        ("bad-encoding", 5, 19),
    ]
    assert values(table)[0] == {"a": "caf\ufffd", "b": "1"}


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    table = made(tmp_path, b"\xef\xbb\xbfid,text\n1,caf\xe9\n")
    assert table.opening.names == ("id", "text")
    assert everything(table)[0].faults[0].offset == 16


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    data = 'id,text\n1,"café, ""é"""\n'.encode(encoding)
    table = made(tmp_path, data, encoding=None if encoding == "utf-16" else encoding)
    assert values(table) == [{"id": "1", "text": 'café, "é"'}]


def test_packed_files(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(5000)))
    assert len(values(made(tmp_path, whole, "a.csv.gz"))) == 5000
    rows = everything(made(tmp_path, whole[:-2000], "b.csv.gz"))
    assert rows[-1].values is None and [fault.code for fault in rows[-1].faults] == ["bad-compression"]
    assert all(not row.faults for row in rows[:-1])


def test_tsv_and_the_sep_line(tmp_path: Path) -> None:
    assert values(made(tmp_path, "a\tb\n1\t2,5\n", "a.tsv")) == [{"a": "1", "b": "2,5"}]
    table = made(tmp_path, "sep=;\r\na;b\r\n1;2,5\r\n")
    assert values(table) == [{"a": "1", "b": "2,5"}]
    assert [row.line for row in table.rows()] == [3]
    assert values(made(tmp_path, "a|b\n1|2\n", "b.csv", delimiter=",")) == [{"a|b": "1|2"}]


def test_declared_types_are_cast_and_nothing_else(tmp_path: Path) -> None:
    text = "id,label,score,flag\n007,007,1e-3,true\n1,x,.5,no\n2,,nan,0\n"
    table = made(tmp_path, text, types={"label": int, "score": "float32", "flag": "bool", "id": str})
    rows = everything(made(tmp_path, text.replace("nan", "2"), types={"label": int, "score": "float32", "flag": bool}))
    assert [row.values for row in rows] == [
        {"id": "007", "label": 7, "score": 0.001, "flag": True},
        {"id": "1", "label": None, "score": 0.5, "flag": None},
        {"id": "2", "label": None, "score": 2.0, "flag": False},
    ]
    faults = [fault for row in rows for fault in row.faults]
    assert [(fault.code, fault.line, fault.field) for fault in faults] == [
        ("bad-cast", 3, "label"),
        ("bad-cast", 3, "flag"),
        ("bad-cast", 4, "label"),
    ]
    assert table.opening.names == ("id", "label", "score", "flag")


def test_types_that_cannot_be_are_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'float'"):
        made(tmp_path, "a\n1\n", types={"a": "flaot"})
    with pytest.raises(UsageError, match=r"no column 'lable'(.|\n)*did you mean 'label'"):
        list(made(tmp_path, "label\n1\n", types={"lable": int}).rows())


def test_the_index_is_small_and_found_again(tmp_path: Path) -> None:
    text = "a,b\n" + "".join(f"{number},x\n" for number in range(1000))
    table = made(tmp_path, text)
    assert table.count() == 1000
    assert table._index.lines is None and table._index.offsets.nbytes <= 16 * 1002
    again = CsvTable(table.path, "a.csv")
    assert again.row(999).values == {"a": "999", "b": "x"}
    assert pickle.loads(pickle.dumps(again)).row(500).values == {"a": "500", "b": "x"}


def test_every_code_is_declared() -> None:
    assert {"bad-encoding", "nul-byte", "row-too-long"} <= set(ROW)
    assert not set(ROW) & set(CODES)


cells = st.text(alphabet=st.sampled_from('ab01.-,;"\n\rä😀\0 '), max_size=8)
tables = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), max_size=8))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]), st.integers(1, 64))
def test_a_table_is_what_csv_wrote(tmp_path: Path, rows: list[list[str]], quoting: int, end: str, piece: int) -> None:
    out = io.StringIO()
    names = [f"name{number}" for number in range(len(rows[0]) if rows else 1)]
    csv.writer(out, quoting=quoting, lineterminator=end).writerows([names, *rows])  # type: ignore[arg-type]
    wanted = [row for row in csv.reader(io.StringIO(out.getvalue(), newline="")) if row][1:]
    table = made(tmp_path, out.getvalue(), delimiter=",", piece=piece)
    found = everything(table)
    assert len(found) == len(wanted)
    for row, fields in zip(found, wanted):
        if len(fields) == len(names):
            assert row.values == dict(zip(names, fields))
        else:
            assert {fault.code for fault in row.faults} & {"row-short", "row-long", "trailing-delimiter"}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.text('ab,"\n', max_size=3), min_size=2, max_size=2), min_size=1, max_size=6))
def test_rows_have_one_digest_exactly_when_they_have_the_same_values(tmp_path: Path, rows: list[list[str]]) -> None:
    found: dict[tuple[str, ...], set[int]] = {}
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
        for end in ("\n", ",\n"):  # with a delimiter too many, a row is taken apart
            out = io.StringIO()
            csv.writer(out, quoting=quoting, lineterminator=end).writerows(rows)
            listener = listened(made(tmp_path, "name,other\n" + out.getvalue(), delimiter=",", piece=64))
            for line, digest in listener.digests.items():
                values = listener.found[line].values
                if values is not None:
                    found.setdefault(tuple(values.values()), set()).add(digest)
    assert all(len(digests) == 1 for digests in found.values())
    assert len(set().union(*found.values())) == len(found)


def test_mutated_files_end_in_rows_or_faults(tmp_path: Path) -> None:
    known = {*CODES, *ROW, "bad-compression"}
    seeds = [
        b'id,text,label\r\n1,"a ""b"", c\r\nd",0\r\n2,caf\xc3\xa9,1\r\n3,,\r\n',
        b"sep=;\na;b\n1;2\n3;4\n",
        'id\ttext\n1\t"x\ty"\n'.encode("utf-16"),
    ]
    chance = random.Random(7)
    for round_ in range(400):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data) + 1)
            act = chance.randrange(5)
            if act == 0 and at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            elif act == 1:
                del data[at : at + chance.randint(1, 4)]
            elif act == 2:
                data[at:at] = chance.choice([b'"', b",", b"\n", b"\r", b"\0", b"\xff", b'""', b";"])
            elif act == 3:
                del data[at:]
            else:
                data[at:at] = data[: chance.randint(0, 20)]
        table = made(tmp_path, bytes(data), piece=chance.choice([3, 17, 1 << 19]))
        faults = [*table.notes(), *(fault for row in everything(table) for fault in row.faults)]
        assert {fault.code for fault in faults} <= known, round_


def test_opening_does_not_wait_for_the_end_of_a_long_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_BYTES", 4000)
    monkeypatch.setattr(csv_opening, "_ENOUGH", 1000)
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,2\n3," + b"x" * 3_000_000 + b"\n5,6\n")
    found = CsvTable(path, "a.csv", piece=2000)
    read: list[int] = []

    def chunks(*args: Any) -> Any:
        for start in range(0, 3_000_018, 500):
            read.append(start)
            yield path.read_bytes()[start : start + 500]

    with monkeypatch.context() as patch:
        patch.setattr(plain, "chunks", chunks)
        rows = found.rows()
        assert found.opening.names == ("a", "b") and next(rows).values == {"a": "1", "b": "2"}
        assert next(rows).faults[0].code == "row-too-long"
        assert max(read) < plain.FIRST
    streamed = list(found.rows())
    assert [row.line for row in streamed] == [2, 3, 4] and streamed[2].values == {"a": "5", "b": "6"}
    assert [found.row(i) for i in range(found.count())] == streamed


def test_a_header_without_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_opening, "_ENOUGH", 1000)
    for beginning in (b"x" * 2000, b'"' + b"x\n" * 2000):
        (tmp_path / "a.csv").write_bytes(beginning + b",b\n1,2\n")
        (note,) = CsvTable(tmp_path / "a.csv", "a.csv").notes()
        assert note.code == "header-missing" and "too long" in note.message


def test_a_file_that_cannot_be_opened_has_no_opinion_on_its_header(tmp_path: Path) -> None:
    found = CsvTable(tmp_path, "a.csv")  # a folder cannot be opened, by root neither
    assert not found.notes() and [fault.code for row in found.rows() for fault in row.faults] == ["unreadable"]
    assert found.count() == 1


def test_nothing_is_said_when_the_interpreter_ends(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    code = (
        "import sys, pathlib; from fewbit.data.tables import csv_table, text_table\n"
        "found = csv_table.CsvTable(pathlib.Path(sys.argv[1]), 'a.csv'); found.row(0); text_table.os = None\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.csv")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""
