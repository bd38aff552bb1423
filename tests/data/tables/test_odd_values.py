# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from fewbit import check_dataset


def found(path, **options):
    return {f.code: f for f in check_dataset(path, **options).findings}


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_null_and_empty_texts_are_told_once_with_their_lines(tmp_path):
    rows = [{"text": None, "n": 1}, {"text": "a", "n": None}, {"text": "", "n": 2}, {"text": None, "n": 3}]
    told = found(lines(tmp_path / "a.jsonl", *rows))
    assert set(told) == {"empty-text", "missing-values"}
    assert told["empty-text"].message == "empty 1 at line 3, null 2 at lines 1, 4"
    assert (told["empty-text"].place.line, told["empty-text"].place.field) == (1, "text")
    assert told["missing-values"].message == "null 1 at line 2" and told["missing-values"].severity == "info"


def test_empty_values_of_a_csv(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,1\n,2\nc,\n")
    told = found(tmp_path / "a.csv")
    assert told["empty-text"].message == "empty 1 at line 3"
    assert told["missing-values"].place.field == "label"
    told = found(tmp_path / "a.csv", task="text-classification")
    assert "missing-values" not in told and told["unlabeled"].place.line == 4


def test_null_nan_and_ragged_embeddings_of_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"text": ["a", None, "b"], "e": [[1.0, 2.0], [1.0], [3.0, 4.0]], "ids": [[1], [1, 2], []]}
    pq.write_table(pa.table({**table, "f": [float("nan"), 1.0, 2.0]}), tmp_path / "a.parquet")
    report = check_dataset(tmp_path / "a.parquet")
    told = {f.code: f for f in report.findings}
    assert told["empty-text"].message == "null 1 at sample 1"
    assert told["ragged-lists"].message == "most hold 2 numbers; 1 do not: 1 at sample 1"
    assert told["ragged-lists"].place.field == "e"  # token ids may well differ in length
    assert told["missing-values"].message == "nan 1 at sample 0"
    assert report.understood["lengths"]["ids"] == "0 to 2 items, median 1"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "nested.jsonl"])
def test_characters_that_were_lost_are_told(tmp_path, name):
    texts = ["fine", "caf\N{REPLACEMENT CHARACTER}", "na\u00efve"]
    if name == "a.csv":
        (tmp_path / name).write_text("text,n\n" + "".join(f"{text},1\n" for text in texts), encoding="utf-8")
    else:
        lines(tmp_path / name, *({"text": [text] if "nested" in name else text} for text in texts))
    report = check_dataset(tmp_path / name)
    (told,) = (f for f in report.findings if f.code == "replacement-character")
    assert told.severity == "warn" and told.place.field == "text" and told.place.line == 2 + (name == "a.csv")


def test_bytes_that_are_not_utf8_are_not_told_twice(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,n\ncaf\xe9,1\nb,2\n")
    assert set(found(tmp_path / "a.csv")) == {"bad-encoding"}


def test_chats_without_content_or_out_of_order(tmp_path):
    def chat(*messages):
        return {"messages": [{"role": role, "content": content} for role, content in messages]}

    rows = [
        chat(("system", "s"), ("user", "q"), ("assistant", "a")),
        chat(("user", ""), ("assistant", None)),
        chat(("assistant", "a"), ("user", "q")),
        chat(("user", "q"), ("wizard", "a")),
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [1]}]},
    ]
    report = check_dataset(lines(tmp_path / "a.jsonl", *rows))
    assert [(f.code, f.place.line) for f in report.findings] == [
        ("empty-message", 2),
        ("empty-message", 2),
        ("starts-with-answer", 3),
        ("ends-unanswered", 3),
        ("unknown-role", 4),
    ]
    assert report.ok
