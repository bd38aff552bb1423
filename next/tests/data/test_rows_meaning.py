# SPDX-License-Identifier: Apache-2.0
"""What rows mean: layouts, chats, labels, splits, images; and what a check says about columns and repeated rows."""

import io
import json
import pickle
import re

import numpy as np
import pytest

from fewbit.data.files import Folder
from fewbit.data.formats import csv as csv_format
from fewbit.data.formats import json as json_format
from fewbit.data.opening import open_source
from fewbit.data.rows import check, table
from fewbit.data.rows.chat import normalized
from fewbit.data.rows.labels import LabelError, number_classes
from fewbit.data.rows.layout import recognize
from fewbit.data.rows.shards import row_files
from fewbit.data.rows.source import row_source
from fewbit.data.rows.table import ListTable, nested, split_ranges
from fewbit.data.types import DataReport, Location, SampleError, spread
from fewbit.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scan(path, depth="full", on_error=None, format_=None, **options):
    format_ = format_ or (csv_format if path.suffix == ".csv" else json_format)
    report = DataReport(on_error=on_error)
    return format_.scan(Folder(path), report, depth=depth, options=options), report


def samples(source):
    return [source[index] for index in range(len(source))]


def column(source, key):
    return [sample[key] for sample in samples(source)]


def issues(report):
    return [(issue.code, str(issue.location)) for issue in report.issues]


REVIEWS = [{"text": f"t{i}", "label": name} for i, name in enumerate(["pos", "neg", "pos", "neutral"])]


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"Text": "fine", "LABEL": "good"}, "text-label"),
        ({"sentence1": "a", "sentence2": "b", "label": 1}, "text-pair"),
        ({"query": "a", "passage": "b"}, "unlabeled-pair"),
        ({"id": 4, "dialog": [{"speaker": "human", "text": "hello"}]}, "chat"),
        ({"messages": [{"role": "system", "content": "be short"}]}, "chat"),
        ({"question": "how?", "answer": "so"}, "prompt-completion"),
        ({"instruction": "add", "output": "3"}, "instruction"),
        ({"chosen": "yes", "rejected": "no"}, "preference"),
        ({"question": "q", "context": "c", "answers": {"text": ["a"], "answer_start": [0]}}, "question-answering"),
        ({"tokens": ["a", "b"], "ner_tags": ["O", "B"]}, "token-tags"),
        ({"file_name": "a/1.jpg", "label": "cat"}, "image"),
        ({"path": "a.wav", "label": "dog"}, "audio"),
        ({"text": "a", "label": 1}, "text-label"),
        ({"id": 3, "review": "a", "stars": 4}, "text-label"),
        ({"text": "a", "url": "b"}, "text"),
        ({"anything": "a"}, "text"),
        ({"x": 1, "y": 2}, "columns"),
        ({"x1": "1.5", "x2": "3", "label": "0"}, "columns"),
        ({"messages": "not a list"}, "text"),
    ],
)
def test_layouts_are_recognized(row, name):
    assert recognize([row]).name == name


def test_the_users_columns_win():
    rows = [{"question": "q", "answer": "a", "grade": 3, "meta": {"body": "b"}}]
    assert str(recognize(rows, text="answer", label="grade")) == "text-label (text = answer, label = grade)"
    assert recognize(rows, text="meta.body").roles == {"text": "meta.body"}


def test_samples_have_the_keys_of_their_layout_and_the_other_columns(tmp_path):
    def first(row, **options):
        return scan(write(tmp_path / "a.jsonl", row), **options)[0][0]

    assert first({"id": 7, "Review": "good", "stars": 0}) == {"text": "good", "label": 0, "id": 7}
    assert first({"sentence1": "a", "sentence2": "b", "label": 0}) == {"text": "a", "text_pair": "b", "label": 0}
    assert first({"id": 7, "conversations": [{"from": "human", "value": "hi"}]}) == {
        "messages": [{"role": "user", "content": "hi"}],
        "id": 7,
    }
    row = {"instruction": "Add", "input": "1 2", "output": "3"}
    assert first(row) == {**row, "prompt": "Add\n\n1 2", "completion": "3"}
    assert first({"text": "a", "label": "x"}, task="text-generation") == {"text": "a", "label": "x"}
    assert first({"a": {"b": "deep"}, "c": 1}, text_column="a.b") == {"text": "deep", "a": {"b": "deep"}, "c": 1}


