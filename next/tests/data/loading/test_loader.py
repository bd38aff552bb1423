# SPDX-License-Identifier: Apache-2.0
"""A loader: the same batches from wherever reading goes on and whoever prepares them (claims 3.15, 3.17, 3.18)."""

import random
import sys
from itertools import chain
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import drawing_collators
from fewbit.data.loading import device_aware_data_loading, devices, generate_dataset_config
from fewbit.data.loading.collate import Collator
from fewbit.data.loading.devices import ComputeDevice, choose_device
from fewbit.data.loading.loader import Loader
from fewbit.data.loading.prepare import prepare
from fewbit.errors import DataError, FewbitWarning, UsageError


def rows(count=23):
    draw = np.random.default_rng(0)
    return [{"input_ids": draw.integers(1, 99, draw.integers(1, 9)).tolist(), "x": n} for n in range(count)]


def load(data=None, collator=None, **more):
    config = generate_dataset_config(rows() if data is None else data, [], {"batch_size": 4})
    more = {"target_device": "cpu", **more}
    return device_aware_data_loading(config, collator or Collator(4), **more)


def numbers(loader):
    return [batch["x"].tolist() for batch in loader]


def flat(lists):
    return list(chain.from_iterable(lists))


def same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_an_epoch_is_every_sample_once_and_the_next_is_in_another_order():
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


def test_a_pass_that_was_left_begins_anew():
    loader, whole = load(), numbers(load())
    assert next(iter(loader))["x"].tolist() == whole[0]
    assert numbers(loader) == whole


