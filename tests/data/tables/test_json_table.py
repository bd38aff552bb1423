# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import pickle

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data import cache, limits
from fewbit.data.tables import json_scan, lines
from fewbit.data.tables.json_structure import Frame
from fewbit.data.tables.json_table import JsonTable

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
objects = st.dictionaries(st.text(), values, max_size=4)
pieces = st.integers(1, 50)


def table(tmp_path, content, name="a.jsonl", **options):
    path = tmp_path / name
    path.write_bytes(content)
    return JsonTable(path, name, **options)


def both_ways(found):
    """The rows, having seen that streaming and random access agree."""
    rows = list(found.rows())
    assert repr(rows) == repr([found.row(i) for i in range(found.count())])
    assert [row.line for row in rows] == [found.line(i) for i in range(found.count())]
    return rows


def good(rows):
    assert not [row.faults for row in rows if row.faults]
    return [row.values for row in rows]


def codes(rows):
    return [[fault.code for fault in row.faults] for row in rows]


def chunked(content, size):
    return [content[i : i + size] for i in range(0, len(content), size)]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_newlines_lf_crlf_and_cr_are_all_line_ends(tmp_path, newline):
    rows = both_ways(table(tmp_path, newline.join(['{"a": 1}', '{"a": 2}', ""]).encode()))
    assert good(rows) == [{"a": 1}, {"a": 2}] and [row.line for row in rows] == [1, 2]


def test_u2028_inside_a_json_string_is_not_a_newline(tmp_path):
    text = "a\u2028b\u2029c\x85d\x0be".replace("\x0b", "")
    rows = both_ways(table(tmp_path, json.dumps({"t": text}, ensure_ascii=False).encode() + b"\n"))
    assert good(rows) == [{"t": text}]


def test_blank_lines_are_skipped_and_lines_still_count(tmp_path):
    rows = both_ways(table(tmp_path, b'\n{"a": 1}\n\n  \t\r\n{"a": 2}\n\n\n{"a": 3}\n\n'))
    assert good(rows) == [{"a": 1}, {"a": 2}, {"a": 3}] and [row.line for row in rows] == [2, 5, 8]


def test_truncated_last_line_is_an_error_with_its_line(tmp_path):
    rows = both_ways(table(tmp_path, b'{"a": 1}\n{"a": "tru'))
    assert codes(rows) == [[], ["truncated-row"]] and rows[1].faults[0].line == 2


def test_a_last_line_without_newline_is_fine_when_it_is_whole(tmp_path):
    assert good(both_ways(table(tmp_path, b'{"a": 1}\n{"a": 2}'))) == [{"a": 1}, {"a": 2}]