def test_columns_are_selected_and_renamed_by_dotted_names(tmp_path):
    path = write(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "hi"}], "meta": {"y": 0}, "z": 0})
    assert samples(scan(path, columns={"text": "messages.0.content", "label": "meta.y"})[0]) == [
        {"text": "hi", "label": 0}
    ]
    assert samples(scan(path, columns="z")[0]) == [{"z": 0}]
    for wrong in ("", {}, {"a": 1}):
        with pytest.raises(UsageError, match="columns"):
            scan(path, columns=wrong)


@pytest.mark.parametrize("options", [{"text_column": "txet"}, {"label_column": "lable"}, {"columns": "txet"}])
def test_a_column_nobody_has_is_an_error_with_the_near_name(tmp_path, options):
    _, report = scan(write(tmp_path / "a.jsonl", *REVIEWS), **options)
    assert report.counts["no-column"] == 1 and report.raising()


def test_dotted_names_reach_into_lists_and_objects():
    row = {"messages": [{"content": "hi"}, {"content": "ho"}], "a.b": 1}
    assert nested(row, "messages.0.content") == "hi" and nested(row, "messages.-1.content") == "ho"
    assert nested(row, "messages.9.content") is None and nested(row, "messages.x") is None
    assert nested(row, "messages." + "9" * 5000) is None and nested(row, "a.b") == 1


def test_missing_keys_become_none(tmp_path):
    source, _ = scan(write(tmp_path / "a.jsonl", {"a": 1, "b": 2}, {"a": 3}))
    assert samples(source) == [{"a": 1, "b": 2}, {"a": 3, "b": None}]


def test_any_table_has_a_meaning():
    source = row_source(ListTable(REVIEWS, "memory"), None, DataReport(), depth="full", options={})
    assert column(source, "label") == [2, 0, 2, 1] and source.facts["classes"] == ["neg", "neutral", "pos"]
    assert str(source.location(1)) == "memory row 1" and source.strata() == ["pos", "neg", "pos", "neutral"]
    assert source.fetch([3, 0]) == [source[3], source[0]]


# ---------------------------------------------------------------- chats


def test_roles_and_names_of_chats_are_normalized_and_other_keys_stay():
    messages, problems = normalized(
        [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "h", "weight": 0},
            {"from": "gpt", "value": None, "tool_calls": []},
            {"from": "function_call", "value": "f"},
            {"from": "observation", "value": "o"},
            {"speaker": "bing", "text": "t"},
        ]
    )
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "assistant", "tool", "assistant"]
    assert messages[1] == {"role": "user", "content": "h", "weight": 0} and not problems


@pytest.mark.parametrize(
    "value", [None, "x", [], [{"role": "user"}], [{"content": "x"}], ["x"], [{"role": 1, "content": "x"}]]
)
def test_messages_that_cannot_be_read_are_named(value):
    assert [kind.code for kind, _ in normalized(value)[1]] == ["bad-message"]


def test_a_check_of_chats_names_the_lines(tmp_path):
    names = {"s": "system", "u": "user", "a": "assistant", "w": "wizard"}
    chats = ["s:be short u:hi a:hello", "u: a:", "a:hello u:hi", "u:hi w:hello"]
    turns = [[turn.split(":") for turn in re.split(r" (?=\w:)", chat)] for chat in chats]
    rows: list = [{"messages": [{"role": names[n], "content": text} for n, text in turn]} for turn in turns]
    call = {"role": "assistant", "content": None, "tool_calls": [1]}
    rows += [{"messages": [{"role": "user", "content": "hi"}, call]}, {"messages": [{"role": "user"}]}]
    rows.append({"messages": "no list"})
    source, report = scan(write(tmp_path / "a.jsonl", *rows))
    named = [(issue.code, issue.location.line) for issue in report.issues if issue.location.field == "messages"]
    assert [item for item in named if item[0] != "mixed-types"] == [
        ("empty-message", 2),
        ("empty-message", 2),
        ("starts-with-answer", 3),
        ("ends-unanswered", 3),
        ("unknown-role", 4),
        ("bad-message", 6),
        ("bad-message", 7),
    ]
    assert len(source) == 5
    quick, _ = scan(tmp_path / "a.jsonl", depth="index")
    with pytest.raises(SampleError, match="no content"):
        quick[5]


