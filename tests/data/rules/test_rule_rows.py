# SPDX-License-Identifier: Apache-2.0
"""Rules of JSON and CSV rows, and defects of other readers, asked through the public verbs alone."""

import json
import os
from pathlib import Path

import pytest

import fewbit


def write(path, text):
    path.write_bytes(text.encode())
    return path


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("order", [1, -1])
def test_defect_datasets_7222_the_order_of_rows_decides_nothing(tmp_path, order):
    rows = [{"label": 1}, {"label": "one"}, {"label": None}, {"label": 2.5}][::order]
    path = write(tmp_path / "a.jsonl", lines(rows))
    assert [sample["label"] for sample in fewbit.open_dataset(path)] == [row["label"] for row in rows]
    assert dict(fewbit.check_dataset(path).counts) == {"mixed-types": 1, "missing-values": 1}


def test_defect_datasets_6460_a_late_odd_value_is_a_finding_with_its_line(tmp_path):
    rows = [{"text": "t", "label": 0}] * 500 + [{"text": "t", "label": "late"}]
    report = fewbit.check_dataset(write(tmp_path / "a.jsonl", lines(rows)))
    assert report.understood["columns"]["label"] == "int 500, str 1 at line 501"


def test_defect_one_field_too_many_aborts_the_whole_file(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,1\nb,2,3\nc,4\n")
    assert [str(finding.place) for finding in fewbit.check_dataset(path).errors] == ["a.csv:3"]
    left = fewbit.open_dataset(path, policy={"row-long": "drop"})
    assert [sample["text"] for sample in left] == ["a", "c"]


def test_defect_a_short_row_turns_the_numbers_of_all_others_into_floats(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,1\nb\nc,4\n")
    assert [finding.place.line for finding in fewbit.check_dataset(path).errors] == [3]
    left = fewbit.open_dataset(path, policy={"row-short": "drop"}, types={"label": "int"})
    assert [repr(sample["label"]) for sample in left] == ["1", "4"]


@pytest.mark.parametrize("text", ["NA", "null", "None", "nan", "007", "1e3", "TRUE", "-0", " x "])
def test_defect_pandas_reads_text_as_something_else(tmp_path, text):
    path = write(tmp_path / "a.csv", f"text,label\n{text},1\n")
    assert fewbit.open_dataset(path)[0]["text"] == text


def test_defect_splitlines_cuts_a_row_at_u2028(tmp_path):
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    path = write(tmp_path / "a.jsonl", json.dumps({"text": text}, ensure_ascii=False) + '\n{"text": "z"}\n')
    assert [sample["text"] for sample in fewbit.open_dataset(path)] == [text, "z"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_defect_inspect_ai_5353_a_mark_becomes_part_of_the_first_name(tmp_path, name):
    text = 'text,label\n"a",1\n' if name.endswith("csv") else '{"text": "a", "label": 1}\n'
    path = write(tmp_path / name, "\ufeff" + text)
    assert list(fewbit.open_dataset(path)[0]) == ["text", "label"]


def test_defect_sparsify_takes_columns_without_a_word(tmp_path):
    path = write(tmp_path / "a.csv", "idx,sentence1,sentence2,label\n1,a,b,x\n")
    assert "sentence1" in fewbit.check_dataset(path).understood["layout"]
    assert any(line["what"] == "layout" for line in fewbit.open_dataset(path).record.lines)


def test_rule_a_split_opened_alone_has_the_label_ids_of_train(tmp_path):
    write(tmp_path / "train.jsonl", lines({"text": "t", "label": name} for name in ("zoo", "ant", "moth")))
    write(tmp_path / "val.jsonl", lines([{"text": "v", "label": "zoo"}]))
    dataset = fewbit.open_dataset(tmp_path, split="val", task="text-classification")
    assert dataset.classes == ["ant", "moth", "zoo"] and dataset[0]["label"] == 2


def test_rule_labels_that_are_numbers_from_zero_are_kept(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\n" + "".join(f"t{n},{n}\n" for n in range(12)))
    assert [s["label"] for s in fewbit.open_dataset(path, task="text-classification")] == list(range(12))


def test_rule_a_file_is_of_a_split_by_a_whole_word_of_its_name(tmp_path):
    for name in ("train-00000-of-1", "training_notes", "contest", "dev.1", "validation_set", "my_test"):
        write(tmp_path / f"{name}.jsonl", lines([{"text": name}]))
    for split, names in {
        "train": {"train-00000-of-1"},
        "val": {"dev.1", "validation_set"},
        "test": {"my_test"},
    }.items():
        assert {sample["text"] for sample in fewbit.open_dataset(tmp_path, split=split)} == names


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_rule_a_row_costs_its_index_eight_bytes(tmp_path, kind):
    count = 5_000
    rows = lines({"text": f"row {n}"} for n in range(count))
    path = write(
        tmp_path / f"a.{kind}", rows if kind == "jsonl" else "text\n" + "".join(f"row {n}\n" for n in range(count))
    )
    assert fewbit.open_dataset(path)[count - 1]["text"] == f"row {count - 1}"
    kept = sum(file.stat().st_size for file in Path(os.environ["FEWBIT_CACHE"]).rglob("*") if file.is_file())
    assert kept <= 8 * count + 4096
