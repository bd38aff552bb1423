# SPDX-License-Identifier: Apache-2.0
"""Which samples are read when: every one once, the same step for any number of processes (claim 3.17)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.loading.order import SamplingOrder, group_lengths
from fewbit.errors import DataError

worlds = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 60)).map(lambda t: (t[0], t[1], t[0] + t[2]))
RAGGED = np.clip(np.random.default_rng(0).lognormal(5, 0.8, 2000), 1, 2048).astype(np.int64)


def steps(count, batch_size, world, epoch=0, **more):
    ranks = [SamplingOrder(count, batch_size, rank=rank, world=world, **more) for rank in range(world)]
    return list(zip(*(list(order.batches(epoch)) for order in ranks), strict=True))


@given(worlds, st.booleans(), st.integers(0, 3))
def test_every_sample_once_and_no_process_without_one(case, shuffle, epoch):
    world, batch_size, count = case
    made = steps(count, batch_size, world, epoch, shuffle=shuffle)
    assert sorted(i for step in made for part in step for i in part.tolist()) == list(range(count))
    most = 2 if batch_size == 1 else batch_size
    assert all(1 <= len(part) <= most for step in made for part in step)
    assert all(len(part) == batch_size for step in made[:-2] for part in step)
    assert all(max(map(len, step)) - min(map(len, step)) <= 1 for step in made)


@given(worlds)
def test_only_full_batches_if_the_last_is_dropped(case):
    world, batch_size, count = case
    if count < world * batch_size:
        with pytest.raises(DataError, match="too few"):
            steps(count, batch_size, world, drop_last=True)
        return
    made = steps(count, batch_size, world, drop_last=True)
    assert all(len(part) == batch_size for step in made for part in step)


def test_two_processes_see_at_each_step_what_one_sees():
    one = [step[0].tolist() for step in steps(22, 4, 1)]
    assert one == [[*first.tolist(), *second.tolist()] for first, second in steps(22, 2, 2)]


def test_each_epoch_has_its_own_order_and_each_run_the_same():
    orders = [SamplingOrder(50, 4, seed=3).indices(epoch).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert SamplingOrder(50, 4, seed=4).indices(0).tolist() != orders[0]


def test_reading_can_begin_at_any_step():
    order = SamplingOrder(11, 2)
    whole = [batch.tolist() for batch in order.batches(5)]
    assert [batch.tolist() for batch in order.batches(5, start=3)] == whole[3:]


def test_fewer_samples_than_processes():
    with pytest.raises(DataError, match="2 samples are too few for 3 processes"):
        SamplingOrder(2, 4, world=3)


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3))
def test_grouping_keeps_every_sample_once(lengths, size, pool, seed):
    order = group_lengths(np.array(lengths, np.int64), size, pool, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(lengths)))


def padding_share(lengths, batch_size):
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    return 1 - lengths.sum() / sum(batch.max() * len(batch) for batch in batches)


def test_groups_have_like_lengths_in_no_order():
    order = SamplingOrder(len(RAGGED), 16, lengths=RAGGED).indices(0)
    assert padding_share(RAGGED, 16) > 0.5 and padding_share(RAGGED[order], 16) < 0.15
    longest = RAGGED[order].reshape(-1, 16).max(axis=1)
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.25


def test_epochs_group_other_samples_together():
    order = SamplingOrder(200, 8, lengths=RAGGED[:200])
    first, second = ({frozenset(batch) for batch in order.indices(epoch).reshape(-1, 8).tolist()} for epoch in (0, 1))
    assert len(first & second) < 3
