# SPDX-License-Identifier: Apache-2.0
"""A loader: the same batches whoever prepares them, from wherever reading goes on, and no random state touched."""

import random
import threading
from itertools import chain

import numpy as np
import pytest
import torch

import drawing_collator
from fewbit.data.collate import Collator
from fewbit.data.dataset import Dataset
from fewbit.data.devices._choice import Target
from fewbit.data.loading import Loader
from fewbit.data.source import Source
from fewbit.errors import DataError, UsageError

HELPERS = [0, 2]


def rows(count=23):
    rng = np.random.default_rng(0)
    return Dataset(
        [{"input_ids": rng.integers(1, 99, rng.integers(1, 9)).tolist(), "x": i} for i in range(count)], batched=False
    )


def load(dataset=None, collator=None, **more):
    more = {"workers": 0} | more
    return Loader(rows() if dataset is None else dataset, collator or Collator(batch_size=4), **more)


def same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def flat(lists):
    return list(chain.from_iterable(lists))


def numbers(loader):
    return [batch["x"].tolist() for batch in loader]


def test_an_epoch_is_every_sample_once_and_the_next_is_another_order():
    loader = load()
    first, second = numbers(loader), numbers(loader)
    for epoch in (first, second):
        assert sorted(flat(epoch)) == list(range(23)) and len(epoch) == len(loader) == 6
    assert first != second and loader.epoch == 2
    loader.set_epoch(0)
    assert numbers(loader) == first


def test_in_the_order_of_the_data():
    assert flat(numbers(load(shuffle=False))) == list(range(23))
    assert flat(numbers(load(shuffle=False, drop_last=True))) == list(range(20))


def test_a_loader_that_was_left_begins_anew():
    loader = load()
    whole = numbers(load())
    assert next(iter(loader))["x"].tolist() == whole[0]
    assert numbers(loader) == whole


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_give_what_the_reader_gives_and_end_with_it(workers):
    loader = load(workers=workers, prefetch=3)
    same(list(loader), list(load()))
    assert loader.report.kind == "thread"
    for _ in loader:
        break
    assert not [each.name for each in threading.enumerate() if each.name.startswith("fewbit-loader")]


@pytest.mark.parametrize("workers", HELPERS)
@pytest.mark.parametrize("after", [0, 1, 4, 6])
def test_reading_goes_on_where_it_was(workers, after):
    whole = [*load(), *load_second_epoch()]
    first = load(workers=workers)
    reading = iter(first)
    given = [next(reading) for _ in range(after)]
    state = first.state_dict()
    assert state["batch"] == after  # what was prepared ahead does not count
    second = load(workers=workers)
    second.load_state_dict(state)
    second.set_epoch(0)  # as loops do
    same([*given, *second, *second], whole)


def load_second_epoch():
    loader = load()
    loader.set_epoch(1)
    return loader


def test_the_state_after_an_epoch_is_the_next_one():
    loader = load()
    list(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)


@pytest.mark.parametrize("other", [{"seed": 1}, {"shuffle": False}, {"drop_last": True}, {"batch_size": 3}])
def test_a_state_of_another_order_is_refused(other):
    state = load().state_dict()
    with pytest.raises(UsageError, match="of another order"):
        load(**other).load_state_dict(state)
    with pytest.raises(UsageError, match="count was 23 and is 9"):
        load(rows(9)).load_state_dict(state)


def test_a_state_holds_for_other_shares_of_the_same_step():
    one = load(batch_size=4)
    reading = iter(one)
    next(reading), next(reading)
    rest = [sorted(numbers) for numbers in (batch["x"].tolist() for batch in reading)]
    shares = []
    for rank in range(2):
        shared = load(batch_size=2, rank=rank, world=2)
        shared.load_state_dict(one_after_two())
        shares.append(numbers(shared))
    assert [sorted(first + second) for first, second in zip(*shares)] == rest


def one_after_two():
    loader = load(batch_size=4)
    reading = iter(loader)
    next(reading), next(reading)
    return loader.state_dict()


def test_ranks_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        shares.append(numbers(load()))
    assert len(shares[0]) == len(shares[1]) == 3
    assert sorted(flat(flat(shares))) == list(range(23))


def generators():
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.parametrize("collator", [None, drawing_collator.draw])
def test_nobodys_random_state_is_touched(collator):
    before = generators()
    reading = iter(load(collator=collator))
    next(reading)
    assert generators() == before
    list(reading)
    list(load(collator=collator, workers=None))
    assert generators() == before


