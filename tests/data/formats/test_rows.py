# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import os
import pickle
import random

import pytest
import zstandard

import fewbit
from fewbit.data.findings import DataReport, Policy, Progress
from fewbit.data.formats import rows
from fewbit.data.tables import lines
from fewbit.errors import DataError, FewbitError, UsageError
from mutation import mutate


def write(path, *found):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def read(path, policy=None, **options):
    return rows.read(path, policy=Policy(rows.CODES, policy), **options)


def check(path, **options):
    report = DataReport(str(path), codes=rows.CODES)
    rows.check(path, report, **{"task": None, "signature": None, "quick": False, **options})
    return report


def labels(source, column="label"):
    return [sample[column] for sample in source]


TEXT = [{"text": f"t{i}", "label": name} for i, name in enumerate(["pos", "neg", "pos", "neutral"])]


# ---------------------------------------------------------------- reading


def test_samples_are_the_columns_and_know_their_place(tmp_path):
    source = read(write(tmp_path / "a.jsonl", *TEXT))
    assert list(source) == TEXT and source.get(2) == TEXT[2] and len(source) == 4
    assert str(source.get(2).place) == str(source.place(2)) == "a.jsonl:3"


def test_the_first_sample_needs_no_index(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "offsets", None)
    assert next(iter(read(write(tmp_path / "a.jsonl", *TEXT)))) == TEXT[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "a.jsonl.zst", "a.JSONL"])
def test_every_kind_of_json_file(tmp_path, name):
    raw = "".join(json.dumps(row) + "\n" for row in TEXT).encode()
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(os.path.splitext(name)[1], bytes)
    (tmp_path / name).write_bytes(pack(raw))
    source = read(tmp_path / name)
    assert rows.detect(tmp_path / name).confidence > 0.8
    assert list(source) == TEXT and [source.get(i) for i in range(len(source))] == TEXT


def test_csv_values_stay_text_na_null_and_007(tmp_path):
    (tmp_path / "a.csv").write_text('text,id\nNA,007\nnull,1\n"a\nb",\n')
    expected = [{"text": "NA", "id": "007"}, {"text": "null", "id": "1"}, {"text": "a\nb", "id": ""}]
    assert list(read(tmp_path / "a.csv")) == expected
    assert labels(read(tmp_path / "a.csv", types={"id": "str"}), "id") == ["007", "1", ""]


def test_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(TEXT), tmp_path / "a.parquet")
    source = read(tmp_path / "a.parquet")
    assert list(source) == TEXT and source.get(3) == TEXT[3] and str(source.place(3)) == "a.parquet, sample 3"


def test_a_folder_of_shards_is_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        write(tmp_path / f"part-{number}.jsonl", {"n": number}, {"n": number + 0.5})
    source = read(tmp_path)
    assert labels(source, "n") == [1, 1.5, 2, 2.5, 10, 10.5] and source.get(5)["n"] == 10.5
    assert str(source.place(5)) == "part-10.jsonl:2"


def test_splits_of_a_folder(tmp_path):
    write(tmp_path / "train-0.jsonl", {"n": 1})
    write(tmp_path / "train-1.jsonl", {"n": 2})
    write(tmp_path / "validation.jsonl", {"n": 3})
    write(tmp_path / "test" / "x.jsonl", {"n": 4})
    write(tmp_path / "latest.jsonl", {"n": 5})
    assert labels(read(tmp_path), "n") == [1, 2, 3, 4, 5]
    assert list(read(tmp_path).facts["splits"]) == ["train", "val", "test", "unsplit"]
    for name, expected in {"train": [1, 2], "dev": [3], "val": [3], "test": [4], "unsplit": [5]}.items():
        assert labels(read(tmp_path, split=name), "n") == expected
    with pytest.raises(UsageError, match="split"):
        read(tmp_path, split="tset")


def test_metadata_beside_the_rows_is_not_read(tmp_path):
    write(tmp_path / "train.jsonl", *TEXT)
    (tmp_path / "dataset_info.json").write_text('{"a": 1}')
    (tmp_path / "about.json").write_text('{\n"a": 1\n}')
    (tmp_path / "README.md").write_text("x")
    assert list(read(tmp_path)) == TEXT
    assert check(tmp_path).counts == {"ignored-file": 3}


