# SPDX-License-Identifier: Apache-2.0
"""Filtering: what stays, and a count for every reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.keys import faults
from fewbit.data.steps import filtering
from fewbit.errors import DataError, UsageError
from step_context import Stream, apply

ROWS = [{"text": text} for text in ("a cat", "", "  ", "two cats and a dog", "dog", "bird")]


def kept(samples, **options):
    source, about = apply(filtering, samples, **options)
    return list(source), {line["why"]: line["count"] for line in about.record.lines if line["what"] == "left-out"}


def test_empty_texts_go_by_default():
    assert kept(ROWS) == ([ROWS[0], *ROWS[3:]], {"text is empty": 2})
    assert kept(ROWS, filter_empty=False) == (ROWS, {})


def test_lengths_and_patterns_each_have_their_reason():
    options = {"filter_min_length": 4, "filter_max_length": 10}
    options |= {"filter_include": {"text": "c.t|bird"}, "filter_exclude": {"text": "(?i)BIRD"}}
    found, reasons = kept(ROWS, **options)
    assert found == [{"text": "a cat"}]
    assert reasons == {
        "text is empty": 2,
        "shorter than filter_min_length=4": 1,
        "longer than filter_max_length=10": 1,
        "filter_exclude of text": 1,
    }


def test_after_tokenization_a_length_is_tokens_and_nothing_to_learn_is_nothing():
    samples = [
        {"input_ids": [1, 2], "labels": [-100, 2]},
        {"input_ids": [1, 2], "labels": [-100, -100]},
        {"input_ids": [], "labels": []},
        {"input_ids": [1, 2, 3], "labels": [1, 2, 3]},
    ]
    found, reasons = kept(samples, filter_max_length=2)
    assert found == samples[:1]
    assert reasons == {"nothing in it is learned": 1, "input_ids is empty": 1, "longer than filter_max_length=2": 1}


def test_columns_that_must_not_be_empty_and_chats():
    rows = [{"prompt": "p", "answer": ""}, {"prompt": "", "answer": "a"}]
    assert kept(rows, filter_empty=["prompt"])[0] == rows[:1]
    chats = [{"messages": [{"role": "user", "content": text}]} for text in ("hi there", "no")]
    assert kept(chats, filter_exclude={"messages": "^no$"}, filter_min_length=2)[0] == chats[:1]


def test_the_users_own_function(tmp_path):
    (tmp_path / "mine.py").write_text("def long(sample):\n    return len(sample['text']) > 4\n")
    assert [row["text"] for row in kept(ROWS, filter_function=f"{tmp_path}/mine.py:long")[0]] == [
        "a cat",
        "two cats and a dog",
    ]
    with pytest.raises(UsageError, match="defines no"):
        apply(filtering, ROWS, filter_function=f"{tmp_path}/mine.py:lang")
    (tmp_path / "bad.py").write_text("def bad(sample):\n    return sample['nope']\n")
    with pytest.raises(DataError, match="KeyError: 'nope'"):
        kept(ROWS, filter_function=f"{tmp_path}/bad.py:bad")


def test_a_column_that_is_not_there_is_an_error():
    with pytest.raises(DataError, match="no column 'txt'"):
        kept(ROWS, filter_include={"txt": "a"})


def test_patterns_that_do_not_compile_are_found_before_anything_is_read():
    assert faults({"filter_include": {"text": "("}}, filtering.KEYS)
    assert faults({"filter_min_length": 0}, filtering.KEYS)
    assert not faults({"filter_exclude": {"text": "(a|b)+"}}, filtering.KEYS)


@given(st.lists(st.integers(0, 9)), st.integers(1, 9))
def test_every_sample_stays_or_is_counted_however_it_is_read(lengths, least):
    samples = [{"input_ids": [1] * length} for length in lengths]
    if not samples:
        return
    source, about = apply(filtering, samples, filter_min_length=least)
    by_index = [source.get(index) for index in range(len(source))]
    assert by_index == list(source) == list(apply(filtering, Stream(samples), filter_min_length=least)[0])
    gone = sum(line["count"] for line in about.record.lines if line["what"] == "left-out")
    assert len(by_index) + gone == len(samples)
    assert all(len(sample["input_ids"]) >= least for sample in by_index)
