# SPDX-License-Identifier: Apache-2.0
"""JSON and JSON Lines files: what lenient parsers pass over is named, in every way rows are written."""

import gzip
import json
import pickle
import random

import orjson
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.mutation import mutate_bytes
from fewbit.data.files import Folder
from fewbit.data.formats.json import FORMAT, detect, scan
from fewbit.data.rows import json_reader, text
from fewbit.data.types import DataReport
from fewbit.errors import FewbitError

CODES = {kind.code for kind in FORMAT.issues} | {"file-unreadable", "special-file"}
STRUCTURE = {kind.code for kind in (*json_reader.ISSUES, *text.ISSUES)}

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
objects = st.dictionaries(st.text(), values, max_size=4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))


def read(folder, content, name="a.jsonl", on_error="drop", depth="full", **options):
    (folder / name).write_bytes(content)
    report = DataReport(on_error=on_error)
    return scan(Folder(folder / name), report, depth=depth, options=options), report


def rows(source):
    """All rows of the table, after checking that one by one they are the same as in blocks."""
    table = source.table
    in_blocks = [row for _, block in table.blocks() for row in block]
    assert repr([table.row(index) for index in range(len(table))]) == repr(in_blocks)
    again = pickle.loads(pickle.dumps(table))
    assert repr([again.row(index) for index in reversed(range(len(again)))]) == repr(in_blocks[::-1])
    assert [again.location(index) for index in range(len(table))] == [table.location(i) for i in range(len(table))]
    return in_blocks


def lines(source):
    return [source.table.location(index).line for index in range(len(source.table))]


def located(report):
    return [(issue.code, issue.location.line) for issue in report.issues if issue.code in STRUCTURE]


def codes(report):
    return [code for code, _ in located(report)]


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lf_crlf_and_cr_end_lines(tmp_path, newline):
    source, _ = read(tmp_path, newline.join(['{"a": 1}', '{"a": 2}', ""]).encode())
    assert rows(source) == [{"a": 1}, {"a": 2}] and lines(source) == [1, 2]


def test_u2028_inside_a_string_is_no_line_end(tmp_path):
    value = {"t": "a\u2028b\u2029c\x85d"}
    source, _ = read(tmp_path, json.dumps(value, ensure_ascii=False).encode() + b"\n")
    assert rows(source) == [value]


def test_blank_lines_are_passed_over_and_lines_still_count(tmp_path):
    source, report = read(tmp_path, b'\n{"a": 1}\n\n  \t\r\n{"a": 2}\n\n\n{"a": 3}\n\n')
    assert rows(source) == [{"a": 1}, {"a": 2}, {"a": 3}] and lines(source) == [2, 5, 8] and not located(report)


def test_a_cut_off_last_line_is_truncated_and_a_whole_one_is_fine(tmp_path):
    _, report = read(tmp_path, b'{"a": 1}\n{"a": "tru')
    assert located(report) == [("truncated-row", 2)]
    source, report = read(tmp_path, b'{"a": 1}\n{"a": 2}')
    assert rows(source) == [{"a": 1}, {"a": 2}] and not located(report)


DAMAGE = {
    b'{"a": ': "bad-json",
    b'{"a": 1} {"a": 2}': "bad-json",
    b"[1]": "not-an-object",
    b'"text"': "not-an-object",
    b"null": "not-an-object",
    b'{"a": 1, "a": 2}': "duplicate-key",
    b'{"a":1,"a" :2}': "duplicate-key",
    b'{"x": {"a": 1, "a": 2}}': "duplicate-key",
    b'{"x": [{"a": "b:c", "a": 2}]}': "duplicate-key",
    b'{"a": NaN}': "nan-in-json",
    b'{"a": -Infinity}': "nan-in-json",
    b'{"a": 1e999}': "nan-in-json",
    b'{"a": "x\\ud800y"}': "lone-surrogate",
    b'{"a": "caf\xe9"}': "bad-encoding",
    b'{"a": "\0"}': "nul-byte",
    b"\0\0\0": "nul-byte",
    b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}": "too-deep",
    b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "too-deep",
    b'{"a": ' + b"9" * 1_000_000 + b"}": "bad-json",
    b'\xef\xbb\xbf\xef\xbb\xbf{"a": 2}': "mark-inside",
}


