# SPDX-License-Identifier: Apache-2.0
"""Tables as people have them: one odd row, an index column, labels that are numbers, boxes of which one is wrong."""

import json

import numpy as np
import pytest
from PIL import Image

from fewbit.api.data import check_dataset, fix_dataset, open_dataset
from fewbit.data.opening import scan_source
from fewbit.data.report_text import report_text
from fewbit.errors import UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))


def scan(path, **options):
    return scan_source(path, depth="full", **options)


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path, header, *rows):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def issues(report):
    return [(issue.code, issue.location.line) for issue in report.issues]


GOOD = [{"text": f"text {number}", "label": number % 2} for number in range(20)]


@pytest.mark.parametrize("first", [True, False])
def test_one_odd_row_does_not_move_the_text_column(tmp_path, first):
    odd = [{"text": 5, "label": 1}, {"txt": "a typing error that is long", "label": 0}]
    source, report = scan(lines(tmp_path / "a.jsonl", *(odd + GOOD if first else GOOD + odd)))
    assert source.facts["roles"] == {"text": "text", "label": "label"}
    assert ("empty-text", 2 if first else 22) in issues(report)


def test_missing_key_is_an_empty_text(tmp_path):
    _, report = scan(lines(tmp_path / "a.jsonl", {"text": "a"}, {"txt": "b"}, {"text": None}, {"text": "  "}))
    assert issues(report) == [("empty-text", 2)]
    assert report.affected["empty-text"] == 3
    assert report.issues[0].message == "empty 1 at line 4, null 1 at line 3, missing 1 at line 2"


def test_empty_and_repeated_rows_are_dropped_by_code(tmp_path):
    path = lines(tmp_path / "a.jsonl", *GOOD, GOOD[0], {"text": "", "label": 0}, {"text": None, "label": 1}, GOOD[0])
    assert len(scan(path)[0]) == 24
    assert len(scan(path, on_error={"empty-text": "drop"})[0]) == 22
    assert len(scan(path, on_error={"duplicate-row": "drop"})[0]) == 22
    both = {"empty-text": "drop", "duplicate-row": "drop"}
    assert [sample["text"] for sample in scan(path, on_error=both)[0]] == [row["text"] for row in GOOD]
    assert len(open_dataset(path, on_error=both)) == 20
    assert len(open_dataset(path, samples=21, on_error={"duplicate-row": "drop"})) == 21
    assert len(scan(path, on_error="drop")[0]) == len(scan(path, on_error={"*": "drop"})[0]) == 24
    fix_dataset(path, tmp_path / "out", on_error=both)
    assert (tmp_path / "out" / "a.jsonl").read_text().splitlines() == path.read_text().splitlines()[:20]


def test_rows_of_two_splits_are_dropped_by_code(tmp_path):
    lines(tmp_path / "train.jsonl", *GOOD[:6])
    lines(tmp_path / "test.jsonl", *GOOD[4:10])
    source, _ = scan(tmp_path, on_error={"split-leak": "drop"})
    assert source.facts["splits"] == {"train": 6, "test": 4}


def test_code_that_cannot_drop_is_refused(tmp_path):
    with pytest.raises(UsageError, match="missing-values does not allow the action 'drop'") as error:
        scan(lines(tmp_path / "a.jsonl", *GOOD), on_error={"missing-values": "drop"})
    assert error.value.code == "action-unknown"


def test_fractions_are_no_classes(tmp_path):
    path = table(tmp_path / "a.csv", "text,label", *(f"text {number},{number / 4}" for number in range(1, 80)))
    _, report = scan(path)
    assert report.counts == {"bad-label": 60}
    assert report.issues[0].message == "0.25 is not an integer"
    assert "label_type=number" in report_text(report, interface="cli")
    source, report = scan(path, data_option={"label_type": "number"})
    assert not report.issues and source[0]["label"] == 0.25
    named, report = scan(table(tmp_path / "b.csv", "text,label", "a,gpt", "b,3.5", "c,3.5"))
    assert named.facts["classes"] == ["3.5", "gpt"] and not report.issues


def test_blank_and_nan_in_a_csv(tmp_path):
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(8)]
    source, report = scan(table(tmp_path / "a.csv", "text,label", *rows, "c,NaN", "   ,a", "d, "))
    assert source.facts["classes"] == ["a", "b"]
    assert issues(report) == [("empty-text", 11), ("unlabeled", 10)]
    assert report.affected["unlabeled"] == 2
    assert [source[index]["label"] for index in (8, 9, 10)] == [-1, 0, -1]


@pytest.mark.parametrize("plus", ["1", "+1"])
def test_minus_one_is_a_class_next_to_one(tmp_path, plus):
    source, report = scan(table(tmp_path / "a.csv", "text,label", "a,-1", f"b,{plus}", "c,-1"))
    assert source.facts["classes"] == ["-1", "1"]
    assert [sample["label"] for sample in source] == [0, 1, 0]
    assert list(report.counts) == ["labels-remapped"]
    source, report = scan(table(tmp_path / "b.csv", "text,label", "a,-1", "b,1", "c,0"))
    assert [sample["label"] for sample in source] == [-1, 1, 0]