def test_chats_under_several_names_are_normalized_row_by_row(tmp_path):
    first = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    second = {"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}
    for order in ([first, second], [second, first]):
        source, report = scan(write(tmp_path / "a.jsonl", *order))
        assert sorted(chat[0]["content"] for chat in column(source, "messages")) == ["a", "c"] and not report.errors
        assert all(sample.keys() == {"messages"} for sample in samples(source))


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("values", "classes", "remarks", "encoded"),
    [
        (["b", "a", "b", "C"], ("C", "a", "b"), [], {"a": 1, "b": 2, "C": 0}),
        ([2, 0, 1, -1], ("0", "1", "2"), [], {0: 0, 2: 2, -1: -1}),
        ([10, 2, 30], ("2", "10", "30"), ["labels-remapped"], {10: 1}),
        (["a", "b", None, "", float("nan")], ("a", "b"), [], {"": -1, None: -1, -1: -1, float("nan"): -1}),
        ([1, "x", "y"], ("1", "x", "y"), ["labels-mixed"], {1: 0, "1": 0}),
    ],
    ids=["names", "integers", "gaps", "nothing", "types"],
)
def test_classes_and_their_numbers(values, classes, remarks, encoded):
    labels, found = number_classes(values)
    assert labels.classes == classes and [kind.code for kind, _ in found] == remarks
    assert {value: labels.encode(value) for value in encoded} == encoded


def test_one_class_however_its_number_is_written():
    labels, _ = number_classes(["0", "1", "2"])
    assert [labels.encode(value) for value in (2, 2.0, "2", "2.0", True, np.int64(2))] == [2, 2, 2, 2, 1, 2]
    assert number_classes(["007", "7"])[0].classes == ("007", "7")


def test_nothing_minus_one_and_nan_mean_unlabeled(tmp_path):
    rows = [{"text": f"t{n}", "label": label} for n, label in enumerate(["a", "b", None, "", -1])]
    source, report = scan(write(tmp_path / "a.jsonl", *rows))
    assert column(source, "label") == [0, 1, -1, -1, -1] and report.affected["unlabeled"] == 3


def test_lists_are_several_labels(tmp_path):
    rows = [{"text": f"t{n}", "label": label} for n, label in enumerate([["a", "b"], ["c"], []])]
    source, report = scan(write(tmp_path / "a.jsonl", *rows))
    assert column(source, "label") == [[0, 1], [2], []] and not report.errors and source.strata() == ["several"] * 3


@pytest.mark.parametrize("value", [{}, {"a": 1}, b"x", 0.5])
def test_a_value_that_is_no_class_is_named(value):
    with pytest.raises(LabelError):
        number_classes(["a"])[0].encode(value)


def test_the_classes_of_a_split_are_those_of_train(tmp_path):
    write(tmp_path / "train.jsonl", *REVIEWS)
    write(tmp_path / "test.jsonl", {"text": "x", "label": "pos"}, {"text": "y", "label": None})
    source, _ = scan(tmp_path, split="test")
    assert source.facts["classes"] == ["neg", "neutral", "pos"] and column(source, "label") == [2, -1]
    assert column(scan(tmp_path, depth="index", split="train")[0], "label") == [2, 0, 2, 1]


@pytest.mark.parametrize("depth", ["index", "full"])
def test_a_label_train_does_not_have_is_an_error_or_dropped(tmp_path, depth):
    write(tmp_path / "train.jsonl", *REVIEWS)
    write(tmp_path / "test.jsonl", {"text": "x", "label": "new"}, {"text": "y", "label": "pos"})
    source, report = scan(tmp_path, depth=depth)
    source.facts  # with `index` depth labels are read when they are asked for
    assert [issue.code for issue in report.raising()] == ["unseen-label"]
    assert issues(report)[0][1] == "test.jsonl:1 (label)"
    source, _ = scan(tmp_path, depth=depth, on_error="drop", split="test")
    assert column(source, "label") == [2] and str(source.location(0)) == "test.jsonl:2"


