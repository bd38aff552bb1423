# SPDX-License-Identifier: Apache-2.0
"""CSV and TSV files: every structural problem at its line, values as they are written, both ways of reading alike."""

import csv
import gzip
import io
import pickle
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.mutation import mutate_bytes
from fewbit.data.files import Folder
from fewbit.data.formats.csv import FORMAT, detect, scan
from fewbit.data.rows import csv_reader, table, text
from fewbit.data.rows.header import column_names, find_delimiter, like_data
from fewbit.data.types import DataReport, Location
from fewbit.errors import DataError, FewbitError, UsageError

CODES = {kind.code for kind in FORMAT.issues} | {"file-unreadable", "special-file"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))


def read(folder, content, name="a.csv", on_error="drop", depth="full", **options):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    report = DataReport(on_error=on_error)
    return scan(Folder(path), report, depth=depth, options=options), report


def rows(source):
    """All rows of the table, after checking that one by one they are the same as in blocks."""
    table = source.table
    in_blocks = [row for _, block in table.blocks() for row in block]
    assert [table.row(index) for index in range(len(table))] == in_blocks
    again = pickle.loads(pickle.dumps(table))
    assert [again.row(index) for index in reversed(range(len(again)))] == in_blocks[::-1]
    assert [again.location(index) for index in range(len(table))] == [table.location(i) for i in range(len(table))]
    return in_blocks


def lines(source):
    return [source.table.location(index).line for index in range(len(source.table))]


STRUCTURE = {kind.code for kind in (*csv_reader.ISSUES, *text.ISSUES)}


def located(report):
    return [(issue.code, issue.location.line) for issue in report.issues if issue.code in STRUCTURE]


# ---------------------------------------------------------------- values and lines


def test_values_stay_the_text_they_are(tmp_path):
    source, _ = read(tmp_path, "id,text,n\n007,NA,\n1,null,1.0\n+1,nan,1_000\n")
    assert rows(source) == [
        {"id": "007", "text": "NA", "n": ""},
        {"id": "1", "text": "null", "n": "1.0"},
        {"id": "+1", "text": "nan", "n": "1_000"},
    ]


def test_quotes_line_breaks_and_delimiters_inside_fields(tmp_path):
    source, report = read(tmp_path, 'a,b\r\n"x, ""y""\r\nz",1\r\n"",2\r\n"""q""",3\r\n')
    assert rows(source) == [{"a": 'x, "y"\r\nz', "b": "1"}, {"a": "", "b": "2"}, {"a": '"q"', "b": "3"}]
    assert lines(source) == [2, 4, 5] and located(report) == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_every_kind_and_blank_lines(tmp_path, end):
    source, _ = read(tmp_path, end.join(["", "a,b", "1,2", "", "", "3,4"]))
    assert rows(source) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}] and lines(source) == [3, 6]


def test_u2028_and_a_bare_carriage_return_are_no_line_ends(tmp_path):
    source, _ = read(tmp_path, "a,b\nx\u2028y\u0085z\x0bw,1\nq\rr,2\n")
    assert [row["a"] for row in rows(source)] == ["x\u2028y\u0085z\x0bw", "q\rr"]


def test_one_column_and_blank_lines(tmp_path):
    source, _ = read(tmp_path, 'text\na\n\n""\nb\n')
    assert [row["text"] for row in rows(source)] == ["a", "", "b"] and lines(source) == [2, 4, 5]


def test_long_fields_and_the_limit_of_the_csv_module(tmp_path):
    limit, long = csv.field_size_limit(), "x" * 700_000
    source, _ = read(tmp_path, f'a,b\n"{long}\n{long}",1\n{long},2\n')
    assert rows(source) == [{"a": f"{long}\n{long}", "b": "1"}, {"a": long, "b": "2"}]
    assert csv.field_size_limit() == limit