def test_index_column_and_spaces_in_the_header(tmp_path):
    source, report = scan(table(tmp_path / "a.csv", ",text, label", "0,good, 1", "1,bad, 0"))
    assert source.facts["roles"] == {"text": "text", "label": "label"}
    assert source.facts["classes"] == ["0", "1"]
    assert sorted(report.counts) == ["header-space", "index-column"] and report.ok
    _, report = scan(table(tmp_path / "b.csv", "text,,label", "good,0,1", "bad,1,0"))
    assert list(report.counts) == ["header-empty"]


def test_next_names_the_option_that_saves_the_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n" + "".join(f"café {number},1\n" for number in range(9)).encode("cp1252"))
    report = check_dataset(path, progress=False)
    lines_shown = report_text(report, interface="cli").splitlines()
    assert lines_shown[-1].endswith("a.csv --data-option encoding=cp1252")
    with path.open("ab") as stream:  # enough good rows: the copy is worth something
        stream.write(b"".join(b"good %d,1\n" % number for number in range(9)))
    shown = report_text(check_dataset(path, progress=False), interface="cli")
    assert "--fix -o repaired" in shown


def test_columns_of_different_lengths(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"text": ["a", "b", "c"], "label": [0, 1]}))
    _, report = scan(path)
    assert report.issues[0].code == "columns-uneven"
    assert report.issues[0].message == "text has 3, label has 2"


# ---------------------------------------------------------------- images

BOXES = ["0.png,c,1,2,20,30", "1.png,c,1,2,20,30", "2.png,d,1,2,20,30"]


def boxes(folder, *rows):
    folder.mkdir()
    for number in range(3):
        Image.fromarray(np.full((40, 48, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
    table(folder / "b.csv", "filename,class,xmin,ymin,xmax,ymax", *BOXES, *rows)
    return folder


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0.png,c,30,5,10,20", "box from 30, 5 to 10, 20 has no area"),
        ("0.png,,1,5,10,20", "box from 1, 5 to 10, 20 has no class"),
        ("0.png,c,1,5,100,20", "box from 1, 5 to 100, 20 in an image of 48 x 40 pixels"),
        ("0.png,c,x,5,100,20", "corners ['x', '5', '100', '20']"),
    ],
)
def test_wrong_box_loses_its_row_and_not_its_image(tmp_path, row, message):
    folder = boxes(tmp_path / "data", row)
    source, report = scan(folder)
    assert [(issue.code, issue.message, str(issue.location)) for issue in report.issues] == [
        ("bad-objects", message, "b.csv:5")
    ]
    assert source.facts["classes"] == ["c", "d"] and len(source[0]["boxes"]) == 1
    fixed = fix_dataset(folder, tmp_path / "out")
    assert fixed.facts["copy"].ok
    assert (tmp_path / "out" / "b.csv").read_text().splitlines()[1:] == BOXES
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"0.png", "1.png", "2.png"}


def test_image_without_a_good_box_is_left_out(tmp_path):
    folder = boxes(tmp_path / "data")
    table(folder / "b.csv", "filename,class,xmin,ymin,xmax,ymax", *BOXES[:1], "1.png,,1,2,3,4", "2.png,d,1,2,90,30")
    source, report = scan(folder, on_error="drop")
    assert len(source) == 1 and issues(report) == [("bad-objects", 3), ("bad-objects", 4)]
    fix_dataset(folder, tmp_path / "out")
    assert (tmp_path / "out" / "b.csv").read_text().splitlines()[1:] == BOXES[:1]


def test_ids_of_images_of_which_one_is_repeated(tmp_path):
    folder = boxes(tmp_path / "data")
    (folder / "b.csv").unlink()
    (folder / "3.png").write_bytes((folder / "2.png").read_bytes())
    table(folder / "labels.csv", "id,breed", "0,cat", "1,dog", "2,dog", "3,cat", "0,dog")
    source, report = scan(folder)
    assert source.facts["roles"] == {"image": "id", "label": "breed"}
    assert issues(report) == [("labels-conflict", 6)]


# ---------------------------------------------------------------- answers


def squad(path, *answers):
    questions = [
        {"id": str(number), "question": f"Color {number}?", "answers": [{"text": text, "answer_start": start}]}
        for number, (text, start) in enumerate(answers)
    ]
    paragraphs = [{"context": "The sky is blue.", "qas": [*questions, {"id": "x", "question": "Why?", "answers": []}]}]
    path.write_text(json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


def test_answers_must_be_in_the_context(tmp_path):
    path = squad(tmp_path / "train.json", ("blue", 11), ("blue", 0), ("purple", 11))
    _, report = scan(path)
    assert [(issue.code, issue.location.row) for issue in report.issues] == [("bad-answer", 1), ("bad-answer", 2)]
    fixed = fix_dataset(path, tmp_path / "out")
    assert fixed.facts["copy"].ok
    source, _ = scan(tmp_path / "out")
    assert [sample["id"] for sample in source] == ["0", "x"]