def test_random_numbers_of_a_users_collator_are_the_same_in_every_run_and_after_going_on():
    whole = list(load(collator=drawing_collator.draw))
    assert len({tuple(batch["drawn"].tolist()) for batch in whole}) == len(whole)
    loader = load(collator=drawing_collator.draw)
    next(iter(loader))
    second = load(collator=drawing_collator.draw)
    second.load_state_dict(loader.state_dict())
    same(list(second), whole[1:])


@pytest.mark.slow
def test_processes_give_what_the_reader_gives_go_on_and_touch_nothing():
    whole = list(load(collator=drawing_collator.draw, batch_size=4))
    before = generators()
    loader = load(collator=drawing_collator.draw, batch_size=4, workers=2)
    reading = iter(loader)
    given = [next(reading), next(reading)]
    assert loader.report.kind == "process" and loader.state_dict()["batch"] == 2
    state = loader.state_dict()
    loader.load_state_dict(state)
    same([*given, *loader], whole)
    assert generators() == before
    failing = load(collator=drawing_collator.refuse, workers=1)
    with pytest.raises(DataError, match="never") as error:
        list(failing)
    assert failing.report.kind == "process" and (error.value.where, error.value.expected) == ("here", "less")


def test_a_sample_that_does_not_fit_is_named_by_its_number_in_the_data():
    data = Dataset([{"x": [1, 2]}] * 5 + [{"x": "two"}] + [{"x": [1, 2]}] * 3, batched=False)
    for workers in HELPERS:
        with pytest.raises(DataError, match="sample 5, field 'x'"):
            list(load(data, shuffle=False, workers=workers))


def test_a_stream_is_kept_in_memory_and_says_so():
    data = Dataset(lambda: ({"x": i} for i in range(7)), batched=False)
    assert sorted(flat(numbers(load(data)))) == list(range(7))
    assert any(line["what"] == "held-in-memory" for line in data.record.lines)


def test_batches_are_on_the_device():
    target = Target("meta", torch.device("meta"), False, "a device that every PyTorch has")
    samples = Dataset(
        [{"image": np.zeros((4, 4, 3), np.uint8), "boxes": np.zeros((i, 4)), "name": "a"} for i in range(3)],
        batched=False,
    )
    batch = next(iter(load(samples, target=target)))
    assert batch["pixel_values"].device.type == "meta" and {box.device.type for box in batch["boxes"]} == {"meta"}
    assert batch["name"] == ["a"] * 3


def test_the_report_counts_padding():
    data = Dataset([{"input_ids": [1] * length} for length in (1, 3, 4, 8)], batched=False)
    loader = load(data, Collator(batch_size=2), shuffle=False)
    list(loader)
    report = loader.report
    assert (report.batches, report.samples, report.useful, report.places) == (2, 4, 16, 22)
    assert report.padding_waste == pytest.approx(6 / 22)
    assert report.seconds >= report.waited > 0 and report.tokens_per_second > 0
    assert "27.3% padding" in str(report) and "workers=0 was asked for" in str(report)
    assert report.to_dict()["samples"] == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_on_cuda_the_batches_are_those_of_the_processor():
    loader = load(target="cuda", workers=None)
    for _ in range(2):
        found = [{name: value.cpu() for name, value in batch.items()} for batch in loader]
    expected = load_second_epoch()
    same(found, list(expected))
    assert next(iter(loader))["input_ids"].is_cuda


@pytest.mark.parametrize("workers", [-1, "many", True])
def test_a_number_of_workers_that_makes_no_sense(workers):
    with pytest.raises(UsageError, match="workers"):
        load(workers=workers)


class Turning(Source):
    """Other samples in each epoch, and one more of them."""

    epoch = 0

    def __len__(self):
        return 5 + self.epoch

    def get(self, index):
        return {"x": 100 * self.epoch + index}


@pytest.mark.parametrize("workers", HELPERS)
def test_samples_that_change_with_the_epoch(workers):
    loader = load(Dataset(Turning()), workers=workers)
    assert [sorted(flat(numbers(loader))) for _ in range(2)] == [list(range(5)), list(range(100, 106))]
    state = loader.state_dict()
    assert state["epoch"] == 2 and state["order"]["count"] == 7
    again = load(Dataset(Turning()), workers=workers)
    again.load_state_dict(state)
    assert numbers(again) == numbers(loader)
