# SPDX-License-Identifier: Apache-2.0
"""A task prepares every batch of its data, and nothing else about it changes."""

from types import SimpleNamespace

from torch import nn

from fewbit.data.collate import Collator
from fewbit.data.dataset import Dataset
from fewbit.tuning.feeding import SampleFeed, Sharing
from fewbit.tuning.opening import Data
from fewbit.tuning.task_feed import for_task


def feed_of(count):
    return SampleFeed(Dataset([{"value": n} for n in range(count)]), Collator(), Sharing(batch_size=2))


def data_of(train, validation=None):
    return Data(train, validation, 2)


def test_every_batch_is_prepared():
    model, train, judged = nn.Identity(), feed_of(5), feed_of(3)
    task = SimpleNamespace(prepare=lambda batch, given: {"doubled": 2 * batch["value"], "for": given})
    data = for_task(data_of(train, judged), task, model)
    for made, plain in ((data.train, train), (data.validation, judged)):
        assert made.steps == plain.steps and made.fingerprint() == plain.fingerprint()
        for start in (0, 1):
            parts, before = list(made.epoch(1, start)), list(plain.epoch(1, start))
            assert [part.items for part in parts] == [part.items for part in before]
            assert [part.last for part in parts] == [part.last for part in before]
            assert all(part.batch["for"] is model for part in parts)
            doubled = [part.batch["doubled"].tolist() for part in parts]
            assert doubled == [(2 * part.batch["value"]).tolist() for part in before]
        assert made.name((0,)) == plain.name((0,))


def test_a_task_that_prepares_nothing_changes_nothing():
    data = data_of(feed_of(3))
    assert for_task(data, SimpleNamespace(), nn.Identity()) is data
