# SPDX-License-Identifier: Apache-2.0
"""Who reads what when: everything once, nobody without anything, the same step whatever the number of processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.sampling_order import SamplingOrder
from fewbit.errors import DataError

worlds = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 60)).map(lambda t: (t[0], t[1], t[0] + t[2]))


def steps(count, batch_size, world, epoch=0, **more):
    ranks = [SamplingOrder(count, batch_size, rank=rank, world=world, **more) for rank in range(world)]
    return list(zip(*(list(order.batches(epoch)) for order in ranks), strict=True))


@given(worlds, st.booleans(), st.integers(0, 3))
def test_every_sample_once_over_all_processes_and_no_process_without_one(found, shuffle, epoch):
    world, batch_size, count = found
    made = steps(count, batch_size, world, epoch, shuffle=shuffle)
    assert sorted(i for step in made for part in step for i in part.tolist()) == list(range(count))
    most = 2 if batch_size == 1 else batch_size
    assert all(1 <= len(part) <= most for step in made for part in step)
    assert all(len(part) == batch_size for step in made[:-2] for part in step)
    assert len(made) == (count // world if batch_size == 1 else -(-count // (world * batch_size)))
    assert all(max(map(len, step)) - min(map(len, step)) <= 1 for step in made)


@given(worlds)
def test_only_full_batches_if_the_last_is_dropped(found):
    world, batch_size, count = found
    if count < world * batch_size:
        with pytest.raises(DataError, match="too few"):
            steps(count, batch_size, world, drop_last=True)
        return
    made = steps(count, batch_size, world, drop_last=True)
    assert all(len(part) == batch_size for step in made for part in step)
    assert len({i for step in made for part in step for i in part.tolist()}) == count - count % (world * batch_size)


def test_two_processes_see_at_each_step_what_one_sees():
    one = [step[0].tolist() for step in steps(22, 4, 1)]
    two = [[*first.tolist(), *second.tolist()] for first, second in steps(22, 2, 2)]
    assert one == two


def test_each_epoch_has_its_own_order_and_each_run_the_same():
    orders = [SamplingOrder(50, 4, seed=3).indices(epoch).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert SamplingOrder(50, 4, seed=4).indices(0).tolist() != orders[0]


def test_reading_can_begin_anywhere():
    order = SamplingOrder(11, 2)
    whole = [batch.tolist() for batch in order.batches(5)]
    assert [batch.tolist() for batch in order.batches(5, start=3)] == whole[3:]


def test_an_order_that_is_given():
    order = SamplingOrder(6, 1, world=2, ordering=lambda epoch, together: np.arange(6)[::-1] + 0 * epoch * together)
    assert [batch.tolist() for batch in order.batches(0)] == [[5], [3], [1]]


def test_fewer_samples_than_processes():
    with pytest.raises(DataError, match="2 samples are too few for 3 processes"):
        SamplingOrder(2, 4, world=3)
