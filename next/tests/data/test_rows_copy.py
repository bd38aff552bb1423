# SPDX-License-Identifier: Apache-2.0
"""Repaired copies of CSV and JSON files: what is clean stays byte for byte, and the copy has no errors."""

import gzip
import json
import random

import pytest

from data.mutation import mutate_bytes
from fewbit.data.files import Folder
from fewbit.data.formats import csv as csv_format
from fewbit.data.formats import json as json_format
from fewbit.data.types import DataReport
from fewbit.errors import FewbitError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))


def scan(path, on_error=None, **options):
    is_csv = any(".csv" in name for name in Folder(path).names())
    report = DataReport(on_error=on_error)
    format_ = csv_format if is_csv else json_format
    return format_, format_.scan(Folder(path), report, depth="full", options=options), report


def fixed(tmp_path, files, **options):
    """The changes and the files of a repaired copy, which must be clean."""
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    for name, content in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
    format_, source, _ = scan(data, "repair", **options)
    changes = format_.FORMAT.write(source, out)
    assert {name: (data / name).read_bytes() for name in files} == files
    copies = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    options.pop("encoding", None)
    assert not scan(out, **options)[2].errors
    return changes, copies


def test_a_clean_file_is_copied_byte_for_byte(tmp_path):
    files = {
        "train.csv": b'\xef\xbb\xbftext,n\r\n"a\r\nb",1\r\n\r\nc,2',
        "test.csv.gz": gzip.compress(b"text,n\nz,3\n"),
    }
    assert fixed(tmp_path, files) == ([], files)


def test_rows_are_left_out_or_repaired_and_the_others_stay_as_they_are(tmp_path):
    content = b'text,label\r\n"a, ""b""",1\r\nb,2,3\r\nc\r\nd,4,\r\n5" e,5' + b"\r\nshort" * 7
    changes, copies = fixed(tmp_path, {"a.csv": content})
    assert copies == {"a.csv": b'text,label\r\n"a, ""b""",1\r\nd,4\n5" e,5\r\n'}
    assert changes == [
        "a.csv: written again",
        "a.csv: row-long: 1 row left out, line 3",
        "a.csv: row-short: 8 rows left out, lines 4, 7, 8, 9, 10, …",
        "a.csv: trailing-delimiter: repaired, line 5",
    ]


def test_characters_that_cannot_be_read_are_never_written_as_replacements(tmp_path):
    _, copies = fixed(tmp_path, {"a.csv": "text,n\ncafé,1\nb,2\n".encode("latin-1")})
    assert copies["a.csv"] == b"text,n\nb,2\n"


def test_the_right_encoding_keeps_them(tmp_path):
    changes, copies = fixed(tmp_path, {"a.csv": "text,n\ncafé,1\n".encode("latin-1")}, encoding="cp1252")
    assert copies["a.csv"] == "text,n\ncafé,1\n".encode() and changes == ["a.csv: written again"]


def test_columns_get_names(tmp_path):
    _, copies = fixed(tmp_path, {"a.csv": b"a,a,\n1,2,3\n"})
    assert copies["a.csv"] == b"a,a_2,column_3\n1,2,3\n"


def test_the_sep_line_and_the_delimiter_stay(tmp_path):
    _, copies = fixed(tmp_path, {"a.csv": b'sep=^\na^b\n"x\ry"^1\n2^3^\n'})
    assert copies["a.csv"] == b'sep=^\na^b\n"x\ry"^1\n2^3\n'


def test_lines_of_json(tmp_path):
    bad = b'{"a": 1}\r\n{"a": \r\n[2]\r\n{"a": 3, "a": 4}\r\n{"a": "\xff"}\r\n\xef\xbb\xbf{"a": 5}\r\n'
    changes, copies = fixed(tmp_path, {"a.jsonl": bad + b'{"a": 100000000000000000000000}', "b.jsonl": b'{"a":  1}\n'})
    assert copies == {"a.jsonl": b'{"a": 1}\r\n{"a":5}\n{"a": 100000000000000000000000}', "b.jsonl": b'{"a":  1}\n'}
    assert changes[0] == "a.jsonl: written again" and not any("b.jsonl" in change for change in changes)


def test_arrays_are_closed_and_packed_files_unpacked(tmp_path):
    files = {
        "array.json": b'[{"a": 1}, {"a":  2}, {"a"',
        "data.json": b'{"v": 1, "data": [{"a": 1}, 5]}',
        "b.jsonl": b'{"a": 1}\n',
        "b.jsonl.gz": gzip.compress(b'{"a": 2}\nbad\n'),
    }
    _, copies = fixed(tmp_path, files)
    assert copies["array.json"] == b'[\n{"a": 1},\n{"a":  2}\n]\n' and json.loads(copies["data.json"]) == [{"a": 1}]
    assert copies["b.jsonl"] == b'{"a": 1}\n' and copies["b-unpacked.jsonl"] == b'{"a": 2}\n'


def test_rows_whose_label_train_does_not_have_are_left_out(tmp_path):
    train = b'{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'
    changes, copies = fixed(
        tmp_path, {"train.jsonl": train, "test.jsonl": b'{"text": "c", "label": "new"}\n' + train[:28]}
    )
    assert copies == {"train.jsonl": train, "test.jsonl": train[:28]}
    assert "1 row left out because of labels" in changes[1]


def test_images_that_rows_name_are_copied_along(tmp_path):
    from PIL import Image

    (tmp_path / "data" / "img").mkdir(parents=True)
    Image.new("RGB", (12, 12), "red").save(tmp_path / "data" / "img" / "a.png")
    _, copies = fixed(tmp_path, {"labels.csv": b"image,label\nimg/a.png,x\nimg/gone.png,y\n"})
    assert copies["labels.csv"] == b"image,label\nimg/a.png,x\n"
    assert copies["img/a.png"] == (tmp_path / "data" / "img" / "a.png").read_bytes()


EXAMPLES = {
    "a.csv": b'text,label\r\n"a ""b"", c\r\nd",0\r\ncaf\xc3\xa9,1\r\n,\r\nx,0\r\n',
    "a.jsonl": b'{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n' * 3,
    "b.json": json.dumps([{"text": "t", "label": "pos"}] * 4, indent=1).encode(),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_copy_of_a_mutated_file_is_clean_and_copying_again_changes_nothing(tmp_path, name):
    chance = random.Random(name)
    for number in range(25):
        data, out, again = (tmp_path / f"{kind}{number}" for kind in ("data", "out", "again"))
        for folder in (data, out, again):
            folder.mkdir()
        (data / name).write_bytes(mutate_bytes(EXAMPLES[name], chance))
        try:
            format_, source, _ = scan(data, "repair")
            format_.FORMAT.write(source, out)
            _, source, report = scan(out, "repair")
        except FewbitError:
            continue
        remaining = {issue.code for issue in report.errors}
        assert remaining <= {"no-rows", "no-files", "header-missing", "coco-json"}, (number, report.issues)
        if len(source) and not remaining:
            assert format_.FORMAT.write(source, again) == [], number