def test_problems_of_labels_found_after_opening_are_raised(tmp_path):
    write(tmp_path / "train.jsonl", *REVIEWS)
    write(tmp_path / "test.jsonl", {"text": "x", "label": "new"})
    source, report = scan(tmp_path, depth="index")
    report.complete = True
    with pytest.raises(DataError, match="'new'"):
        source[0]


def test_a_missing_label_is_a_warning_with_its_line(tmp_path):
    _, report = scan(write(tmp_path / "train.jsonl", *REVIEWS, {"text": "no"}, {"text": "nan", "label": ""}))
    assert ("unlabeled", "train.jsonl:5 (label)") in issues(report) and report.affected["unlabeled"] == 2
    write(tmp_path / "test.jsonl", {"text": "published without"})
    assert scan(tmp_path)[1].counts["unlabeled"] == 1


def test_labels_equal_but_for_case_and_spaces_are_a_warning(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,Cat\nb,cat \nc,dog\n")
    assert scan(tmp_path / "a.csv")[1].counts["labels-alike"] == 1


def test_numbers_to_predict_only_when_declared(tmp_path):
    path = write(tmp_path / "a.jsonl", {"text": "a", "label": 0.5}, {"text": "b", "label": 1})
    assert [issue.code for issue in scan(path)[1].raising()] == ["bad-label"]
    source, report = scan(path, label_type="number")
    assert column(source, "label") == [0.5, 1.0] and not report.errors


def test_a_column_of_many_different_texts_holds_answers_not_classes(tmp_path):
    path = write(tmp_path / "a.jsonl", *({"text": f"q{n}", "label": f"answer {n}"} for n in range(200)))
    source, report = scan(path)
    assert "classes" not in source.facts and source[3]["label"] == "answer 3" and not report.errors


def test_a_task_without_a_label_column_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", {"x": 1})
    assert scan(path, task="text-classification")[1].counts["no-label"] == 1
    assert column(scan(path, task="text-classification", label_column="x")[0], "label") == [0]


def test_the_classes_of_the_model_keep_their_order(tmp_path):
    path = write(tmp_path / "a.jsonl", *REVIEWS)
    source, _ = scan(path, classes="pos,neutral,neg")
    assert column(source, "label") == [0, 2, 0, 1] and source.facts["classes"] == ["pos", "neutral", "neg"]


def test_tags_have_o_as_class_zero(tmp_path):
    path = write(tmp_path / "a.jsonl", {"tokens": ["a", "b"], "tags": ["B-PER", "O"]}, {"tokens": ["c"], "tags": ["O"]})
    source, _ = scan(path)
    assert source.facts["classes"] == ["O", "B-PER"] and column(source, "tags") == [[1, 0], [0]]
    assert source.facts["task"] == "token-classification"


def test_classes_of_very_long_tables_are_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "IN_MEMORY", 4)
    source, _ = scan(write(tmp_path / "a.jsonl", *REVIEWS, {"text": "z", "label": None}), on_error="drop")
    assert source.strata() == ["pos", "neg", "pos", "neutral", "unlabeled"]


# ---------------------------------------------------------------- shards and splits


def test_shards_are_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        write(tmp_path / f"part-{number}.jsonl", {"n": number}, {"n": number + 0.5})
    source, _ = scan(tmp_path)
    assert column(source, "n") == [1, 1.5, 2, 2.5, 10, 10.5] and str(source.location(5)) == "part-10.jsonl:2"
    assert source.strata() == [f"part-{number}.jsonl" for number in (1, 1, 2, 2, 10, 10)]