def test_declared_types_are_cast_and_nothing_else(tmp_path):
    content = "id,label,score,flag\n007,007,1e-3,true\n1,x,.5,no\n2,,nan,0\n3,1_0,1,1\n4,5,2,0\n"
    source, report = read(tmp_path, content, types="label=int,score=float,flag=bool")
    assert rows(source) == [
        {"id": "007", "label": 7, "score": 0.001, "flag": True},
        {"id": "4", "label": 5, "score": 2.0, "flag": False},
    ]
    assert [code for code, _ in located(report)] == ["bad-cast"] * 5
    with pytest.raises(UsageError, match="float"):
        read(tmp_path, "a\n1\n", types={"a": "flaot"})
    with pytest.raises(UsageError, match="label"):
        read(tmp_path, "label\n1\n", types={"lable": int})


# ---------------------------------------------------------------- structural problems


def test_ragged_rows_name_their_line_and_the_file_goes_on(tmp_path):
    source, report = read(tmp_path, "text,label\nfine,1\nshort\na,b,2\ntrailing,0,\nlast,1\n")
    assert located(report) == [("row-short", 3), ("row-long", 4), ("trailing-delimiter", 5)]
    assert [row["text"] for row in rows(source)] == ["fine", "trailing", "last"]
    source, _ = read(tmp_path, "text,label\nshort\na,b,2\n", on_error={"row-short": "repair", "row-long": "repair"})
    assert rows(source) == [{"text": "short", "label": ""}, {"text": "a", "label": "b"}]


def test_odd_quotes_are_named_apart(tmp_path):
    source, report = read(tmp_path, 'a,b\n5" disk,1\n"x"y,2\n"say "hi" now",3\nok,4\n')
    assert located(report) == [("quote-stray", 2), ("quote-early", 3), ("quote-early", 4)]
    assert [row["a"] for row in rows(source)] == ['5" disk', "ok"]
    source, _ = read(tmp_path, 'a,b\n"x"y,2\n', on_error={"quote-early": "keep"})
    assert rows(source) == [{"a": "xy", "b": "2"}]


def test_an_unclosed_quote_is_found_where_it_opens_and_the_rest_is_still_read(tmp_path):
    source, report = read(tmp_path, 'a,b\n1,2\n"x\ny",3\n4,"never\n5,6\n7\n')
    assert located(report) == [("quote-unclosed", 5), ("row-short", 7)] and lines(source) == [2, 3, 6]
    source, report = read(tmp_path, 'a,b\n1,2\n4,"never\n5,6\n"q",7\n')
    assert located(report) == [("quote-unclosed", 3)] and lines(source) == [2, 4, 5]


def test_an_unclosed_quote_before_many_rows_costs_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_reader, "MOST_QUOTED", 100_000)
    source, report = read(tmp_path, 'a,b\n0,"open\n' + "1,x\n" * 100_000)
    assert located(report) == [("quote-unclosed", 2)] and len(source) == 100_000


def test_many_unclosed_quotes_end(tmp_path):
    _, report = read(tmp_path, "a,b\n" + 'x,"y\n' * 3001)
    assert report.counts["quote-unclosed"] == 3001


def test_nul_and_undecodable_bytes_have_line_and_offset(tmp_path):
    source, report = read(tmp_path, b'a,b\ncaf\xe9,1\nok,2\n"x\n\xff",3\nn\0l,4\n')
    places = [(i.code, i.location.line, i.location.byte) for i in report.issues if i.code in STRUCTURE]
    assert places == [("bad-encoding", 2, 7), ("bad-encoding", 5, 19), ("nul-byte", 6, 25)]
    assert [row["a"] for row in rows(source)] == ["ok"]


def test_a_line_beyond_the_limit_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MOST_RECORD", 200_000)
    source, report = read(tmp_path, b"a,b\n1," + b"x" * 3_000_000 + b"\n2,y\n")
    assert located(report) == [("row-too-long", 2)] and rows(source) == [{"a": "2", "b": "y"}] and lines(source) == [3]


def test_by_default_reading_stops_with_every_problem_named(tmp_path):
    from fewbit.data.opening import issues_error

    _, report = read(tmp_path, "text,label\na,1\nb,2,3\nc\n", on_error=None)
    error = issues_error(report, report.raising())
    assert isinstance(error, DataError) and "a.csv:3" in str(error) and "a.csv:4" in str(error)