def test_missing_keys_become_null(tmp_path):
    source = read(write(tmp_path / "a.jsonl", {"a": 1, "b": 2}, {"a": 3}))
    assert list(source) == [{"a": 1, "b": 2}, {"a": 3, "b": None}]


def test_columns_choose_and_rename_by_dotted_path(tmp_path):
    path = write(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "hi"}], "meta": {"y": 3}, "z": 0})
    assert list(read(path, columns={"text": "messages.0.content", "label": "meta.y"})) == [{"text": "hi", "label": 3}]
    assert list(read(path, columns=["z", "no"])) == [{"z": 0, "no": None}]


def test_chat_schemas_are_normalised_and_other_columns_stay(tmp_path):
    path = write(tmp_path / "a.jsonl", {"id": 7, "conversations": [{"from": "human", "value": "hi"}]})
    source = read(path)
    assert list(source) == [{"id": 7, "messages": [{"role": "user", "content": "hi"}]}]
    assert source.facts["layout"] == "chat (messages = conversations)"
    assert list(read(path, layout="columns")) == [{"id": 7, "conversations": [{"from": "human", "value": "hi"}]}]


def test_the_layout_is_written_down(tmp_path):
    source = read(write(tmp_path / "a.jsonl", *TEXT))
    assert source.facts["layout"] == "text-label (text, label)" and source.record.lines[0]["what"] == "layout"


def test_a_source_goes_to_another_process(tmp_path):
    source = read(write(tmp_path / "a.jsonl", *TEXT))
    assert source.get(1) == pickle.loads(pickle.dumps(source)).get(1)


def test_a_folder_without_rows_and_an_unknown_encoding_are_named(tmp_path):
    with pytest.raises(DataError, match="no file of rows"):
        read(tmp_path)
    with pytest.raises(UsageError, match="encoding"):
        read(write(tmp_path / "a.jsonl", *TEXT), encoding="utf8-ish")