def test_splits_by_whole_words_in_the_order_train_val_test(tmp_path):
    for name, number in (("validation", 3), ("train-1", 2), ("train-0", 1), ("test/x", 4), ("latest", 5)):
        write(tmp_path / f"{name}.jsonl", {"n": number})
    source, _ = scan(tmp_path)
    assert column(source, "n") == [1, 2, 3, 4, 5]
    assert source.facts["splits"] == {"train": 2, "val": 1, "test": 1, "unsplit": 1}
    for name, expected in {"train": [1, 2], "dev": [3], "val": [3], "test": [4]}.items():
        assert column(scan(tmp_path, split=name)[0], "n") == expected
    with pytest.raises(UsageError, match="tset"):
        len(scan(tmp_path, split="tset")[0])


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.jsonl", "train"),
        ("my_test_1.jsonl", "test"),
        ("VALIDATION.json", "val"),
        ("valid2.jsonl", "val"),
        ("latest.jsonl", None),
        ("contest.jsonl", None),
        ("training_notes.jsonl", None),
        ("pretrain.jsonl", None),
        ("data/train/x/a.jsonl", "train"),
        ("train/test.jsonl", "test"),
        ("wiki.train.jsonl.gz", "train"),
        ("train_vs_test.jsonl", None),
    ],
)
def test_the_split_of_a_file(tmp_path, name, split):
    write(tmp_path / name, {})
    write(tmp_path / "zzz.jsonl", {})
    report = DataReport()
    files = {file.name: file.split for file in row_files(Folder(tmp_path), (".jsonl", ".json"), report)}
    assert files[name] == split and report.counts["several-splits"] == (name == "train_vs_test.jsonl")


def test_descriptions_and_single_objects_next_to_rows_are_not_read(tmp_path):
    write(tmp_path / "train.jsonl", *REVIEWS)
    (tmp_path / "dataset_info.json").write_text('{"a": 1}')
    (tmp_path / "about.json").write_text('{\n"a": 1\n}')
    (tmp_path / "README.md").write_text("x")
    source, report = scan(tmp_path)
    assert len(source) == 4 and report.counts == {"ignored-file": 3}


def test_columns_are_the_union_of_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n3,4\n")
    source, _ = scan(tmp_path, format_=csv_format)
    assert samples(source) == [{"x": "1", "y": "2", "z": None}, {"x": "3", "y": None, "z": "4"}]


def test_ranges_of_splits_are_found_by_bisection():
    class Table(ListTable):
        def split(self, index):
            return "train" if index < 7 else "val" if index < 8 else None

    assert split_ranges(Table([{}] * 10)) == {"train": (0, 7), "val": (7, 8), None: (8, 10)}


# ---------------------------------------------------------------- images


def png(path, color):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), color).save(path)


def test_a_column_of_image_files_gives_images_and_labels(tmp_path):
    for number, color in enumerate(("red", "lime")):
        png(tmp_path / "pictures" / f"{number}.png", color)
    (tmp_path / "labels.csv").write_text("filename,label\npictures/0.png,warm\npictures\\1.png,cold\n")
    for path in (tmp_path, tmp_path / "labels.csv"):
        source, report = scan(path, format_=csv_format)
        assert source.facts["task"] == "image-classification" and source.facts["classes"] == ["cold", "warm"]
        first, second = samples(source)
        assert first["image"].shape == (10, 12, 3) and first["image"].dtype == np.uint8 and first["label"] == 1
        assert second["image"][0, 0].tolist() == [0, 255, 0] and not report.errors
        assert pickle.loads(pickle.dumps(source))[0]["label"] == 1


def test_metadata_of_an_imagefolder_is_relative_to_its_folder(tmp_path):
    for split in ("train", "test"):
        png(tmp_path / split / "a.png", "red")
        write(tmp_path / split / "metadata.jsonl", {"file_name": "a.png", "text": f"a caption of {split}"})
    source, report = scan(tmp_path)
    assert column(source, "text") == ["a caption of train", "a caption of test"] and not report.errors
    assert source[1]["image"].shape == (10, 12, 3) and source.facts["splits"] == {"train": 1, "test": 1}


@pytest.mark.parametrize("depth", ["index", "full"])
def test_file_names_without_files_are_an_issue_and_never_texts(tmp_path, depth):
    (tmp_path / "labels.csv").write_text("filename,label\n0.png,warm\n1.png,cold\n")
    _, report = scan(tmp_path / "labels.csv", depth=depth)
    assert report.facts["layout"] == "image (image = filename, label)"
    assert {issue.code for issue in report.raising()} == {"media-missing"}
    assert report.counts["media-missing"] == (1 if depth == "index" else 2)


