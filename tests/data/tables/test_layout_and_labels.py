# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit.data.tables.chat import normalised
from fewbit.data.tables.labels import BadLabel, Labels
from fewbit.data.tables.layout import recognise
from fewbit.data.tables.projection import projection
from fewbit.data.tables.repeats import Repeats, row_bytes
from fewbit.data.tables.splits import split_of
from fewbit.errors import UsageError


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "chat"),
        ({"conversations": [{"from": "human", "value": "x"}], "id": 1}, "chat"),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "preference"),
        ({"instruction": "i", "input": "", "output": "o"}, "instruction"),
        ({"prompt": "p", "completion": "c"}, "prompt-completion"),
        ({"sentence1": "a", "sentence2": "b", "label": 1}, "text-pair"),
        ({"question": "q", "answer": "a"}, "text-pair"),
        ({"text": "a", "label": 1}, "text-label"),
        ({"id": 3, "review": "a", "stars": 4}, "text-label"),
        ({"text": "a", "url": "b"}, "text"),
        ({"anything": "a"}, "text"),
        ({"x": 1, "y": 2}, "columns"),
        ({"messages": "not a list"}, "text"),
    ],
)
def test_layouts_are_recognised(row, name):
    assert recognise([row]).name == name


def test_the_choice_is_printed_and_can_be_overridden():
    rows = [{"question": "q", "answer": "a", "grade": 3}]
    assert str(recognise(rows)) == "text-pair (first = question, second = answer)"
    assert str(recognise(rows, layout="text-label", label="grade")) == "text-label (text = question, label = grade)"
    with pytest.raises(UsageError, match="layout"):
        recognise(rows, layout="cht")
    with pytest.raises(UsageError, match="grade"):
        recognise(rows, layout="chat")


def test_chat_roles_and_names_are_normalised():
    messages, faults = normalised(
        [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "h", "weight": 0},
            {"from": "gpt", "value": None, "tool_calls": []},
            {"role": "tool", "content": "t"},
        ]
    )
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool"] and not faults
    assert messages[1] == {"role": "user", "content": "h", "weight": 0}


@pytest.mark.parametrize(
    "value", [None, "x", [], [{"role": "user"}], [{"content": "x"}], ["x"], [{"role": 1, "content": "x"}]]
)
def test_messages_that_cannot_be_read_are_told(value):
    assert [code for code, _ in normalised(value)[1]] == ["bad-message"]


def test_an_unknown_role_is_kept_and_told():
    assert normalised([{"role": "narrator", "content": "x"}]) == (
        [{"role": "narrator", "content": "x"}],
        [("unknown-role", "message 0 has the role 'narrator'")],
    )


def test_string_labels_become_ids_by_sorted_uniques():
    labels = Labels.of(["b", "a", "b", "C"])
    assert labels.classes == ("C", "a", "b") and [labels.encode(x) for x in "abC"] == [1, 2, 0]


def test_int_labels_are_kept_when_they_are_0_to_n():
    labels = Labels.of([2, 0, 1, -1])
    assert [labels.encode(i) for i in (0, 1, 2, -1)] == [0, 1, 2, -1] and not labels.remarks


def test_other_int_labels_are_remapped_with_a_warning():
    labels = Labels.of([10, 2, 30])
    assert labels.classes == ("2", "10", "30") and labels.encode(10) == 1
    assert [code for code, _ in labels.remarks] == ["labels-remapped"]


def test_float_labels_that_are_whole_are_whole():
    labels = Labels.of([0.0, 1.0, float("nan"), None])
    assert labels.classes == ("0", "1") and labels.encode(1.0) == 1 and labels.encode(float("nan")) == -1


def test_regression_only_if_declared():
    with pytest.raises(BadLabel, match="regression"):
        Labels.of([0, 1]).encode(0.5)


def test_multi_label_lists():
    labels = Labels.of([["a", "b"], ["c"], []])
    assert labels.encode(["c", "a"]) == [2, 0] and labels.encode([]) == []


def test_minus_one_and_nothing_mean_unlabeled():
    labels = Labels.of(["a", "b"])
    assert [labels.encode(x) for x in (-1, None, "")] == [-1, -1, -1]


def test_labels_of_two_types_are_compared_as_text():
    labels = Labels.of([1, "x", "y"])
    assert labels.classes == ("1", "x", "y") and labels.encode(1) == labels.encode("1") == 0
    assert [code for code, _ in labels.remarks] == ["labels-mixed"]


@pytest.mark.parametrize("value", [{}, {"a": 1}, b"x"])
def test_a_value_that_is_no_class_is_told(value):
    with pytest.raises(BadLabel):
        Labels.of(["a"]).encode(value)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("train-00000-of-00002.parquet", "train"),
        ("my_test_1.csv", "test"),
        ("VALIDATION.json", "val"),
        ("dev.jsonl", "val"),
        ("valid2.jsonl", "val"),
        ("latest.jsonl", None),
        ("contest.csv", None),
        ("training_notes.csv", None),
        ("pretrain.jsonl", None),
        ("developer.jsonl", None),
        ("test/a.jsonl", "test"),
        ("data/train/x/a.jsonl", "train"),
        ("train/test.jsonl", "test"),
        ("wiki.train.jsonl.gz", "train"),
    ],
)
def test_splits_go_by_exact_words_never_by_substring(name, split):
    assert split_of(name) == (split, True)


def test_projection_takes_mappings_lists_and_text():
    assert projection(["a", "b.0"]) == {"a": "a", "b.0": "b.0"} and projection("t=x.y") == {"t": "x.y"}
    for wrong in ("", {}, [], {"a": 1}, [""]):
        with pytest.raises(UsageError):
            projection(wrong)


def test_repeated_rows_are_paired_with_the_first_of_their_split():
    repeats = Repeats()
    repeats.begin("train.jsonl", "train")
    repeats.add([5, 6, 5], [1, 2, 3])
    repeats.begin("test.jsonl", "test")
    repeats.add([6, 7, 6], [1, 2, 3])
    assert list(repeats.pairs()) == [(0, 2), (1, 3), (3, 5)]
    assert list(Repeats().pairs()) == []


def test_row_byteses_take_everything_a_table_can_hold():
    for value in (10**30, "\ud800", b"x", {"a": [None]}, float("nan")):
        assert row_bytes({"v": value}) == row_bytes({"v": value})
