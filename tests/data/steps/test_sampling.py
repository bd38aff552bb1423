# SPDX-License-Identifier: Apache-2.0
"""Sampling: so many, in proportion, by weight; the same ones for the same seed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.steps import sampling
from fewbit.errors import DataError, UsageError
from step_context import apply

ROWS = [{"text": str(index), "label": 0 if index < 90 else 1, "heavy": float(index == 7)} for index in range(100)]


def ids(source):
    return [int(sample["text"]) for sample in source]


def test_so_many_or_a_share_in_the_order_of_the_source():
    ten, share = ids(apply(sampling, ROWS, sampling_count=10)[0]), ids(apply(sampling, ROWS, sampling_share=0.25)[0])
    assert len(ten) == 10 and len(share) == 25
    assert ten == sorted(set(ten)) and share == sorted(set(share))
    assert ten == ids(apply(sampling, ROWS, sampling_count=10)[0])
    assert ten != ids(apply(sampling, ROWS, sampling_count=10, seed=1)[0])


def test_more_than_there_are_is_all_and_said():
    source, about = apply(sampling, ROWS, sampling_count=1000)
    assert ids(source) == list(range(100)) and about.record.lines[0]["what"] == "fewer-samples"


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=50), st.floats(0, 1), st.integers(0, 3))
def test_each_value_keeps_its_share_to_within_one(values, share, seed):
    count = round(share * len(values))
    picked = sampling.stratified(np.array(values), count, np.random.default_rng(seed))
    assert len(set(picked.tolist())) == len(picked) == count
    for value, there in Counter(values).items():
        taken = sum(values[index] == value for index in picked)
        assert abs(taken - there * count / len(values)) < 1 + 1e-9


def test_classes_in_proportion():
    source, _ = apply(sampling, ROWS, sampling_count=20, sampling_by="label")
    assert Counter(sample["label"] for sample in source) == {0: 18, 1: 2}


def test_drawn_by_weight_with_repeats():
    balanced, about = apply(sampling, ROWS, sampling_count=1000, sampling_by="label", sampling_weights="balanced")
    assert abs(sum(sample["label"] for sample in balanced) - 500) < 80
    assert about.record.lines[-1]["different"] <= 100
    # Keys of YAML and JSON are texts, labels are numbers.
    only, _ = apply(sampling, ROWS, sampling_by="label", sampling_weights={"0": 0, "1": 2.5})
    assert len(only) == 100 and {sample["label"] for sample in only} == {1}
    seven, _ = apply(sampling, ROWS, sampling_count=5, sampling_weights="heavy")
    assert ids(seven) == [7] * 5


@given(st.lists(st.floats(0, 9), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-3), st.integers(0, 5))
def test_nothing_of_no_weight_is_drawn(weights, seed):
    drawn = sampling.drawn(np.array(weights), 50, np.random.default_rng(seed))
    assert all(weights[index] > 0 for index in drawn)


def test_other_splits_stay_whole_unless_named():
    assert len(apply(sampling, ROWS, "validation", sampling_count=10)[0]) == 100
    named = {"sampling_count": 10, "sampling_splits": ["train", "validation"]}
    assert len(apply(sampling, ROWS, "validation", **named)[0]) == 10


def test_contradictions_are_told_all_at_once():
    with pytest.raises(UsageError) as caught:
        apply(sampling, ROWS, sampling_count=3, sampling_share=0.5, sampling_weights="balanced")
    assert "one of them" in str(caught.value) and "sampling_by" in str(caught.value)
    assert sampling.faults({}) and not sampling.faults({"sampling_count": 3})
    with pytest.raises(DataError, match="no weight for 1"):
        apply(sampling, ROWS, sampling_by="label", sampling_weights={"0": 1})
    with pytest.raises(DataError, match="no column 'lable'"):
        apply(sampling, ROWS, sampling_count=3, sampling_by="lable")