def test_a_damaged_image_is_an_issue_of_its_row(tmp_path):
    png(tmp_path / "a.png", "red")
    (tmp_path / "b.png").write_bytes(b"no image")
    (tmp_path / "labels.csv").write_text("image,label\na.png,x\nb.png,y\nc.png,z\n")
    source, report = scan(tmp_path, format_=csv_format, on_error="drop")
    assert len(source) == 1 and report.counts["media-missing"] == 1 and len(report.errors) == 2
    quick, _ = scan(tmp_path, format_=csv_format, depth="index")
    with pytest.raises(SampleError):
        quick[1]


def test_images_inside_rows_are_decoded(tmp_path):
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (4, 3), "blue").save(out, "PNG")
    png(tmp_path / "a.png", "red")
    rows = [{"image": "a.png", "label": 0}, {"image": {"bytes": out.getvalue(), "path": None}, "label": 1}]
    source = row_source(ListTable(rows[:1] * 1, "t"), Folder(tmp_path), DataReport(), depth="index", options={})
    source.table.rows = rows
    assert source[1]["image"].shape == (3, 4, 3)


def kaggle(folder, table, images=("a", "b", "c")):
    for name in images:
        png(folder / "images" / f"{name}.png", "red")
    (folder / "labels.csv").write_text(table)
    return open_source(folder, depth="full")


def test_ids_of_images_without_their_suffix_are_images(tmp_path):
    source, report = kaggle(tmp_path, "id,breed\na,dog\nb,cat\nc,dog\n")
    assert report.data_format == "csv" and source.facts["task"] == "image-classification"
    assert source.facts["classes"] == ["cat", "dog"] and column(source, "label") == [1, 0, 1]
    assert source[0]["image"].shape == (10, 12, 3) and not report.issues


def test_images_that_no_row_names_and_images_with_two_labels_are_told(tmp_path):
    png(tmp_path / "test" / "x.png", "red")  # a folder of which no row names anything
    _, report = kaggle(tmp_path, "file,label\na.png,dog\nb.png,cat\na.png,cat\n")
    assert [item for item in issues(report) if "unlisted" in item[0]] == [("file-unlisted", "images/c.png")]
    assert ("labels-conflict", "labels.csv:4 (label)") in issues(report)


def test_boxes_in_a_table_are_a_detection_dataset(tmp_path):
    box = "a.png,12,10,dog,3,0,9,5\n"
    rows = f"filename,width,height,class,xmin,ymin,xmax,ymax\n{box}a.png,12,10,cat,0,0,12,10\nb.png,12,10,,,,,\n"
    source, report = kaggle(tmp_path, rows, "ab")
    assert source.facts["task"] == "object-detection" and source.facts["classes"] == ["cat", "dog"]
    assert len(source) == 2 and source[0]["boxes"].tolist() == [[0.5, 0.25, 0.5, 0.5], [0.5, 0.5, 1, 1]]
    assert source[0]["classes"].tolist() == [1, 0] and source[1]["boxes"].shape == (0, 4) and not report.errors
    assert str(source.location(1)) == "labels.csv:4"
    (tmp_path / "labels.csv").write_text(rows + "b.png,12,10,dog,0,0,x,5\nb.png,12,10,dog,0,0,50,5\n")
    report = scan(tmp_path, format_=csv_format)[1]
    assert issues(report)[:2] == [("bad-objects", "labels.csv:5"), ("bad-objects", "labels.csv:6")]


def test_a_column_of_splits_becomes_the_splits(tmp_path):
    rows = "text,label,split\na,x,test\nb,y,train\nc,x,train\nd,y,validation\na,x,train\n"
    (tmp_path / "a.csv").write_text(rows)
    source, report = scan(tmp_path / "a.csv")
    assert column(source, "text") == ["b", "c", "a", "d", "a"] and str(source.location(3)) == "a.csv:5"
    assert source.facts["splits"] == {"train": 3, "val": 1, "test": 1} and not report.errors
    assert column(scan(tmp_path / "a.csv", depth="index", split="val")[0], "text") == ["d"]
    (tmp_path / "a.csv").write_text(rows + "e,new,test\n")
    assert ("unseen-label", "a.csv:7 (label)") in issues(scan(tmp_path / "a.csv")[1])