def test_utf8_mark_is_not_part_of_the_first_key(tmp_path):
    assert good(both_ways(table(tmp_path, b'\xef\xbb\xbf{"text": 1}\n'))) == [{"text": 1}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_and_utf32_marks_are_detected(tmp_path, encoding):
    mark = "" if encoding in ("utf-16", "utf-32") else "\ufeff"
    content = (mark + '{"t": "é\U0001f600"}\n{"t": 2}').encode(encoding)
    assert good(both_ways(table(tmp_path, content))) == [{"t": "é\U0001f600"}, {"t": 2}]


def test_bad_utf8_is_an_error_with_the_byte_offset(tmp_path):
    (row,) = both_ways(table(tmp_path, b'{"t": "caf\xe9"}\n'))
    assert codes([row]) == [["bad-encoding"]] and row.faults[0].offset == 10 and row.faults[0].line == 1
    assert row.values == {"t": "caf\N{REPLACEMENT CHARACTER}"}


def test_offsets_count_the_mark_of_a_plain_file(tmp_path):
    (row,) = both_ways(table(tmp_path, b'\xef\xbb\xbf{"t": "caf\xe9"}\n'))
    assert row.faults[0].offset == 13


def test_encoding_override(tmp_path):
    assert good(both_ways(table(tmp_path, b'{"t": "caf\xe9"}\n', encoding="cp1252"))) == [{"t": "café"}]


def test_an_encoding_that_does_not_fit_ends_in_a_fault(tmp_path):
    rows = both_ways(table(tmp_path, b'{"t": 1}\n{"t": "\x81"}\n', encoding="cp1252"))
    assert "bad-encoding" in codes(rows)[-1] and rows[-1].faults[0].offset == 16


def test_nul_bytes_are_an_error(tmp_path):
    rows = both_ways(table(tmp_path, b'{"a": 1}\n\0\0\0\n{"a": "\0"}\n'))
    assert codes(rows) == [[], ["nul-byte"], ["nul-byte"]]


@pytest.mark.parametrize("raw", [b"1", b'"text"', b"null", b"true", b"[1]", b"1.5"])
def test_scalars_and_arrays_per_line_are_errors(tmp_path, raw):
    assert codes(both_ways(table(tmp_path, b'{"a": 1}\n' + raw + b"\n"))) == [[], ["not-an-object"]]


def test_a_top_level_array_is_accepted_and_named(tmp_path):
    found = table(tmp_path, b'[{"a": 1},\n {"a": 2}]')
    rows = both_ways(found)
    assert good(rows) == [{"a": 1}, {"a": 2}] and [row.line for row in rows] == [1, 2]
    assert [note.code for note in found.notes()] == ["not-lines"]


@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_data_around_the_array_is_accepted(tmp_path, space):
    text = f'{{{space}"version": [1],{space}"data": [{space}{{"a": "]"}},{space}{{"a": 2}}{space}], "more": {{}}}}\n'
    found = table(tmp_path, text.encode(), "a.json")
    assert found.shape.kind == "data" and good(both_ways(found)) == [{"a": "]"}, {"a": 2}]


def test_json_may_be_lines_and_a_column_may_be_called_data(tmp_path):
    found = table(tmp_path, b'{"data": [{"a": 1}]}\n{"data": []}\n', "a.json")
    assert found.shape.kind == "lines" and len(good(both_ways(found))) == 2


def test_objects_over_many_lines_are_read_one_after_another(tmp_path):
    found = table(tmp_path, b'{\n "a": 1\n}\n{\n "a": 2\n}\n', "a.json")
    rows = both_ways(found)
    assert good(rows) == [{"a": 1}, {"a": 2}] and [row.line for row in rows] == [1, 4]


def test_a_lone_object_is_one_row_and_is_told(tmp_path):
    found = table(tmp_path, b'{\n "a": 1\n}\n', "a.json")
    assert good(both_ways(found)) == [{"a": 1}] and [note.code for note in found.notes()] == ["not-rows"]


@pytest.mark.parametrize("content", [b"[]", b" [ \n ] \n", b'{"data": []}'])
def test_an_empty_array_has_no_rows(tmp_path, content):
    assert both_ways(table(tmp_path, content, "a.json")) == []


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b"   "])
def test_an_empty_file_has_no_rows(tmp_path, content):
    assert both_ways(table(tmp_path, content)) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'[{"a": 1}, {"a": 2', [[], ["bad-json"], ["truncated-file"]]),
        (b'[{"a": 1}, ', [[], ["truncated-file"]]),
        (b'[{"a": 1}, ]', [[], ["bad-json"]]),
        (b'[{"a": 1},, {"a": 2}]', [[], ["bad-json"], []]),
        (b'[{"a": 1}] x', [[], ["trailing-data"]]),
        (b'[{"a": 1}, 5, "x"]', [[], ["not-an-object"], ["not-an-object"]]),
        (b'[{"a": 1}, {"a" 2}, {"a": 3}]', [[], ["bad-json"], []]),
    ],
)
def test_faults_inside_an_array_stay_where_they_are(tmp_path, content, expected):
    assert codes(both_ways(table(tmp_path, content, "a.json"))) == expected


def test_nan_and_infinity_are_flagged(tmp_path):
    rows = both_ways(table(tmp_path, b'{"a": NaN, "b": -Infinity}\n{"a": 1e999}\n'))
    assert (
        codes(rows) == [["nan-in-json", "nan-in-json"], ["nan-in-json"]] and rows[0].values["a"] != rows[0].values["a"]
    )


@pytest.mark.parametrize(
    "raw", [b'{"a": 1, "a": 2}', b'{"a":1,"a" :2}', b'{"x": {"a": 1, "a": 2}}', b'{"x": [{"a": "b:c", "a": 2}]}']
)
def test_duplicate_keys_are_an_error(tmp_path, raw):
    assert codes(both_ways(table(tmp_path, raw + b"\n"))) == [["duplicate-key"]]


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40])
def test_big_ints_are_kept(tmp_path, number):
    rows = both_ways(table(tmp_path, json.dumps({"a": number, "b": [{"c": number}]}).encode()))
    assert good(rows) == [{"a": number, "b": [{"c": number}]}]