def test_clean_rows_between_damaged_ones_are_not_lost(tmp_path):
    random_ = random.Random(3)
    damage = {"row-short": "x\n", "row-long": "1,2,3\n", "quote-early": '"x"y,2\n', "quote-stray": 'a"b,2\n'}
    content, expected, good, line = ["a,b\n"], [], [], 2
    for number in range(5000):
        if number % 37 == 5:
            code = random_.choice(list(damage))
            content.append(damage[code])
            expected.append((code, line))
            good += [line] if code == "quote-stray" else []
        elif number % 10 == 0:
            content.append(f'"{number}, ""x""\ny",z\n')
            good.append(line)
            line += 1
        else:
            content.append(f"{number},z\n")
            good.append(line)
        line += 1
    source, report = read(tmp_path, "".join(content))
    assert located(report) == expected and lines(source) == good
    rows(source)


# ---------------------------------------------------------------- dialect and header


def delimiter_of(head, name="a.csv"):
    report = DataReport()
    return find_delimiter(head, name, report)[0], list(report.counts)


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_the_delimiter_is_found_among_four(delimiter):
    content = "\r\n".join(delimiter.join(row) for row in (["id", "text", "label"], ["1", "a", "x"], ["2", "b", "y"]))
    assert delimiter_of(content.encode())[0] == delimiter


def test_the_rows_confirm_the_delimiter():
    guessed = delimiter_of(b"id;name, first;label\n1;Ann;0\n2;Bob;1\n3;Cy;0\n")
    assert guessed == (";", ["delimiter-guessed"])
    assert delimiter_of(b'"a;b;c","d;e;f"\n"1;2;3","4;5;6"\n')[0] == ","
    assert delimiter_of(b"x;y\n1,5;2,5\n3,5;4,5\n")[0] == ";"
    assert delimiter_of(b"a,b|c\n1,2|3\n")[1] == ["delimiter-unclear"]
    assert delimiter_of(b"text\n", "a.tsv")[0] == "\t"


@pytest.mark.parametrize("line", ["sep=;\n", '"sep=;"\r\n', "SEP=;\r\n"])
def test_the_sep_line_of_excel(tmp_path, line):
    source, _ = read(tmp_path, line + "a;b\r\n1;2,5\r\n")
    assert rows(source) == [{"a": "1", "b": "2,5"}] and lines(source) == [3]


def test_the_users_delimiter_wins(tmp_path):
    source, _ = read(tmp_path, "a|b\n1|2\n", delimiter=",")
    assert rows(source) == [{"a|b": "1|2"}]
    source, _ = read(tmp_path, "a\tb\n1\t2,5\n", "a.tsv")
    assert rows(source) == [{"a": "1", "b": "2,5"}]


@pytest.mark.parametrize("delimiter", ["", "a", '"', "\n", "ab", "é", "1", "-", "."])
def test_a_delimiter_that_cannot_be_one_is_wrong_use(tmp_path, delimiter):
    with pytest.raises(UsageError, match="cannot separate"):
        read(tmp_path, "a,b\n1,2\n", delimiter=delimiter)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_have_a_delimiter(head):
    assert len(delimiter_of(head)[0]) == 1


def test_duplicate_and_empty_names_are_errors_and_get_names_that_are_free(tmp_path):
    report = DataReport()
    names = column_names(["a", "a", "", "a_2", " "], Location("a.csv", line=1), report)
    assert names == ["a", "a_2_", "column_3", "a_2", "column_5"]
    assert report.counts == {"header-duplicate": 1, "header-empty": 2}
    source, report = read(tmp_path, "a,b, c,\n1,2,3,\n")
    assert report.counts["header-empty"] == report.counts["header-space"] == 1
    assert rows(source) == [{"a": "1", "b": "2", "c": "3", "column_4": ""}]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["a", "", "a_2", "column_1", "b", "a_3", "a_2_"]), min_size=1, max_size=8))
