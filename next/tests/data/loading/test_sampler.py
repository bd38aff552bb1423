# SPDX-License-Identifier: Apache-2.0
"""The batch sampler: every sample once, the same steps for any number of processes (claim 3.17)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.loading.sampler import BatchSampler, group_lengths
from fewbit.errors import DataError, UsageError

LENGTHS = np.clip(np.random.default_rng(0).lognormal(5, 0.8, 2000), 1, 2048).astype(np.int64)


def steps(count, batch_size, world=1, epoch=0, **options):
    """For each step the batches of all processes."""
    ranks = []
    for rank in range(world):
        sampler = BatchSampler(count, batch_size, rank=rank, world=world, **options)
        sampler.epoch = epoch
        ranks.append([batch.tolist() for batch in sampler.batches()])
        assert len(sampler) == len(ranks[-1])
    return list(zip(*ranks, strict=True))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 60), st.booleans(), st.integers(0, 3))
def test_an_epoch_has_every_sample_once_and_work_for_every_process(world, batch_size, more, shuffle, epoch):
    count = world + more
    epoch_steps = steps(count, batch_size, world, epoch, shuffle=shuffle)
    assert sorted(index for step in epoch_steps for batch in step for index in batch) == list(range(count))
    sizes = [[len(batch) for batch in step] for step in epoch_steps]
    assert all(min(step) >= 1 and max(step) <= max(2, batch_size) and max(step) - min(step) <= 1 for step in sizes)
    assert all(size == batch_size for step in sizes[:-2] for size in step)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 40))
def test_drop_last_leaves_full_batches_only(world, batch_size, count):
    if count < world * batch_size:
        with pytest.raises(DataError, match="too few"):
            steps(count, batch_size, world, drop_last=True)
    else:
        epoch_steps = steps(count, batch_size, world, drop_last=True)
        assert len(epoch_steps) == count // (world * batch_size)
        assert all(len(batch) == batch_size for step in epoch_steps for batch in step)


def test_two_processes_read_at_each_step_what_one_process_reads():
    assert [first + second for first, second in steps(22, 2, 2)] == [step[0] for step in steps(22, 4)]


def test_a_permutation_depends_on_seed_and_epoch_only():
    first = steps(50, 4, seed=3)
    assert first == steps(50, 4, seed=3)
    assert first != steps(50, 4, seed=3, epoch=1) and first != steps(50, 4, seed=4)


def test_fewer_samples_than_processes_is_an_error():
    with pytest.raises(DataError, match="2 samples are too few for 3 processes"):
        BatchSampler(2, 4, world=3)


def test_the_state_is_the_next_batch_and_fits_only_the_same_order():
    sampler, other = BatchSampler(10, 4), BatchSampler(10, 4)
    for _ in range(4):
        sampler.advance()
    other.load_state_dict(sampler.state_dict())
    assert (other.epoch, other.batch) == (1, 1)
    for options in ({"count": 9}, {"batch_size": 5}, {"seed": 1}, {"shuffle": False}, {"drop_last": True}):
        name = next(iter(options)).replace("batch_size", "samples per step")
        with pytest.raises(UsageError, match=f"{name} was"):
            BatchSampler(**({"count": 10, "batch_size": 4} | options)).load_state_dict(sampler.state_dict())


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3))
def test_grouping_by_length_is_a_permutation(lengths, batch_size, pool, seed):
    order = group_lengths(np.array(lengths, np.int64), batch_size, pool, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(lengths)))


def test_batches_of_like_length_come_in_no_order_and_differ_between_epochs():
    sampler = BatchSampler(len(LENGTHS), 16, lengths=LENGTHS)
    batches = LENGTHS[sampler.permutation(0)].reshape(-1, 16)
    assert 1 - LENGTHS.sum() / (batches.max(axis=1).sum() * 16) < 0.15  # share of padding
    assert abs(np.corrcoef(batches.max(axis=1), np.arange(len(batches)))[0, 1]) < 0.25
    few = BatchSampler(200, 8, lengths=LENGTHS[:200])
    first, second = ({frozenset(batch) for batch in few.permutation(n).reshape(-1, 8).tolist()} for n in (0, 1))
    assert len(first & second) < 3