def test_an_int_of_a_million_digits_is_a_fault_and_not_a_pause(tmp_path):
    assert codes(both_ways(table(tmp_path, b'{"a": ' + b"9" * 1_000_000 + b"}"))) == [["bad-json"]]


def test_half_a_surrogate_pair_is_an_error(tmp_path):
    (row,) = both_ways(table(tmp_path, b'{"a": "x\\ud800y"}\n'))
    assert codes([row]) == [["lone-surrogate"]] and row.values == {"a": "x\N{REPLACEMENT CHARACTER}y"}


def test_deep_nesting_is_a_fault(tmp_path):
    deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    wide = b'{"a": [' + b",".join([b"[]"] * 1000) + b"]}"
    assert codes(both_ways(table(tmp_path, deep + b"\n" + wide + b"\n"))) == [["too-deep"], []]


def test_a_mark_inside_a_joined_file_is_looked_through(tmp_path):
    rows = both_ways(table(tmp_path, b'{"a": 1}\n\xef\xbb\xbf\xef\xbb\xbf{"a": 2}\n'))
    assert codes(rows) == [[], ["mark-inside"]] and rows[1].values == {"a": 2}


@pytest.mark.parametrize("content", [b'{"a": "%s"}\n{"a": 1}\n{"b": "%s', b'[{"a": "%s"},\n{"a": 1},\n{"b": "%s'])
def test_a_row_too_long_is_told_and_reading_goes_on(tmp_path, monkeypatch, content):
    monkeypatch.setattr(limits, "ROW_BYTES", 1000)
    rows = both_ways(table(tmp_path, content.replace(b"%s", b"x" * 3_000_000), "a.json"))
    assert codes(rows)[:3] == [["row-too-long"], [], ["row-too-long"]] and rows[1].values == {"a": 1}