@pytest.mark.parametrize(("raw", "code"), DAMAGE.items(), ids=[f"{n}-{code}" for n, code in enumerate(DAMAGE.values())])
def test_every_kind_of_damage_is_named_at_its_line(tmp_path, raw, code):
    source, report = read(tmp_path, b'{"a": 1}\n' * 50 + raw + b"\n" + b'{"b": 1}\n' * 50)
    assert located(report) == [(code, 51)]
    used = code in ("nan-in-json", "mark-inside")
    assert lines(source) == [*range(1, 51), *([51] if used else []), *range(52, 102)]
    rows(source)


def test_actions_by_code(tmp_path):
    content = b'{"a": 1}\n{"a": 3, "a": 4}\n{"a": "\xff"}\n{"a": "\\udc00"}\n'
    actions = {"duplicate-key": "keep", "bad-encoding": "repair", "lone-surrogate": "repair"}
    source, _ = read(tmp_path, content, on_error=actions)
    assert rows(source) == [{"a": 1}, {"a": 4}, {"a": "\ufffd"}, {"a": "\ufffd"}]


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40, 1234567890123456789])
def test_big_integers_keep_their_digits(tmp_path, number):
    row = {"a": number, "b": [{"c": number}]}
    source, report = read(tmp_path, b'{"a": 1.5e300}\n' + json.dumps(row).encode())
    assert rows(source) == [{"a": 1.5e300}, row] and not located(report)


def test_colons_and_quotes_inside_strings_are_no_keys(tmp_path):
    row = {"url": "https://a:b", "quote": '\\":"', "n": {"x:": [1, {"y": ":"}]}, 'k"': 'said ":'}
    source, report = read(tmp_path, orjson.dumps(row) + b"\n" + json.dumps(row, separators=(" , ", " : ")).encode())
    assert rows(source) == [row, row] and not located(report)


def test_a_wide_row_is_not_deep(tmp_path):
    source, report = read(tmp_path, b'{"a": [' + b",".join([b"[]"] * 1000) + b"]}")
    assert len(source) == 1 and not located(report)


def test_two_damaged_lines_that_look_whole_together_are_two_problems(tmp_path):
    _, report = read(tmp_path, b'{"a": 0}\n{"a":[{"x":1}\n{"y":2}]},{"b":1}\n')
    assert located(report) == [("bad-json", 2), ("bad-json", 3)]


def test_a_row_beyond_the_limit_is_named_and_reading_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MOST_RECORD", 100_000)
    long = b'{"a": "' + b"x" * 3_000_000 + b'"}\n'
    source, report = read(tmp_path, long + b'{"a": 1}\n' + long)
    assert located(report) == [("row-too-long", 1), ("row-too-long", 3)] and lines(source) == [2]


# ---------------------------------------------------------------- encodings and packing


def test_a_mark_is_no_part_of_the_first_key(tmp_path):
    source, report = read(tmp_path, b'\xef\xbb\xbf{"t": 1}\n{"t": "caf\xe9"}\n')
    assert rows(source) == [{"t": 1}] and report.issues[0].location.byte == 22


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_marks_of_utf16_and_utf32_are_known(tmp_path, encoding):
    mark = "" if encoding in ("utf-16", "utf-32") else "\ufeff"
    source, _ = read(tmp_path, (mark + '{"t": "é\U0001f600"}\n{"t": 2}').encode(encoding))
    assert rows(source) == [{"t": "é\U0001f600"}, {"t": 2}]


