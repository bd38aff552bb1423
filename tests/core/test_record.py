# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit.errors import DataError
from fewbit.record import Record, write_atomically


def test_a_record_comes_back_from_its_file(tmp_path):
    record = Record("check", facts={"samples": 3})
    record.note("dropped", "row 3 is not JSON", where="a.jsonl:3", bytes=12)
    path = record.save(tmp_path / "record.json")
    again = Record.from_json(path.read_bytes())
    assert again == record
    assert again.lines == [{"what": "dropped", "reason": "row 3 is not JSON", "where": "a.jsonl:3", "bytes": 12}]


def test_a_file_that_is_no_record_is_refused():
    for content in (b"{}", b"[]", b"not json", b'{"verb": "x", "other": 1}'):
        with pytest.raises(DataError, match="not a fewbit record"):
            Record.from_json(content)


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_atomically(path, "text where bytes are due")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["record.json"]