def test_tables_of_numbers_have_classes_too(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,label\n" + "1.5,2,cat\n" * 30 + "2.5,3,dog\n" * 10 + "2,3,\n")
    source, report = open_source(tmp_path / "a.csv")
    assert source.facts["classes"] == ["cat", "dog"] and source[30]["label"] == 1 and source[30]["x"] == "2.5"
    chosen = [source.strata()[index] for index in spread(source.strata(), len(source), 8)]
    assert chosen.count("cat") == 6 and chosen.count("dog") == 2
    assert [issue.message for issue in report.issues if issue.code == "unlabeled"] == ["1 row of the table at line 42"]
    (tmp_path / "b.csv").write_text("x,target\n1,0.5\n2,1.5\n")  # numbers to predict are no classes
    assert open_source(tmp_path / "b.csv")[0][0] == {"x": "1", "target": "0.5"}


def test_rows_without_a_label_can_be_left_out(tmp_path):
    path = write(tmp_path / "a.jsonl", *REVIEWS, {"text": "no"})
    for code in ("unlabeled", "missing-label"):
        assert len(scan(path, on_error={code: "drop"})[0]) == 4
    assert len(scan(path, on_error="drop")[0]) == 5


# ---------------------------------------------------------------- columns and repeated rows


def test_nan_and_infinity_in_columns_of_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,t\n" + "1,2.5,word\n" * 20 + "nan,NaN,nan\n-inf,1,inf\n")
    _, report = scan(tmp_path / "a.csv")
    told = {(issue.location.field, issue.message) for issue in report.issues if issue.code == "nan-values"}
    assert told == {
        ("x", "NaN in 1 row at line 22"),
        ("x", "infinity in 1 row at line 23"),
        ("y", "NaN in 1 row at line 22"),
    }
    assert "mixed-types" not in report.counts


def test_rare_types_are_named_with_their_lines(tmp_path):
    rows = [{"text": "t", "n": 0}] * 500 + [{"text": "t", "n": "late"}, {"text": "t", "n": 1.5}]
    _, report = scan(write(tmp_path / "a.jsonl", *rows))
    assert ("mixed-types", "a.jsonl:501 (n)") in issues(report)
    assert report.facts["columns"]["n"] == "int 500, float 1 at line 502, str 1 at line 501"


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_rows_decides_nothing(tmp_path, order):
    rows = [{"label_": 1}, {"label_": "one"}, {"label_": None}, {"label_": 2.5}][::order]
    _, report = scan(write(tmp_path / "a.jsonl", *rows))
    assert report.counts == {"mixed-types": 1, "missing-values": 1}


def test_numbers_in_a_column_of_text_are_text_but_not_the_other_way_round(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n" + "x,1\n" * 30 + "7,seven\n")
    _, report = scan(tmp_path / "a.csv")
    assert ("mixed-types", "a.csv:32 (b)") in issues(report) and report.counts["mixed-types"] == 1
    assert report.facts["columns"] == {"a": "text 30, int 1 at line 32", "b": "int 30, text 1 at line 32"}


def test_empty_texts_and_missing_values(tmp_path):
    rows = [{"text": None, "n": 1}, {"text": "a", "n": None}, {"text": "", "n": 2}, {"text": "b", "n": float("nan")}]
    _, report = scan(write(tmp_path / "a.jsonl", *rows))
    messages = {issue.code: issue.message for issue in report.issues}
    assert messages["empty-text"] == "empty 1 at line 3, null 1 at line 1"
    assert messages["missing-values"] == "null 1 at line 2" and messages["nan-values"] == "NaN in 1 row at line 4"
    assert report.affected["empty-text"] == 2


def test_nested_columns_have_dotted_names(tmp_path):
    row = {"a": {"b": {"c": 1}}, "l": [1, "x"], "m": [{"r": 1}]}
    _, report = scan(write(tmp_path / "a.jsonl", row, {"a": {}, "l": [], "m": []}))
    assert report.facts["columns"] == {
        "a": "object 2",
        "a.b": "object 1",
        "a.b.c": "int 1",
        "l": "list 1, list[int|str] 1 at line 1",
        "m": "list 1, list[object] 1 at line 1",
    }


def test_lost_characters_and_ragged_embeddings(tmp_path):
    rows = [{"t": "ok", "e": [1.0, 2.0]}, {"t": "caf\ufffd", "e": [1.0]}, {"t": "naïve", "e": [3.0, 4.0]}]
    _, report = scan(write(tmp_path / "a.jsonl", *rows))
    assert ("replacement-character", "a.jsonl:2 (t)") in issues(report) and ("ragged-lists", "a.jsonl:2 (e)") in issues(
        report
    )


def test_keys_used_as_data_do_not_fill_the_memory(tmp_path):
    _, report = scan(write(tmp_path / "a.jsonl", *({f"key{i}": i} for i in range(3000))))
    assert report.counts["many-columns"] == 1 and len(report.facts["columns"]) == 64


def test_repeated_rows_and_rows_of_two_splits(tmp_path):
    write(tmp_path / "train.jsonl", {"a": 1, "b": 2}, {"a": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2})
    write(tmp_path / "test.jsonl", {"a": 2}, {"a": 9})
    _, report = scan(tmp_path)
    assert issues(report) == [("duplicate-row", "train.jsonl:3"), ("split-leak", "test.jsonl:1")]
    assert [issue.message for issue in report.issues] == ["the same as train.jsonl:1", "the same as train.jsonl:2"]


def test_repeated_rows_of_a_csv_whatever_their_quotes(tmp_path):
    (tmp_path / "train.csv").write_text('x,y\n1,a\n1,"a"\n1,a,\n"a,b",c\na,"b,c"\n3,"q\nr"\n')
    (tmp_path / "test.csv").write_text('x,y\r\n"1","a"\r\n"3","q\nr"\r\n')
    _, report = scan(tmp_path, format_=csv_format)
    assert [item for item in issues(report) if item[0] in ("duplicate-row", "split-leak")] == [
        ("duplicate-row", "train.csv:3"),
        ("duplicate-row", "train.csv:4"),
        ("split-leak", "test.csv:2"),
        ("split-leak", "test.csv:3"),
    ]


def repeats_of(rows):
    report = DataReport()
    row_source(ListTable(rows, "t"), None, report, depth="full", options={})
    return report


def test_repeated_rows_of_a_table_too_long_for_memory(monkeypatch):
    monkeypatch.setattr(table, "IN_MEMORY", 100)
    report = repeats_of([{"n": number} for number in [*range(300), 7, 250, *range(1000, 1300), 7]])
    assert [issue.location.row for issue in report.issues] == [300, 301, 602] and report.counts["duplicate-row"] == 3


def test_counts_stay_exact_where_locations_are_not_kept(monkeypatch):
    monkeypatch.setattr(check, "MOST_ISSUES", 5)
    report = repeats_of([{"n": 1}] * 100)
    assert report.counts["duplicate-row"] == report.affected["duplicate-row"] == 99 and len(report.issues) == 5


def test_the_canonical_form_takes_everything_a_table_can_hold():
    for value in (10**30, "\ud800", b"x", {"a": [None]}, float("nan")):
        assert check.canonical({"v": value}) == check.canonical({"v": value})
    assert check.canonical({"v": 10**30}) != check.canonical({"v": 10**31})


def test_a_damaged_row_does_not_make_a_column_of_mixed_types(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,1\ny,2,3\nz,4\n")
    _, report = scan(tmp_path / "a.csv")
    assert "mixed-types" not in report.counts and report.facts["columns"]["label"] == "int 2"


def test_strata_are_classes_then_splits_then_files(tmp_path):
    write(tmp_path / "train.jsonl", {"text": "a"}, {"text": "b"})
    assert scan(tmp_path / "train.jsonl")[0].strata() is None
    write(tmp_path / "test.jsonl", {"text": "c"})
    assert scan(tmp_path)[0].strata() == ["train", "train", "test"]


def test_locations_name_the_line_of_a_row_that_spans_several(tmp_path):
    (tmp_path / "a.csv").write_text('text,n\n"a\nb",1\n\nc,2\n' + "d,3\n" * 30_000)
    source, _ = scan(tmp_path / "a.csv")
    assert [source.location(index).line for index in (0, 1, 2, 20_000)] == [2, 5, 6, 20_004]
    assert source.location(1) == Location("a.csv", line=5, byte=16, index=1)