def test_a_column_nobody_has_is_told(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,1\n")
    source = read(tmp_path / "a.csv", columns={"t": "txet"})
    assert list(source) == [{"t": None}] and source.record.lines[0]["what"] == "no-column"
    assert check(tmp_path, columns={"t": "txet"}).counts == {"no-column": 1}


def test_options_as_the_command_line_writes_them(tmp_path):
    (tmp_path / "a.csv").write_text("text\t1\na\t5\nb\t6\n")
    source = read(tmp_path, delimiter="\\t", types="1=int", label=1, task="text-classification")
    assert list(source) == [{"text": "a", "1": 0}, {"text": "b", "1": 1}]
    for wrong in ({"types": ["1"]}, {"columns": 5}, {"delimiter": 1}):
        with pytest.raises(UsageError):
            read(tmp_path, **wrong)


def test_two_spellings_of_one_name_are_two_files(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    write(data / "caf\u00e9.jsonl", {"a": 1})
    write(data / "cafe\u0301.jsonl", {"a": 2})
    assert sorted(labels(read(data), "a")) == [1, 2]
    rows.fix(data, out)
    assert sorted(labels(read(out), "a")) == [1, 2]


def test_a_file_whose_name_and_packing_disagree_is_read_and_told(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b'{"a": 1}\n')
    (tmp_path / "b.jsonl").write_bytes(gzip.compress(b'{"a": 2}\n'))
    (tmp_path / "c.csv.zst").write_bytes(gzip.compress(b"a\n3\n"))
    (tmp_path / "d.jsonl.gz").write_bytes(b"")
    report = check(tmp_path)
    told = [(f.place.path, f.message) for f in report.findings if f.code == "packing-mismatch"]
    assert [path for path, _ in told] == ["a.jsonl.gz", "b.jsonl", "c.csv.zst"]
    assert "not packed" in told[0][1] and "packed with gzip" in told[1][1]
    assert labels(read(tmp_path), "a") == [1, 2, "3"]


# ---------------------------------------------------------------- policies


BAD = b'{"a": 1}\n{"a": \n[2]\n{"a": 3, "a": 4}\n{"a": "\xff"}\n{"a": 5}\n'


def test_a_bad_row_raises_with_file_line_and_remedy(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(BAD)
    source = read(tmp_path / "a.jsonl")
    assert source.get(0) == {"a": 1} and len(source) == 6
    with pytest.raises(DataError) as caught:
        list(source)
    assert caught.value.code == "bad-json" and "a.jsonl:2" in caught.value.where and caught.value.try_


def test_rows_are_dropped_repaired_or_kept_by_policy_and_noted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(BAD)
    chosen = {"bad-json": "drop", "not-an-object": "drop", "duplicate-key": "keep", "bad-encoding": "repair"}
    source = read(tmp_path / "a.jsonl", chosen)
    expected = [{"a": 1}, {"a": 4}, {"a": "\N{REPLACEMENT CHARACTER}"}, {"a": 5}]
    assert len(source) == 4 and list(source) == expected and [source.get(i) for i in range(4)] == expected
    assert [source.place(i).line for i in range(4)] == [1, 4, 5, 6]
    noted = [(line["what"], line["action"]) for line in source.record.lines if "action" in line]
    assert noted == [*((c, a) for c, a in chosen.items() if c != "bad-encoding"), ("bad-encoding", "repair")]


def test_mixed_types_raise_or_are_cast_the_same_in_any_order(tmp_path):
    forward = write(tmp_path / "f.jsonl", {"l": 1}, {"l": "two"}, {"l": None})
    backward = write(tmp_path / "b.jsonl", {"l": None}, {"l": "two"}, {"l": 1})
    assert labels(read(forward), "l") == [1, "two", None]
    for path in (forward, backward):
        assert set(labels(read(path, {"mixed-types": "repair"}), "l")) == {"1", "two", None}
        with pytest.raises(DataError, match=r"int 1, null 1 at line \d, str 1"):
            list(read(path, {"mixed-types": "raise"}))


def test_mixed_types_are_cast_before_columns_are_chosen_and_an_integer_beyond_float_stays(tmp_path):
    path = write(tmp_path / "a.jsonl", {"l": 1}, {"l": "x"})
    assert labels(read(path, {"mixed-types": "repair"}, columns={"y": "l"}), "y") == ["1", "x"]
    path = write(tmp_path / "b.jsonl", {"l": 1.5}, {"l": True}, {"l": 10**400})
    assert labels(read(path, {"mixed-types": "repair"}), "l") == [1.5, 1.0, 10**400]


def test_what_cannot_be_cast_is_not_said_to_be(tmp_path):
    source = read(write(tmp_path / "a.jsonl", {"l": 1}, {"l": [1]}), {"mixed-types": "repair"})
    assert labels(source, "l") == [1, [1]]
    assert any(line["reason"].startswith("left as they are: l") for line in source.record.lines)


def test_a_damaged_parquet_file_is_dropped_from_where_it_breaks(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"i": [str(i) * 9 for i in range(3000)]}), path, row_group_size=1000, use_dictionary=False)
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data[start : start + 200] = bytes(byte ^ 0xFF for byte in data[start : start + 200])
    path.write_bytes(data)
    write(tmp_path / "b.jsonl", {"i": "last"})
    source = read(tmp_path, {"bad-parquet": "drop"})
    assert len(source) == 1001 and list(source) == [source.get(i) for i in range(1001)]
    assert "from row 1,000 on" in check(path).errors[0].message


# ---------------------------------------------------------------- labels


def test_labels_are_numbered_by_the_sorted_names_of_train(tmp_path):
    write(tmp_path / "train.jsonl", *TEXT)
    write(tmp_path / "test.jsonl", {"text": "x", "label": "pos"}, {"text": "y", "label": None})
    source = read(tmp_path, split="test", task="text-classification")
    assert source.facts["classes"] == ["neg", "neutral", "pos"] and labels(source) == [2, -1]
    assert source.targets == {"label"} and source.facts["label"] == "label"
    assert labels(read(tmp_path, split="train", task="text-classification")) == [2, 0, 2, 1]


def test_a_label_train_does_not_have_is_an_error(tmp_path):
    write(tmp_path / "train.jsonl", *TEXT)
    write(tmp_path / "test.jsonl", {"text": "x", "label": "new"}, {"text": "y", "label": "pos"})
    report = check(tmp_path, task="text-classification")
    assert [f.code for f in report.errors] == ["unseen-label"] and report.errors[0].place.path == "test.jsonl"
    with pytest.raises(DataError, match="'new'"):
        list(read(tmp_path, split="test", task="text-classification"))
    dropped = read(tmp_path, {"unseen-label": "drop"}, split="test", task="text-classification")
    assert labels(dropped) == [2] and len(dropped) == 1


def test_csv_labels_that_are_numbers_keep_them(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,10\nb,2\nc,10\n")
    source = read(tmp_path / "a.csv", task="text-classification")
    assert source.facts["classes"] == ["2", "10"] and labels(source) == [1, 0, 1]
    report = check(tmp_path / "a.csv", task="text-classification")
    assert report.counts["labels-remapped"] == 1 and report.understood["labels"] == {"all": {"2": 1, "10": 2}}


def test_regression_only_when_declared(tmp_path):
    path = write(tmp_path / "a.jsonl", {"text": "a", "label": 0.5}, {"text": "b", "label": 1})
    assert labels(read(path, task="text-regression")) == [0.5, 1.0]
    assert check(path, task="text-classification").counts["bad-label"] == 1


def test_a_task_without_a_label_column_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", {"x": 1})
    with pytest.raises(DataError, match="no column holds the labels"):
        read(path, task="text-classification")
    assert check(path, task="text-classification").counts["no-label"] == 1
    assert labels(read(path, task="text-classification", label="x"), "x") == [0]


def test_a_label_column_that_is_not_there_is_never_all_unlabelled(tmp_path):
    path = write(tmp_path / "a.jsonl", *TEXT)
    for options in ({"label": "lable"}, {"label": "label", "columns": ["text"]}):
        with pytest.raises(DataError, match="the first rows have no column"):
            read(path, task="text-classification", **options)
        assert check(path, task="text-classification", **options).counts["no-label"] == 1


def test_labels_by_dotted_path_and_beside_a_chat(tmp_path):
    path = write(tmp_path / "a.jsonl", {"meta": {"y": "p"}, "t": "a"}, {"meta": {"y": "n"}, "t": "b"})
    assert labels(read(path, task="text-classification", label="meta.y"), "meta.y") == [1, 0]
    path = write(tmp_path / "b.jsonl", {"messages": [{"role": "user", "content": "x"}], "label": "b"})
    assert labels(read(path, task="text-classification")) == [0]


def test_classes_do_not_come_from_a_pass_with_other_types(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,007\nb,008\n")
    assert read(tmp_path, task="text-classification").facts["classes"] == ["007", "008"]
    assert read(tmp_path, task="text-classification", types={"label": int}).facts["classes"] == ["7", "8"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_check_finds_what_regression_cannot_predict(tmp_path, name):
    text = (
        '{"text": "x", "label": "abc"}\n{"text": "y", "label": 1}\n'
        if name == "a.jsonl"
        else "text,label\nx,abc\ny,1\n"
    )
    (tmp_path / name).write_text(text)
    report = check(tmp_path, task="text-regression")
    assert [(f.code, f.place.line) for f in report.errors] == [("bad-label", 2 if name == "a.csv" else 1)]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_float_labels_that_are_integral_are_integers(tmp_path, name):
    found = [{"text": f"t{i}", "label": float(i)} for i in range(12)]
    write(tmp_path / "a.jsonl", *found)
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in found))
    source = read(tmp_path / name, task="text-classification")
    assert source.facts["classes"] == [str(i) for i in range(12)] and labels(source) == list(range(12))


def test_decisions_about_labels_are_in_the_record(tmp_path):
    path = write(tmp_path / "a.jsonl", {"text": "a", "label": 5}, {"text": "b", "label": 7})
    lines = read(path, task="text-classification").record.lines
    assert ("labels-remapped", "labels 5, 7 become 0 … 1") in [(line["what"], line["reason"]) for line in lines]


def test_labels_that_differ_only_in_case_or_space_are_told(tmp_path):
    found = [{"text": str(i), "label": label} for i, label in enumerate(["Pos ", "pos", "neg"])]
    path = write(tmp_path / "a.jsonl", *found)
    (finding,) = check(path, task="text-classification").findings
    assert finding.code == "labels-alike" and "'Pos ' and 'pos'" in finding.message and finding.severity == "warn"
    assert any(line["what"] == "labels-alike" for line in read(path, task="text-classification").record.lines)


@pytest.mark.parametrize("task", ["nonsense", "image-classification", "text-clasification"])
def test_a_task_nobody_knows_is_refused(tmp_path, task):
    path = write(tmp_path / "a.jsonl", *TEXT)
    for verb in (read, check):
        with pytest.raises(UsageError) as caught:
            verb(path, task=task)
        assert "text-classification" in caught.value.expected and "text-regression" in caught.value.expected
    assert check(path, task="text-generation").ok


# ---------------------------------------------------------------- checking


def test_check_lists_all_faults_not_the_first(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(BAD + b'{"a": NaN}\n{"a": "tru')
    report = check(tmp_path)
    found = [(f.code, f.place.line) for f in report.findings]
    assert found[:6] == [
        ("bad-json", 2),
        ("not-an-object", 3),
        ("duplicate-key", 4),
        ("bad-encoding", 5),
        ("nan-in-json", 7),
        ("truncated-row", 8),
    ]
    assert report.errors[3].place.offset == BAD.index(0xFF)


def test_check_says_what_it_understood(tmp_path):
    write(tmp_path / "train.jsonl", *TEXT, {"text": "longer text", "label": 3, "extra": {"x": 1}})
    report = check(tmp_path)
    told = report.understood
    assert told["rows"] == {"train": 5} and told["layout"] == "text-label (text, label)"
    assert told["columns"] == {
        "text": "str 5",
        "label": "str 4, int 1 at line 5",
        "extra": "object 1, missing 4",
        "extra.x": "int 1",
    }
    assert told["lengths"]["text"] == "2 to 11 characters, median 2"
    assert report.counts == {"mixed-types": 1} and "str 4, int 1 at line 5" in report.findings[0].message


def test_repeated_rows_and_rows_in_two_splits_are_told(tmp_path):
    write(tmp_path / "train.jsonl", {"a": 1, "b": 2}, {"a": 2}, {"b": 2, "a": 1})
    write(tmp_path / "test.jsonl", {"a": 2}, {"a": 9})
    report = check(tmp_path)
    assert [(f.code, str(f.place)) for f in report.findings] == [
        ("duplicate-row", "train.jsonl:3"),
        ("split-leak", "test.jsonl:1"),
    ]
    assert "train.jsonl:2" in report.findings[1].message


def test_repeated_rows_of_a_csv(tmp_path):
    (tmp_path / "train.csv").write_text("a,b\n1,2\n3,4\n1,2\n")
    (tmp_path / "test.csv").write_text("a,b\n3,4\n")
    assert check(tmp_path).counts == {"duplicate-row": 1, "split-leak": 1}


def test_repeated_rows_of_a_csv_whatever_their_quotes_and_faults(tmp_path):
    text = 'x,y\n1,a\n1,"a"\n1,a,\n2,y"z\n2,"y""z"\n"a,b",c\na,"b,c"\n3,"q\nr"\n'
    (tmp_path / "train.csv").write_text(text)
    (tmp_path / "test.csv").write_text('x,y\r\n"1","a"\r\n"3","q\nr"\r\n')
    found = [(f.code, str(f.place), f.message.rpartition(" ")[2]) for f in check(tmp_path).findings]
    assert [item for item in found if item[0] in ("duplicate-row", "split-leak")] == [
        ("duplicate-row", "train.csv:3", "train.csv:2"),
        ("duplicate-row", "train.csv:4", "train.csv:2"),
        ("duplicate-row", "train.csv:6", "train.csv:5"),
        ("split-leak", "test.csv:2", "train.csv:2"),
        ("split-leak", "test.csv:3", "train.csv:9"),
    ]


def test_findings_in_parquet_name_the_row(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"t": pa.array([b"ok", b"caf\xe9", b"ok"]).view(pa.string())}), tmp_path / "a.parquet")
    found = [(f.code, f.place.index, f.message) for f in check(tmp_path).findings]
    assert found[0][:2] == ("bad-encoding", 1) and found[1] == (
        "duplicate-row",
        2,
        "the same row as a.parquet, sample 0",
    )


def test_mixed_types_name_the_file_they_are_in(tmp_path):
    write(tmp_path / "a.jsonl", {"l": 1}, {"l": "x"})
    write(tmp_path / "b.jsonl", {"l": 2}, {"l": 3})
    (finding,) = check(tmp_path).findings
    assert (finding.place.path, finding.place.line) == ("a.jsonl", 2) and "str 1 at a.jsonl:2" in finding.message


def test_quick_says_nothing_about_classes_it_may_not_have_seen(tmp_path):
    write(tmp_path / "train.jsonl", *({"text": str(i), "label": i // 1500} for i in range(3000)))
    write(tmp_path / "test.jsonl", {"text": "q", "label": 1})
    report = check(tmp_path, task="text-classification", quick=True)
    assert not report.counts and report.understood["looked_at"] == "the first 1,000 rows of each file"


def test_one_object_in_a_json_file_is_told(tmp_path):
    (tmp_path / "a.json").write_text('{"text": ["a", "b"], "label": [0, 1]}')
    assert check(tmp_path).counts == {"not-rows": 1}


def test_check_of_chats_names_the_message(tmp_path):
    good = {"messages": [{"role": "user", "content": "x"}]}
    report = check(write(tmp_path / "a.jsonl", good, {"messages": [{"role": "user"}]}, {"messages": "x"}))
    assert [f.place.line for f in report.errors if f.code == "bad-message"] == [2, 3]


def test_an_empty_dataset_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    assert set(check(tmp_path).counts) == {"empty-file", "no-rows"}
    assert check(tmp_path / "nothing").counts == {"no-files": 1}


def test_quick_looks_at_the_first_rows_only(tmp_path):
    content = b'{"a": 1}\n' * 2000 + b"bad\n"
    (tmp_path / "a.jsonl").write_bytes(content)
    assert "bad-json" not in check(tmp_path, quick=True).counts and "bad-json" in check(tmp_path).counts


def test_pipes_are_never_opened(tmp_path):
    write(tmp_path / "a.jsonl", *TEXT)
    os.mkfifo(tmp_path / "b.jsonl")
    assert check(tmp_path).counts == {"not-a-file": 1} and len(list(read(tmp_path))) == 4
    assert rows.detect(tmp_path / "b.jsonl") is None


def test_other_formats_are_left_alone(tmp_path):
    assert rows.detect(tmp_path) is None and rows.detect([1]) is None
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(b"x")
    write(tmp_path / "meta.jsonl", *TEXT)
    assert rows.detect(tmp_path).confidence < 0.5


# ---------------------------------------------------------------- mending


def test_fix_drops_what_cannot_be_read_and_the_result_is_clean(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir(), out.mkdir()
    write(data / "clean.jsonl", *TEXT)
    (data / "bad.jsonl").write_bytes(BAD.replace(b"\n", b"\r\n") + b'{"a": 100000000000000000000000}\n')
    (data / "array.json").write_bytes(b'[{"a": 1}, {"a": 2}, {"a"')
    (data / "packed.jsonl.gz").write_bytes(gzip.compress(b'{"a": 7}\n' * 3)[:-3])
    (data / "wide.csv").write_text("a,a,\n1,2,3\n4,5\n6,7,8\n")
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    changes = rows.fix(data, out)
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before
    report = check(out)
    assert not report.errors, report.errors
    assert (out / "clean.jsonl").read_bytes() == before["clean.jsonl"]
    assert [row["a"] for row in read(out / "bad.jsonl")] == [1, 4, 5, 10**23]
    assert list(read(out / "array.json")) == [{"a": 1}, {"a": 2}] and len(list(read(out / "packed.jsonl"))) == 3
    assert any("bad-json" in change for change in changes) and not any("clean" in change for change in changes)


def test_fix_with_a_task_leaves_out_rows_whose_label_train_does_not_have(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    write(data / "train.jsonl", *TEXT)
    write(data / "test.jsonl", {"text": "x", "label": "new"}, {"text": "y", "label": "pos"})
    rows.fix(data, out, task="text-classification")
    assert check(out, task="text-classification").ok and len(list(read(out, split="test"))) == 1


def test_fix_with_an_encoding_writes_utf8(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "a.jsonl").write_bytes(b'{"t": "caf\xe9"}\n')
    rows.fix(tmp_path / "a.jsonl", out, encoding="cp1252")
    assert list(read(out)) == [{"t": "café"}]


def fixed(tmp_path, name, content, **options):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / name).write_bytes(content)
    changes = rows.fix(tmp_path / name, out, **options)
    assert not check(out, **options).errors
    return changes, list(read(out, **options))


def test_fix_of_a_csv_keeps_carriage_returns_and_the_delimiter(tmp_path):
    _, found = fixed(tmp_path, "a.csv", b'sep=^\na^b\n"x\ry"^1\n2^3^\n')
    assert found == [{"a": "x\ry", "b": "1"}, {"a": "2", "b": "3"}]


def test_fix_leaves_rows_out_that_would_have_their_fault_again(tmp_path):
    changes, found = fixed(tmp_path, "a.csv", b"a,b\nx,007\nn\0l,1\ny,z\nshort\n", types={"b": "int"})
    assert found == [{"a": "x", "b": 7}] and len([change for change in changes if "left out" in change]) == 3
    assert (tmp_path / "out" / "a.csv").read_bytes() == b"a,b\nx,007\n"


def test_fix_does_not_claim_what_it_did_not_do(tmp_path):
    assert fixed(tmp_path, "a.csv", b"a, b\n1,2\n") == ([], [{"a": "1", " b": "2"}])


def test_fix_never_writes_one_file_over_another(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    write(data / "b.jsonl", {"a": 1})
    (data / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 2}\nbad\n'))
    rows.fix(data, out)
    assert sorted(labels(read(out), "a")) == [1, 2]


def test_fix_of_parquet_stays_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = pa.array([b"ok", b"caf\xe9", b"fine"]).view(pa.string())
    pq.write_table(pa.table({"t": texts, "b": [b"\x89", b"y", b"z"]}), tmp_path / "p.parquet")
    content = (tmp_path / "p.parquet").read_bytes()
    changes, found = fixed(tmp_path, "a.parquet", content)
    assert found == [{"t": "ok", "b": b"\x89"}, {"t": "fine", "b": b"z"}]
    assert changes == ["a.parquet: written again", "a.parquet: 1 × bad-encoding: row left out at sample 1"]


# ---------------------------------------------------------------- safety


MUTANTS = {
    "lines.jsonl": "".join(json.dumps(row) + "\n" for row in TEXT).encode(),
    "array.json": json.dumps(TEXT, indent=1).encode(),
    "data.json": json.dumps({"v": 1, "data": TEXT}).encode(),
    "chat.jsonl": json.dumps({"messages": [{"role": "user", "content": "hi"}] * 2}).encode() * 2,
    "utf16.jsonl": "".join(json.dumps(row) + "\n" for row in TEXT).encode("utf-16"),
    "gz.jsonl.gz": gzip.compress(json.dumps(TEXT[0]).encode() * 3),
    "quoted.csv": b'text,label\r\n"a ""b"", c\r\nd",0\r\ncaf\xc3\xa9,1\r\n,\r\n',
    "sep.csv": b"sep=;\ntext;label\na;1\nb;2\n",
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutated_files_end_in_samples_or_typed_findings(tmp_path, name):
    rng = random.Random(name)
    for number in range(50):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(mutate(MUTANTS[name], rng))
        task = rng.choice([None, None, "text-classification"])
        report = check(path, task=task)
        try:
            source = read(path, task=task)
            streamed = list(source)
            assert repr(streamed) == repr([source.get(i) for i in range(len(source))])
            assert not report.errors or {f.code for f in report.errors} <= {"no-rows", "no-label"}, report.errors
        except FewbitError as error:
            assert error.what
            assert not report.ok, (error, path.read_bytes())
        out = tmp_path / f"out-{number}"
        out.mkdir()
        try:
            rows.fix(path, out, task=task)
        except FewbitError:
            continue
        assert {f.code for f in check(out, task=task).errors} <= {"no-rows", "no-files", "no-label"}


def test_the_public_verbs_reach_this_format(tmp_path):
    path = write(tmp_path / "a.jsonl", *TEXT)
    assert fewbit.check_dataset(path).ok and fewbit.open_dataset(path)[1] == TEXT[1]


def test_rows_with_a_mere_warning_count_for_the_types(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,x,\n2,y,\n")
    assert check(tmp_path / "a.csv").understood["columns"] == {"a": "int 2", "b": "text 2"}
    (tmp_path / "b.csv").write_text("a,b\n1,x\n2,y,\n")
    report = check(tmp_path / "b.csv")
    assert report.understood["columns"]["a"] == "int 2" and report.counts == {"trailing-delimiter": 1}
    (tmp_path / "c.jsonl").write_text('{"a": NaN, "b": 1}\n{"a": NaN, "b": 2}\n')
    assert check(tmp_path / "c.jsonl").understood["columns"] == {"a": "nan 2", "b": "int 2"}


class Heard(Progress):
    def __init__(self):
        self.calls = []

    def advance(self, label, done, total):
        self.calls.append((label, done, total))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_progress_is_in_bytes_of_the_file(tmp_path, name):
    text = b'{"a": 1}\n' * 9000 if "json" in name else b"a,b\n" * 9000
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    heard, size = Heard(), (tmp_path / name).stat().st_size
    fewbit.check_dataset(tmp_path / name, progress=heard)
    done = [done for label, done, total in heard.calls if label == f"bytes of {name}" and total == size]
    assert done and done == sorted(done) and done[-1] == size


def test_progress_of_parquet_is_in_rows(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": list(range(5000))}), tmp_path / "a.parquet")
    heard = Heard()
    fewbit.check_dataset(tmp_path / "a.parquet", progress=heard)
    assert heard.calls[-1][1:] == (5000, 5000) or ("rows of a.parquet", 5000, 5000) in heard.calls


def test_the_summary_counts_all_rows_and_those_that_can_be_read(tmp_path):
    write(tmp_path / "train.jsonl", *TEXT)
    (tmp_path / "test.jsonl").write_text('{"text": "x", "label": "pos"}\nbad\n')
    told = check(tmp_path).understood
    assert told["splits"] == told["rows"] == {"train": 4, "test": 2}
    assert told["readable"] == {"train": 4, "test": 1}
    write(tmp_path / "test.jsonl", *TEXT[:1])
    assert "readable" not in check(tmp_path).understood


def test_a_single_long_text_is_as_long_as_it_is(tmp_path):
    path = write(tmp_path / "a.jsonl", {"t": "x" * 200_000})
    assert check(path).understood["lengths"]["t"] == "200,000 to 200,000 characters, median 200,000"


def test_chats_under_several_names_are_normalised_row_by_row(tmp_path):
    first = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    second = {"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}
    for order in ([first, second], [second, first]):
        path = write(tmp_path / "a.jsonl", *order)
        assert check(path).ok
        chats = [sample["messages"] for sample in read(path)]
        assert sorted(chat[0]["content"] for chat in chats) == ["a", "c"] and all(
            sample.keys() == {"messages"} for sample in read(path)
        )


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_packed_parquet(tmp_path, suffix):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(TEXT), tmp_path / "x")
    path = tmp_path / f"a.parquet.{suffix}"
    path.write_bytes((gzip.compress if suffix == "gz" else zstandard.compress)((tmp_path / "x").read_bytes()))
    assert rows.detect(path).confidence > 0.8
    source = read(path)
    assert list(source) == TEXT and source.get(3) == TEXT[3] and check(path).ok
    path.write_bytes(path.read_bytes()[:-20])
    assert check(path).errors[0].code == "bad-compression"


def test_a_file_the_system_refuses_is_the_only_error(tmp_path, monkeypatch):
    def refuse(self, *args, **options):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr(type(tmp_path), "open", refuse)
    report = check(tmp_path / "a.csv")
    assert report.counts == {"unreadable": 1} and "Permission denied" in report.errors[0].message


def test_a_faulty_row_does_not_make_a_column_of_mixed_types(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,1\ny,2,3\nz,4\n")
    report = fewbit.check_dataset(tmp_path / "a.csv")
    assert "mixed-types" not in report.counts and report.understood["columns"]["label"] == "int 2"
