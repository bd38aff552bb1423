# SPDX-License-Identifier: Apache-2.0
"""Length grouping: every sample once, far less padding, random from epoch to epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.steps import length_grouping as grouping
from fewbit.data.views import Claimed, Head, Picked
from fewbit.errors import DataError
from step_context import apply

RAGGED = np.clip(np.random.default_rng(0).lognormal(5, 0.8, 4000), 1, 2048).astype(np.int64)


def samples(lengths):
    return [{"input_ids": np.ones(length, np.int64)} for length in lengths]


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3))
def test_every_sample_once_and_the_small_batch_last(lengths, size, pool, seed):
    lengths = np.array(lengths, np.int64)
    order = grouping.group(lengths, size, pool, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(lengths)))


def test_batches_really_are_of_like_length():
    plain = grouping.padding_share(RAGGED, 16)
    source, about = apply(grouping, samples(RAGGED), batch_size=16)
    order = source.order(0)
    grouped = grouping.padding_share(RAGGED[order], 16)
    assert plain > 0.5 and grouped < 0.1
    line = about.record.lines[-1]
    assert line["padding"] == grouped and abs(line["ungrouped"] - plain) < 0.05
    assert grouping.padding_share(np.sort(RAGGED), 16) < grouped  # the least there can be, in an order that is no order


def test_padding_share_is_what_padding_would_add():
    order = np.random.default_rng(1).permutation(len(RAGGED))[:105]
    batches = [RAGGED[order[at : at + 16]] for at in range(0, 105, 16)]
    places = sum(batch.max() * len(batch) for batch in batches)
    assert grouping.padding_share(RAGGED[order], 16) == pytest.approx(1 - RAGGED[order].sum() / places)


def test_epochs_differ_and_runs_do_not():
    source, _ = apply(grouping, samples(RAGGED[:200]), batch_size=8)
    again, _ = apply(grouping, samples(RAGGED[:200]), batch_size=8)
    assert source.order(0).tolist() == again.order(0).tolist() != source.order(1).tolist()
    first, second = ({frozenset(batch) for batch in source.order(epoch).reshape(-1, 8).tolist()} for epoch in (0, 1))
    assert len(first & second) < 3  # other companions, not only another order of batches


def test_lengths_come_in_no_order():
    longest = RAGGED[apply(grouping, samples(RAGGED), batch_size=16)[0].order(0)].reshape(-1, 16).max(axis=1)
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.15
    assert abs(np.corrcoef(longest[1:], longest[:-1])[0, 1]) < 0.15


def test_the_batch_size_of_a_call_wins():
    source, _ = apply(grouping, samples(RAGGED), batch_size=1)
    assert grouping.padding_share(RAGGED[source.order(0, 32)], 32) < 0.2


def test_a_loader_finds_the_order_through_what_stands_on_it():
    source, _ = apply(grouping, samples([3, 4, 5]), batch_size=2)
    assert grouping.order_of(source) is source
    assert grouping.order_of(Claimed(source, False)) is source
    assert grouping.order_of(Picked(source, [2, 1, 0])) is None
    assert grouping.order_of(Head(source, 2)) is None
    assert grouping.order_of(source.inner) is None


def test_the_samples_stay_where_they_are_and_need_a_length():
    source, _ = apply(grouping, [{"text": "abc"}, {"text": "a"}])
    assert source.get(0) == {"text": "abc"} and source.lengths().tolist() == [3, 1] and len(list(source)) == 2
    with pytest.raises(DataError, match="without a length"):
        apply(grouping, [{"image": np.zeros((2, 2)), "label": 1}])[0].order(0)