def test_repaired_names_are_all_different(fields):
    names = column_names(fields, Location(), DataReport())
    assert len(set(names)) == len(fields) and all(names)


@pytest.mark.parametrize(
    ("fields", "below", "is_data"),
    [
        (["1", "2.5", "-3"], [], True),
        (["great film", "1"], [["bad film", "0"], ["fine", "1"]], True),
        (["1", "hello"], [["2", "bye"]], True),
        (["2020-01-01", "3"], [["2020-01-02", "4"]], True),
        (["nice", "pos"], [["bad", "neg"], ["good", "pos"]], True),
        (["id", "1"], [["7", "2"]], False),
        (["text", "1"], [["a", "5"]], False),
        (["country", "2019", "2020"], [["France", "1", "2"]], False),
        (["1", "hello"], [], False),
    ],
)
def test_a_header_that_looks_like_data_is_an_issue(fields, below, is_data):
    assert bool(like_data(fields, below)) == is_data


def test_a_file_without_a_header_is_never_ok_and_can_be_given_one(tmp_path):
    content = "".join(f"film {number},{number % 2}\n" for number in range(40))
    source, report = read(tmp_path, content, on_error=None)
    report.facts["samples"], report.complete = len(source), True
    assert report.counts["header-like-data"] == 1 and not report.ok
    source, report = read(tmp_path, content, header="text,label")
    assert len(source) == 40 and source[0] == {"text": "film 0", "label": 0} and not report.warnings


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\xef\xbb\xbf", b'a,"b\n1,2\n', b"a\0,b\n1,2\n", b"caf\xe9,n\nx,1\n"]
)
def test_without_a_usable_header_there_are_no_rows(tmp_path, content):
    source, report = read(tmp_path, content, on_error=None)
    assert len(source) == 0 and report.raising()
    assert report.counts["header-missing"] == 1 or report.counts["empty-file"] == report.counts["no-rows"] == 1


# ---------------------------------------------------------------- encodings and packing


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    source, report = read(tmp_path, b"\xef\xbb\xbfid,text\n1,caf\xe9\n2,x\n")
    assert rows(source) == [{"id": "2", "text": "x"}]
    assert [i.location.byte for i in report.issues if i.code == "bad-encoding"] == [16]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "cp1252", "shift_jis"])
def test_other_encodings_are_read_when_marked_or_named(tmp_path, encoding):
    text_ = "é" if encoding != "shift_jis" else "日"
    content = f'id,text\n1,"caf{text_}, ""{text_}"""\n2,b\n'.encode(encoding)
    source, report = read(tmp_path, content, encoding=encoding if encoding not in ("utf-16", "utf-32") else None)
    assert rows(source)[0] == {"id": "1", "text": f'caf{text_}, "{text_}"'} and not located(report)


def test_an_encoding_that_does_not_fit_is_named_with_its_line(tmp_path):
    source, report = read(tmp_path, b"a,b\nx,1\n\x81,2\ny,3\n", encoding="cp1252")
    assert located(report) == [("bad-encoding", 3)] and len(source) == 2
    with pytest.raises(UsageError, match="encoding"):
        read(tmp_path, "a\n1\n", encoding="utf8-ish")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_packed_files_are_read_and_their_damage_is_named(tmp_path, suffix):
    import zstandard

    pack = gzip.compress if suffix == "gz" else zstandard.compress
    random_ = random.Random(1)
    content = b"a,b\n" + b"".join(b"%d,%d\n" % (number, random_.randrange(10**9)) for number in range(50_000))
    source, report = read(tmp_path, pack(content[:1000]) + pack(content[1000:]), f"a.csv.{suffix}")
    assert len(source) == 50_000 and source.table.row(49_999)["a"] == "49999" and not located(report)
    source, report = read(tmp_path, pack(content)[:-2000], f"b.csv.{suffix}")
    assert 1000 < len(source) < 50_000 and "bad-compression" in report.counts
    assert source.table.row(len(source) - 1)["a"] == str(len(source) - 1)


# ---------------------------------------------------------------- laziness and properties