def test_an_encoding_can_be_named_but_is_never_guessed(tmp_path):
    source, _ = read(tmp_path, b'{"t": "caf\xe9"}\n', encoding="cp1252")
    assert rows(source) == [{"t": "café"}]
    _, report = read(tmp_path, b'{"t": 1}\n{"t": "\x81"}\n', encoding="cp1252")
    assert located(report) == [("bad-encoding", 2)]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_packed_files(tmp_path, suffix):
    content = b"".join(b'{"a": %d}\n' % (number * 7919 % 100_003) for number in range(100_000))
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    source, _ = read(tmp_path, pack(content[:300]) + pack(content[300:]), "a.jsonl" + suffix, depth="index")
    assert source[0] == {"a": 0} and not (tmp_path / "cache").exists()  # the first block needs no copy
    assert len(source) == 100_000 and source[1] == {"a": 7919} and (tmp_path / "cache").exists()
    packed = pack(content)
    source, report = read(tmp_path, packed[: len(packed) // 2], "b.jsonl" + suffix)
    assert len(source) > 1000 and "bad-compression" in codes(report)
    assert source[len(source) - 1] == {"a": (len(source) - 1) * 7919 % 100_003}


def test_padding_between_gzip_members_is_no_damage(tmp_path):
    content = gzip.compress(b'{"a": 1}\n') + b"\0" * 512 + gzip.compress(b'{"a": 2}\n')
    source, report = read(tmp_path, content, "a.jsonl.gz")
    assert rows(source) == [{"a": 1}, {"a": 2}] and not located(report)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bomb_is_named(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(text, "LEAST_BOMB", 1 << 20)
    monkeypatch.setattr(text, "MOST_EXPANSION", 100)
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    _, report = read(tmp_path, pack(b'{"a": 1}\n' + b"\n" * (8 << 20)), "a.jsonl" + suffix)
    assert "expansion-bomb" in codes(report)


def test_a_file_that_changes_while_it_is_unpacked_is_not_kept(tmp_path, monkeypatch):
    content = gzip.compress(b'{"a": 1}\n' * 100_000)
    source, _ = read(tmp_path, content, "a.jsonl.gz")
    prints = iter(range(100))
    monkeypatch.setattr(Folder, "fingerprint", lambda self, name: str(next(prints)))
    with pytest.raises(FewbitError, match="changed"):
        source[0]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_names_and_packing_may_disagree(tmp_path):
    source, report = read(tmp_path, b'{"a": 1}\n', "a.jsonl.gz")
    assert rows(source) == [{"a": 1}] and report.counts["packing-mismatch"] == 1
    source, report = read(tmp_path, gzip.compress(b'{"a": 2}\n'), "b.jsonl")
    assert rows(source) == [{"a": 2}] and report.counts["packing-mismatch"] == 1


# ---------------------------------------------------------------- arrays and objects


def test_rows_of_an_array_have_numbers(tmp_path):
    source, report = read(tmp_path, b'[{"a": 1}, 5, {"a": 2}, {"a": "x"},\n{"a": 3, "a": 4}]', "a.json")
    assert [str(source.location(index)) for index in range(3)] == ["a.json:1 row 0", "a.json:1 row 2", "a.json:1 row 3"]
    assert [str(issue.location) for issue in report.errors] == ["a.json:1 row 1", "a.json:2 row 4"]
    mixed = next(issue for issue in report.issues if issue.code == "mixed-types")
    assert mixed.message == "int 2, str 1 at row 3"


def test_nested_questions_become_rows(tmp_path):
    answer = {"text": "Ann", "answer_start": 6}
    questions = [{"id": "1", "question": "Who?", "answers": [answer]}, {"id": "2", "question": "Why?", "answers": []}]
    article = {"title": "People", "paragraphs": [{"context": "It is Ann.", "qas": questions}]}
    content = json.dumps({"version": "2.0", "data": [article, article]}).encode()
    source, report = read(tmp_path, content, "train.json", on_error=None)
    assert len(source) == 4 and source.facts["task"] == "question-answering" and not report.errors
    answers = {"text": ["Ann"], "answer_start": [6]}
    row = {"question": "Who?", "context": "It is Ann.", "answers": answers, "id": "1", "title": "People"}
    assert source[0] == row and str(source.location(2)) == "train.json row 2"
    assert detect(Folder(tmp_path / "train.json")).confidence > 0.9


@pytest.mark.parametrize("kind", [list, lambda values: {str(number): value for number, value in enumerate(values)}])
def test_an_object_of_columns_is_read_as_rows(tmp_path, kind):
    content = json.dumps({"text": kind(["a", "b", "c"]), "label": kind([0, 1, 0])}, indent=1).encode()
    source, report = read(tmp_path, content, "a.json", on_error=None)
    assert [source[index] for index in (0, 1)] == [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    assert report.counts["columns-as-object"] == 1 and detect(Folder(tmp_path / "a.json")).confidence > 0.9


def test_an_array_is_read_and_noted(tmp_path):
    source, report = read(tmp_path, b'[{"a": 1},\n {"a": 2}]')
    assert rows(source) == [{"a": 1}, {"a": 2}] and lines(source) == [1, 2] and report.counts == {"not-lines": 1}


@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_rows_under_data(tmp_path, space):
    content = f'{{{space}"version": [1],{space}"data": [{space}{{"a": "]"}},{space}{{"a": 2}}{space}], "more": {{}}}}\n'
    source, report = read(tmp_path, content.encode(), "a.json")
    assert rows(source) == [{"a": "]"}, {"a": 2}]
    assert [i.message for i in report.issues if i.code == "rows-under-data"] == ["not read: version, more"]


def test_lines_may_be_called_json_and_have_a_column_data(tmp_path):
    source, report = read(tmp_path, b'{"data": [{"a": 1}]}\n{"data": []}\n', "a.json")
    assert len(rows(source)) == 2 and not located(report)


def test_objects_over_many_lines(tmp_path):
    source, _ = read(tmp_path, b'{\n "a": 1\n}\n{\n "a": 2\n}\n', "a.json")
    assert rows(source) == [{"a": 1}, {"a": 2}] and lines(source) == [1, 4]
    source, report = read(tmp_path, b'{\n "a": 1\n}\n', "a.json")
    assert rows(source) == [{"a": 1}] and report.counts == {"not-rows": 1}


@pytest.mark.parametrize("content", [b"[]", b" [ \n ] \n", b'{"data": []}', b"", b"\n\n", b"\xef\xbb\xbf", b"   "])
def test_nothing_has_no_rows_and_says_so(tmp_path, content):
    source, report = read(tmp_path, content, "a.json", on_error=None)
    assert len(source) == 0 and report.counts["no-rows"] == 1 and report.raising()


@pytest.mark.parametrize(
    ("content", "expected", "count"),
    [
        (b'[{"a": 1},\n {"a": 2', [("truncated-file", 2)], 1),
        (b'[\n{"a": 1},\n{"a": 2},\n', [("truncated-file", 4)], 2),
        (b'[{"a": 1}, ]', [("bad-json", 1)], 1),
        (b'[{"a": 1},, {"a": 2}]', [("bad-json", 1)], 2),
        (b'[\n{"a": 1}\n]\n\nmore\n', [("trailing-data", 5)], 1),
        (b'[{"a": 1}, 5,\n "x"]', [("not-an-object", 1), ("not-an-object", 2)], 1),
        (b'[{"a": 1},\n {"a" 2}, {"a": 3}]', [("bad-json", 2)], 2),
        (b'[{"a": 1},\n {"a": 1, "a": 2}, {"a": 3}]', [("duplicate-key", 2)], 2),
        (b'\n{"data":\n[{"a": 1}', [("truncated-file", 3)], 0),
    ],
)
def test_damage_inside_an_array_stays_where_it_is(tmp_path, content, expected, count):
    source, report = read(tmp_path, content, "a.json")
    assert [entry for entry in located(report) if entry[0] != "empty-file"] == expected and len(rows(source)) == count


@pytest.mark.parametrize("size", [1, 60_000])
def test_coco_annotations_are_no_rows(tmp_path, size):
    image = {"id": 1, "file_name": "a.jpg", "height": 480, "width": 640, "coco_url": "http://example.org/a.jpg"}
    content = orjson.dumps({"info": {}, "images": [image] * size, "annotations": [{"id": 1}], "categories": []})
    source, report = read(tmp_path, content, "instances.json", on_error=None)
    assert report.counts["coco-json"] == 1 and len(source) == 0
    assert detect(Folder(tmp_path / "instances.json")) is None


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(objects, max_size=6), st.none() | st.integers(0, 2), st.booleans(), st.sampled_from([1, 5, 64, 1 << 16])
)
def test_arrays_and_lines_are_read_as_written_whatever_the_pieces(tmp_path, written, indent, lines_, size):
    if lines_:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in written)
    else:
        content = json.dumps(written, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "FIRST_BLOCK", size)
        patch.setattr(text, "BLOCK", size)
        source, report = read(tmp_path, content, "a.json" if not lines_ else "a.jsonl")
        if b"\\ud" not in content:
            assert rows(source) == written and not [code for code in codes(report) if code != "empty-file"]


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.text('[]{},"\\ \n:1a', max_size=60).map(str.encode), st.sampled_from([1, 5, 64]))
def test_any_bytes_give_the_same_rows_and_issues_whatever_the_pieces(tmp_path, content, size):
    complete, expected = read(tmp_path, content, "a.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "FIRST_BLOCK", size)
        patch.setattr(text, "BLOCK", size)
        pieces, report = read(tmp_path, content, "a.json")
        assert repr(rows(pieces)) == repr(rows(complete))
        assert located(report) == located(expected) and lines(pieces) == lines(complete)


# ---------------------------------------------------------------- laziness, safety, detection


def test_the_first_row_of_a_long_file_reads_one_small_block(tmp_path):
    source, report = read(tmp_path, b'{"text": "x"}\n' * 200_000 + b"bad\n", depth="index", on_error=None)
    assert source[0] == {"text": "x"} and len(source.table._index) < 20_000 and not report.issues
    assert not source.length_known
    assert len(source) == 200_000 and located(report) == [("bad-json", 200_001)]


def test_a_file_that_changes_while_it_is_read_is_a_typed_error(tmp_path):
    source, _ = read(tmp_path, b'{"text": "x"}\n' * 20_000)
    with (tmp_path / "a.jsonl").open("r+b") as stream:
        stream.write(b"oops")
    with pytest.raises(FewbitError):
        source[0]


def test_the_folder_of_the_dataset_is_never_written_to(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    source, _ = read(folder, gzip.compress(b'{"a": 1}\n' * 100_000), "a.jsonl.gz")
    assert source[0] == {"a": 1} and [path.name for path in folder.iterdir()] == ["a.jsonl.gz"]


MUTANTS = {
    "lines.jsonl": b'{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n' * 5,
    "array.json": json.dumps([{"text": "t", "label": "pos"}] * 4, indent=1).encode(),
    "data.json": json.dumps({"v": 1, "data": [{"text": "t"}] * 3}).encode(),
    "chat.jsonl": (json.dumps({"messages": [{"role": "user", "content": "hi"}] * 2}).encode() + b"\n") * 3,
    "utf16.jsonl": '{"text": "a"}\n{"text": "é"}\n'.encode("utf-16"),
    "packed.jsonl.gz": gzip.compress(b'{"text": "a"}\n' * 30),
    "packed.jsonl.zst": zstandard.compress(b'{"text": "a"}\n' * 30),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutated_files_end_in_rows_or_typed_issues(tmp_path, name):
    chance = random.Random(name)
    for number in range(40):
        content = mutate_bytes(MUTANTS[name], chance)
        try:
            source, report = read(tmp_path, content, name, on_error=chance.choice([None, "drop", "repair", "keep"]))
            rows(source)
            assert {issue.code for issue in report.issues} <= CODES, number
        except FewbitError as error:
            assert error.what


def test_detection(tmp_path):
    def sure(name, content):
        (tmp_path / name).write_bytes(content)
        detection = detect(Folder(tmp_path / name))
        return 0 if detection is None else detection.confidence

    assert sure("a.jsonl", b'{"a": 1}\n{"a": 2}\n') > 0.9 and sure("b.json", b'[{"a": 1}]') > 0.9
    assert sure("one.jsonl", b'{"a": 1}\n') > 0.9
    assert sure("c.json", b'{"name": "x"}') < 0.5 and sure("config.json", b'{"name": "x"}') == 0
    (tmp_path / "state.json").write_text("{}")
    assert detect(Folder(tmp_path)).confidence < 0.5
