# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from fewbit import check_dataset
from fewbit.data.fixing import fix_dataset
from fewbit.errors import DataError


def fixed(tmp_path, name, content, **options):
    (tmp_path / name).write_bytes(content)
    changes = fix_dataset(tmp_path / name, tmp_path / "out", **options)
    target = tmp_path / "out" / name
    return changes, target.read_bytes() if target.exists() else None


def test_characters_that_cannot_be_read_are_never_written_as_replacements(tmp_path):
    changes, content = fixed(tmp_path, "a.csv", "text,n\ncaf\u00e9,1\nb,2\n".encode("latin-1"))
    assert content == b"text,n\nb,2\n"
    assert "bad-encoding: row left out at line 2 (encoding='cp1252'" in changes[1]


def test_half_a_character_costs_the_row(tmp_path):
    changes, content = fixed(tmp_path, "a.jsonl", b'{"t": "\\ud800"}\n{"t": "b"}\n')
    assert content == b'{"t":"b"}\n' and "lone-surrogate: row left out at line 1" in changes[1]


def test_the_right_encoding_keeps_them(tmp_path):
    _, content = fixed(tmp_path, "a.csv", "text,n\ncaf\u00e9,1\n".encode("latin-1"), encoding="cp1252")
    assert content == "text,n\ncaf\u00e9,1\n".encode()


def test_a_header_that_cannot_be_read_costs_the_file(tmp_path):
    with pytest.raises(DataError, match=r"no row of it can be read.*cp1252"):
        fixed(tmp_path, "a.csv", "caf\u00e9,n\nx,1\n".encode("latin-1"))


def test_ragged_rows_are_left_out_with_their_lines(tmp_path):
    text = b"text,label\na,1\nb,2,3\nc\nd,4,\n" + b"e\n" * 7
    changes, content = fixed(tmp_path, "a.csv", text)
    assert content == b"text,label\na,1\nd,4\n"
    assert changes[1:] == [
        "a.csv: 1 × row-long: row left out at line 3",
        "a.csv: 8 × row-short: rows left out at lines 4, 6, 7, 8, 9 …",
        "a.csv: 1 × trailing-delimiter: mended at line 5",
    ]


def test_chats_under_two_names_all_stay(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]},
        {"messages": "nothing"},
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    changes, copied = fixed(tmp_path, "a.jsonl", content)
    assert len(copied.splitlines()) == 2 and changes[1] == "a.jsonl: 1 × bad-message: row left out at line 3"


def test_coco_annotations_are_not_copied_as_rows(tmp_path):
    with pytest.raises(DataError, match="coco-json"):
        fixed(tmp_path, "a.json", b'{"images": [], "annotations": [], "categories": []}')


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_packed_parquet_is_copied_as_it_is_when_clean(tmp_path, suffix):
    import gzip

    import zstandard

    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    pack = gzip.compress if suffix == "gz" else zstandard.compress
    packed = pack((tmp_path / "a.parquet").read_bytes())
    assert fixed(tmp_path, f"b.parquet.{suffix}", packed) == ([], packed)
    assert check_dataset(tmp_path / "out").ok