@pytest.mark.parametrize("after", [0, 1, 4, 6])
@pytest.mark.parametrize("workers", [0, 2])
def test_reading_goes_on_where_it_was(workers, after):
    whole_loader = load()
    whole = [*whole_loader, *whole_loader]
    first = load(workers=workers)
    reading = iter(first)
    batches = [next(reading) for _ in range(after)]
    state = first.state_dict()
    assert (state["epoch"], state["batch"]) == (after // 6, after % 6)  # what was prepared ahead does not count
    second = load(workers=workers)
    second.load_state_dict(state)
    second.set_epoch(state["epoch"])  # as loops do
    batches += list(second)
    if after < 6:
        batches += list(second)
    same(batches, whole)


@pytest.mark.parametrize("other", [{"shuffle": False}, {"drop_last": True}])
def test_a_state_of_another_order_is_refused(other):
    state = load().state_dict()
    with pytest.raises(UsageError, match="another order"):
        load(**other).load_state_dict(state)
    with pytest.raises(UsageError, match="count was 23 and is 9"):
        load(rows(9)).load_state_dict(state)


def test_a_state_holds_for_another_number_of_processes():
    one = load()
    reading = iter(one)
    next(reading), next(reading)
    state = one.state_dict()
    rest = [sorted(batch["x"].tolist()) for batch in reading]
    shares = []
    for rank in range(2):
        shared = load(collator=Collator(2), batch_size=2, rank=rank, world=2)
        shared.load_state_dict(state)
        shares.append(numbers(shared))
    assert [sorted(first + second) for first, second in zip(*shares)] == rest


def test_ranks_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        shares.append(numbers(load()))
    assert sorted(flat(flat(shares))) == list(range(23))


def generators():
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.parametrize("collator", [None, drawing_collators.draw])
@pytest.mark.parametrize("workers", [0, 2])
def test_nobodys_random_state_is_touched(collator, workers):
    before = generators()
    list(load(collator=collator, workers=workers))
    assert generators() == before


def test_random_numbers_of_a_users_collator_are_the_same_for_any_worker_and_after_going_on():
    whole = list(load(collator=drawing_collators.draw))
    assert len({tuple(batch["drawn"].tolist()) for batch in whole}) == len(whole)
    same(list(load(collator=drawing_collators.draw, workers=2)), whole)
    loader, second = load(collator=drawing_collators.draw), load(collator=drawing_collators.draw)
    next(iter(loader))
    second.load_state_dict(loader.state_dict())
    same(list(second), whole[1:])


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_equal_for_any_number_of_workers(workers):
    rows = [{"text": "word " * (1 + n % 5), "label": n % 2} for n in range(20)]
    config = generate_dataset_config(rows, ["augmentation", "tokenization"], {"tokenizer": "bytes", "batch_size": 4})
    loaders = [device_aware_data_loading(config, target_device="cpu", workers=count) for count in (0, workers)]
    for _ in range(2):
        same(list(loaders[0]), list(loaders[1]))


@pytest.mark.slow
def test_spawned_workers_give_the_same_batches():
    config = generate_dataset_config(rows(), [], {"batch_size": 4, "start_method": "spawn", "workers": 2})
    same(list(device_aware_data_loading(config, Collator(4), "cpu")), list(load()))


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_come_out_of_a_worker_whole(workers):
    with pytest.raises(DataError, match="never") as caught:
        list(load(collator=drawing_collators.refuse, workers=workers))
    assert (caught.value.where, caught.value.expected, caught.value.hint) == ("here", "less", "leave")


def test_a_sample_that_does_not_fit_is_named_by_its_number_in_the_data():
    data = [{"x": [1, 2]}] * 5 + [{"x": "two"}] + [{"x": [1, 2]}] * 3
    with pytest.raises(DataError, match="sample 5, field 'x'"):
        list(load(data, shuffle=False))


def test_batches_are_on_the_device():
    samples = [{"image": np.zeros((4, 4, 3), np.uint8), "boxes": np.zeros((n, 4)), "name": "a"} for n in range(3)]
    prepared = prepare(generate_dataset_config(samples, []))
    batch = next(iter(Loader(prepared, Collator(), ComputeDevice("meta", torch.device("meta"), "always here"))))
    assert batch["pixel_values"].device.type == "meta" and {box.device.type for box in batch["boxes"]} == {"meta"}
    assert batch["name"] == ["a"] * 3


def test_the_report_counts_padding():
    loader = load([{"input_ids": [1] * n} for n in (1, 3, 4, 8)], Collator(2), shuffle=False, batch_size=None)
    list(loader)
    report = loader.report
    assert (report.batches, report.samples, report.tokens, report.padded_tokens) == (2, 4, 16, 22)
    assert report.padding_share == pytest.approx(6 / 22) and "27.3% padding" in str(report)
    assert report.to_dict()["padding_share"] == report.padding_share


@pytest.mark.parametrize("workers", [-1, "many", True])
def test_a_number_of_workers_that_makes_no_sense(workers):
    with pytest.raises(UsageError, match="workers"):
        load(workers=workers)


@pytest.mark.parametrize("collator", [lambda samples: [sample["x"] for sample in samples], drawing_collators.draw])
def test_any_function_is_a_collator(collator):
    batches = list(load(collator=collator))
    assert len(batches) == 6


# devices
@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setitem(devices._DEVICES, "cuda", lambda torch: (0, "no CUDA"))
    monkeypatch.setitem(devices._DEVICES, "mps", lambda torch: (0, "no Metal"))


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setitem(devices._DEVICES, "cuda", lambda torch: (2, ""))
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def test_the_cpu_is_always_there(no_gpu):
    for word in ("cpu", "CPU", "auto", torch.device("cpu")):
        assert choose_device(word).device == torch.device("cpu")


@pytest.mark.parametrize("word", ["gpu", "cuda", "cuda:1", "mps", "qaic"])
def test_a_device_that_is_not_there_is_the_cpu_with_a_warning_or_an_error(no_gpu, monkeypatch, word):
    monkeypatch.setitem(sys.modules, "torch_qaic", None)
    with pytest.warns(FewbitWarning, match=f"'{word}' is not available.*stay on the CPU"):
        assert choose_device(word).name == "cpu"
    with pytest.raises(UsageError, match="not available"):
        choose_device(word, required=True)


def test_words_for_cuda(two_gpus, monkeypatch):
    assert [choose_device(word).name for word in ("gpu", "auto", "cuda", "cuda:1")] == ["cuda:0"] * 3 + ["cuda:1"]
    assert choose_device("cuda").pins_memory
    with pytest.raises(UsageError, match="cuda:0 to cuda:1"):
        choose_device("cuda:2", required=True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("gpu").name == "cuda:1" and choose_device("cuda:0").name == "cuda:0"


def test_a_word_that_nobody_knows():
    with pytest.raises(UsageError, match="no device 'cudda'") as caught:
        choose_device("cudda")
    assert caught.value.expected == "cuda"


def test_qaic_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_qaic", None)
    with pytest.raises(UsageError, match="Cloud AI SDK"):
        choose_device("qaic", required=True)
    monkeypatch.setitem(sys.modules, "torch_qaic", ModuleType("torch_qaic"))
    monkeypatch.setattr(torch, "qaic", SimpleNamespace(is_available=lambda: False), raising=False)
    with pytest.raises(UsageError, match="no Cloud AI card"):
        choose_device("qaic", required=True)