def test_the_first_row_reads_one_small_block(tmp_path):
    source, report = read(tmp_path, "text\n" + "some text\n" * 200_000 + '"open\n', depth="index", on_error=None)
    assert source[0] == {"text": "some text"} and not report.issues
    assert len(source.table._index) < 20_000
    assert len(source) == 200_000 and report.counts == {"quote-unclosed": 1}


def test_problems_found_after_opening_are_raised_all_at_once(tmp_path):
    source, report = read(tmp_path, "text\n" + "some text\n" * 20_000 + 'a,b\n"open\n', depth="index", on_error=None)
    report.complete = True
    with pytest.raises(DataError) as caught:
        len(source)
    assert "a.csv:20002" in str(caught.value) and "a.csv:20003" in str(caught.value)


def test_offsets_of_many_rows_are_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "IN_MEMORY", 1000)
    source, _ = read(tmp_path, "n\n" + "".join(f"r{number}\n" for number in range(50_000)))
    assert source.table._index._file is not None
    assert [source.table.row(index)["n"] for index in (0, 49_999, 777)] == ["r0", "r49999", "r777"]
    assert pickle.loads(pickle.dumps(source.table)).row(30_000) == {"n": "r30000"}


cells = st.text(alphabet=st.sampled_from('ab01.-,;"\n\rä😀 '), max_size=8)
tables = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=8)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]))
def test_a_table_is_what_csv_wrote(tmp_path, table, quoting, end):
    if quoting == csv.QUOTE_MINIMAL:  # which leaves CR without quotes
        table = [[cell.replace("\r", "") for cell in fields] for fields in table]
    out = io.StringIO()
    names = [f"name{number}" for number in range(len(table[0]))]
    csv.writer(out, quoting=quoting, lineterminator=end).writerows([names, *table])
    source, report = read(tmp_path, out.getvalue(), delimiter=",", on_error=None)
    assert rows(source) == [dict(zip(names, fields)) for fields in table] and not located(report)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet='ab,"\n\r\0é', max_size=60), st.sampled_from([1, 7, 64]))
def test_pieces_and_stretches_do_not_matter(tmp_path, content, size):
    complete, expected_report = read(tmp_path, "a,b\n" + content, delimiter=",")
    expected = rows(complete), lines(complete), located(expected_report)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_reader, "_STRETCH", size)
        patch.setattr(text, "FIRST_BLOCK", size)
        patch.setattr(text, "BLOCK", size)
        pieces, report = read(tmp_path, "a,b\n" + content, delimiter=",")
        assert (rows(pieces), lines(pieces), located(report)) == expected


@pytest.mark.parametrize("seed", range(3))
def test_mutated_files_end_in_rows_or_typed_issues(tmp_path, seed):
    chance = random.Random(seed)
    examples = [
        b'id,text,label\r\n1,"a ""b"", c\r\nd",0\r\n2,caf\xc3\xa9,1\r\n3,,\r\n' * 3,
        b"sep=;\na;b\n1;2\n3;4\n",
        'id\ttext\n1\t"x\ty"\n'.encode("utf-16"),
        gzip.compress(b"text,label\n" + b"good,1\nbad,0\n" * 20),
    ]
    for number in range(60):
        content = mutate_bytes(chance.choice(examples), chance)
        try:
            source, report = read(tmp_path, content, on_error=chance.choice([None, "drop", "repair", "keep"]))
            rows(source)
            assert {issue.code for issue in report.issues} <= CODES, number
        except FewbitError as error:
            assert error.what


# ---------------------------------------------------------------- detection


def test_detection_by_names(tmp_path):
    for name in ("train.csv", "test.csv", "README.md"):
        (tmp_path / name).write_text("text,label\na,1\n")
    assert detect(Folder(tmp_path)).confidence >= 0.9
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(b"x")
    assert detect(Folder(tmp_path)).confidence < 0.5
    (tmp_path / "test.csv").write_text("file_name,label\n0.png,cat\n")
    assert detect(Folder(tmp_path)).confidence >= 0.9
    assert detect(Folder(tmp_path / "0.png")) is None
