# SPDX-License-Identifier: Apache-2.0
"""What a run reads: every sample once an epoch, the same from any step on, whoever shares it."""

import random
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fewbit.data.collate import Collator
from fewbit.data.dataset import Dataset
from fewbit.errors import DataError
from fewbit.tuning.feeding import BatchFeed, SampleFeed, Sharing
from tuning_runs import texts

numbers = st.integers(1, 9)


def steps(parts):
    """The samples of each step, and how many of its parts are the last."""
    found = [[]]
    for part in parts:
        found[-1] += part.items if part.counts else ()
        if part.last:
            found.append([])
    assert not found[-1], "a step without an end"
    return found[:-1]


def joined(lists):
    return list(chain.from_iterable(lists))


def numbered(count):
    return Dataset([{"x": index} for index in range(count)], batched=False)


@settings(max_examples=30)
@given(count=st.integers(1, 40), size=numbers, accumulation=numbers, world=st.integers(1, 4), epoch=st.integers(0, 2))
def test_processes_together_read_what_one_would_step_by_step(count, size, accumulation, world, epoch):
    alone = steps(SampleFeed(numbered(count), Collator(), Sharing(size, accumulation)).epoch(epoch))
    shared = [
        steps(SampleFeed(numbered(count), Collator(), Sharing(size, accumulation, rank, world)).epoch(epoch))
        for rank in range(world)
    ]
    assert sorted(joined(alone)) == list(range(count))
    assert [sorted(joined(parts)) for parts in zip(*shared, strict=True)] == [sorted(step) for step in alone]
    assert all(len(step) <= size * accumulation for step in alone)


@settings(max_examples=30)
@given(count=st.integers(1, 30), size=numbers, accumulation=numbers, start=st.integers(0, 5))
def test_an_epoch_can_be_begun_at_any_step(count, size, accumulation, start):
    feed = SampleFeed(numbered(count), Collator(), Sharing(size, accumulation))
    assert steps(feed.epoch(1, start)) == steps(feed.epoch(1))[start:]
    loader = DataLoader(TensorDataset(torch.arange(count), torch.arange(count)), batch_size=size, shuffle=True)
    other = BatchFeed(loader, Sharing(size, accumulation))
    whole = [part.batch["labels"].tolist() for part in other.epoch(1)][start * accumulation :]
    assert [part.batch["labels"].tolist() for part in other.epoch(1, start)] == whole


@settings(max_examples=30)
@given(count=st.integers(1, 20), accumulation=numbers, world=st.integers(1, 4))
def test_batches_of_others_are_dealt_out_each_once(count, accumulation, world):
    batches = [{"x": torch.tensor([index])} for index in range(count)]
    dataset = Dataset(batches, batched=True)
    shared = [steps(BatchFeed(dataset, Sharing(1, accumulation, rank, world)).epoch(0)) for rank in range(world)]
    assert sorted(joined(joined(each) for each in shared)) == list(range(count))
    assert len({len(each) for each in shared}) == 1, "processes would wait for one another"


def test_every_epoch_has_an_order_of_its_own_and_every_run_the_same():
    feed = SampleFeed(texts(), Collator(), Sharing(4, 2), seed=5)
    assert steps(feed.epoch(0)) == steps(SampleFeed(texts(), Collator(), Sharing(4, 2), seed=5).epoch(0))
    assert steps(feed.epoch(0)) != steps(feed.epoch(1))
    still = SampleFeed(texts(), Collator(), Sharing(4, 2), shuffle=False)
    assert joined(steps(still.epoch(1))) == list(range(24))


@pytest.mark.parametrize("own", [None, 7])
def test_a_shuffled_loader_has_another_order_each_epoch_and_its_state_stays(own):
    generator = None if own is None else torch.Generator().manual_seed(own)
    data = TensorDataset(torch.arange(30), torch.arange(30))
    loader = DataLoader(data, batch_size=5, shuffle=True, generator=generator)
    states = torch.get_rng_state(), None if generator is None else generator.get_state()
    feed = BatchFeed(loader, Sharing())
    orders = [torch.cat([part.batch["labels"] for part in feed.epoch(epoch)]).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert torch.equal(states[0], torch.get_rng_state())
    assert generator is None or torch.equal(states[1], generator.get_state())


def test_random_numbers_of_a_transform_depend_on_the_place_alone():
    def noisy(sample):
        return {"x": sample["x"] + random.random() + float(np.random.rand()) + float(torch.rand(()))}

    dataset = Dataset([{"x": index} for index in range(12)], noisy, batched=False)
    feed = SampleFeed(dataset, Collator(), Sharing(3))
    whole = [part.batch["x"].tolist() for part in feed.epoch(0)]
    assert [part.batch["x"].tolist() for part in feed.epoch(0, 2)] == whole[2:]


def test_other_data_has_another_fingerprint():
    def of(dataset):
        return SampleFeed(dataset, Collator(), Sharing()).fingerprint()

    assert of(texts()) == of(texts())
    assert len({of(texts()), of(texts(seed=1)), of(texts(23))}) == 3


def test_no_samples_are_refused():
    with pytest.raises(DataError, match="no sample"):
        SampleFeed(Dataset([], batched=False), Collator(), Sharing())