def test_a_row_too_long_never_fills_the_memory(monkeypatch):
    monkeypatch.setattr(limits, "ROW_BYTES", 1000)
    endless = (b"x" * 1000 for _ in range(10_000))
    held = [len(record.raw or b"") for record in lines.records(endless, b"\n")]
    assert held == [0]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_packed_files_are_read_as_they_are(tmp_path, suffix):
    content = b"".join(b'{"a": %d}\n' % i for i in range(100_000))
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    found = table(tmp_path, pack(content[:300]) + pack(content[300:]), "a.jsonl" + suffix)
    assert len(list(found.rows())) == found.count() == 100_000
    assert found.row(99_999).values == {"a": 99_999} and found.row(0).values == {"a": 0}


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_packed_file_cut_off_gives_its_rows_and_then_the_fault(tmp_path, suffix):
    content = b"".join(b'{"a": %d}\n' % (i * 7919 % 100_003) for i in range(100_000))
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    packed = pack(content)
    found = table(tmp_path, packed[: len(packed) // 2], "a.jsonl" + suffix)
    rows = list(found.rows())
    assert len(rows) == found.count() > 1000 and codes(rows)[-1] == ["bad-compression"]
    assert found.row(found.count() - 1) == rows[-1]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_decompression_bomb_is_a_fault(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(limits, "EXPANSION_FLOOR", 1 << 20)
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    found = table(tmp_path, pack(b"\n" * (8 << 20)), "a.jsonl" + suffix)
    monkeypatch.setattr(limits, "EXPANSION", 100)
    assert codes(list(found.rows())) == [["expansion-bomb"]]


def test_an_unreadable_file_is_a_fault(tmp_path):
    assert codes(both_ways(JsonTable(tmp_path / "none.jsonl", "none.jsonl"))) == [["unreadable"]]


def test_the_index_is_kept_by_content_and_a_second_open_reads_nothing(tmp_path, monkeypatch):
    assert table(tmp_path, b'{"a": 1}\n' * 50).count() == 50
    monkeypatch.setattr(lines, "offsets", None)
    assert JsonTable(tmp_path / "a.jsonl", "a.jsonl").count() == 50
    kept = list((cache.folder() / "rows").glob("*.npy"))
    assert len(kept) == 1 and kept[0].stat().st_size <= 16 * 50 + 256


def test_a_changed_file_gets_a_new_index(tmp_path):
    assert table(tmp_path, b'{"a": 1}\n' * 5).count() == 5
    assert table(tmp_path, b'{"a": 1}\n' * 6).count() == 6


def test_without_a_cache_the_index_lives_in_memory(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FEWBIT_CACHE", str(blocked / "cache"))
    assert table(tmp_path, b'{"a": 1}\n' * 5).count() == 5


def test_the_dataset_folder_is_never_written_to(tmp_path):
    found = table(tmp_path, gzip.compress(b'{"a": 1}\n'), "a.jsonl.gz")
    assert found.row(0).values == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["a.jsonl.gz"]


def test_a_table_goes_to_another_process(tmp_path):
    found = table(tmp_path, b'{"a": 1}\n{"a": 2}\n')
    assert found.row(1).values == {"a": 2}
    assert pickle.loads(pickle.dumps(found)).row(1).values == {"a": 2}


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(objects, max_size=6), indent=st.none() | st.integers(0, 2), ascii_=st.booleans(), size=pieces)
def test_array_elements_are_found_whatever_the_pieces(rows, indent, ascii_, size):
    content = json.dumps(rows, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    frame = Frame(1, 1, 1, not rows)
    found = list(json_scan.records(chunked(content, size), frame))
    assert [json.loads(record.raw) for record in found] == rows
    index = json_scan.offsets(chunked(content, size + 3), frame)
    assert [(r.offset, r.line) for r in found] == [(int(o), index.line(i)) for i, o in enumerate(index.offsets[:-1])]
    assert index.fault is None


@settings(deadline=None, max_examples=80)
@given(content=st.binary(max_size=60) | st.text('[]{},"\\ \n:1a', max_size=60).map(str.encode), size=pieces)
def test_any_bytes_scan_the_same_way_twice(content, size):
    frame = Frame(0, 1)
    found = list(json_scan.records(chunked(content, size), frame))
    index = json_scan.offsets(chunked(content, size + 3), frame)
    places = [record.offset for record in found if hasattr(record, "raw")]
    assert places == index.offsets[:-1].tolist()
    assert [record for record in found if not hasattr(record, "raw")] == ([index.fault] if index.fault else [])


@settings(deadline=None, max_examples=80)
@given(content=st.text("{}\n\r a\t", max_size=60).map(str.encode), size=pieces, end=st.sampled_from([b"\n", b"\r"]))
def test_lines_are_found_whatever_the_pieces(content, size, end):
    found = list(lines.records(chunked(content, size), end))
    numbered = [(n, raw) for n, raw in enumerate(content.split(end), 1) if raw.strip()]
    assert [(record.line, record.raw) for record in found] == numbered
    index = lines.offsets(chunked(content, size + 3), end)
    assert [(r.offset, r.line) for r in found] == [(int(o), index.line(i)) for i, o in enumerate(index.offsets[:-1])]
    assert index.offsets[-1] == len(content)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(objects, max_size=8))
def test_what_was_written_is_read(tmp_path_factory, rows):
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    found = both_ways(table(tmp_path_factory.mktemp("t"), content))
    if b"\\ud" not in content:
        assert good(found) == rows
    assert len(found) == len(rows)


def test_orjson_and_the_second_look_agree_on_a_row_with_colons(tmp_path):
    row = {"url": "https://a:b", "quote": '\\":"', "n": {"x:": [1, {"y": ":"}]}}
    assert good(both_ways(table(tmp_path, orjson.dumps(row)))) == [row]


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b'[\n{"a": 1},\n{"a": 2},\n', "truncated-file", 4),
        (b'[\n{"a": 1}\n]\n\nmore\n', "trailing-data", 5),
        (b'\n{"data":\n[{"a": 1}', "truncated-file", 3),
    ],
)
def test_the_end_of_an_array_that_is_not_whole_has_a_line(tmp_path, content, code, line):
    *_, last = both_ways(table(tmp_path, content, "a.json"))
    assert (last.faults[0].code, last.line) == (code, line)


def test_rows_under_data_are_told_with_what_is_passed_over(tmp_path):
    found = table(tmp_path, b'{"version": 1, "data": [{"a": 1}], "licence": {"data": 2}}', "a.json")
    (note,) = found.notes()
    assert note.code == "rows-under-data" and note.message.endswith("passed over: version, licence")


@pytest.mark.parametrize("size", [1, 60_000])
def test_coco_annotations_are_not_rows(tmp_path, size):
    image = {"id": 1, "file_name": "a.jpg", "height": 480, "width": 640, "coco_url": "http://example.org/a.jpg"}
    content = {"info": {}, "images": [image] * size, "annotations": [{"id": 1}], "categories": []}
    found = table(tmp_path, orjson.dumps(content), "instances.json")
    (note,) = found.notes()
    assert note.code == "coco-json" and "COCO" in note.message
    assert not table(tmp_path, b'{"images": [], "annotations": []}\n{"images": []}\n').notes()
