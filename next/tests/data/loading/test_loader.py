# SPDX-License-Identifier: Apache-2.0
"""The loader: the same batches wherever reading resumes and whoever prepares them (claims 3.15, 3.17, 3.18)."""

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
from fewbit.data.loading.sampler import BatchSampler
from fewbit.errors import DataError, FewbitWarning, UsageError

ROWS = [{"input_ids": list(range(1, 2 + n % 8)), "x": n} for n in range(23)]


def load(data=ROWS, collator=None, **options):
    config = generate_dataset_config(data, [], {"batch_size": 4})
    return device_aware_data_loading(config, collator or Collator(4), **{"target_device": "cpu", **options})


def numbers(loader):
    return [batch["x"].tolist() for batch in loader]


def flat(lists):
    return list(chain.from_iterable(lists))


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_pass_is_an_epoch_and_the_next_one_has_another_order():
    loader = load()
    first, second = numbers(loader), numbers(loader)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(23)) and first != second
    assert len(first) == len(loader) == 6 and loader.epoch == 2
    loader.set_epoch(0)
    assert numbers(loader) == first
    assert flat(numbers(load(shuffle=False))) == list(range(23))
    assert flat(numbers(load(shuffle=False, drop_last=True))) == list(range(20))


def test_an_interrupted_pass_starts_over():
    loader, complete = load(), numbers(load())
    assert next(iter(loader))["x"].tolist() == complete[0]
    assert numbers(loader) == complete


@pytest.mark.parametrize("after", [0, 1, 4, 6])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_saved_state_resumes_at_the_batch(workers, after):
    uninterrupted = load()
    expected = [*uninterrupted, *uninterrupted]
    before, resumed = load(workers=workers), load(workers=workers)
    reading = iter(before)
    batches = [next(reading) for _ in range(after)]
    state = before.state_dict()
    assert (state["epoch"], state["batch"]) == (after // 6, after % 6)  # what was prepared ahead does not count
    resumed.load_state_dict(state)
    resumed.set_epoch(state["epoch"])  # as training loops do
    while len(batches) < len(expected):
        batches += list(resumed)
    assert_same(batches, expected)


def test_a_state_holds_for_another_number_of_processes():
    one = load()
    reading = iter(one)
    next(reading), next(reading)
    state = one.state_dict()
    halves = [load(collator=Collator(2), batch_size=2, rank=rank, world=2) for rank in range(2)]
    for half in halves:
        half.load_state_dict(state)
    rest = [batch["x"].tolist() for batch in reading]
    assert [first + second for first, second in zip(*map(numbers, halves))] == rest


def test_torchrun_says_which_process_this_is(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        shares += flat(numbers(load()))
    assert sorted(shares) == list(range(23))


@pytest.mark.parametrize("collator", [None, drawing_collators.draw])
@pytest.mark.parametrize("workers", [0, 2])
def test_global_random_generators_stay_untouched(collator, workers):
    def states():
        return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    list(load(collator=collator, workers=workers))
    assert states() == before


def test_random_numbers_of_a_collator_are_the_same_for_workers_and_after_resuming():
    expected = list(load(collator=drawing_collators.draw))
    assert len({tuple(batch["drawn"].tolist()) for batch in expected}) == len(expected)
    assert_same(list(load(collator=drawing_collators.draw, workers=2)), expected)
    loader, resumed = load(collator=drawing_collators.draw), load(collator=drawing_collators.draw)
    next(iter(loader))
    resumed.load_state_dict(loader.state_dict())
    assert_same(list(resumed), expected[1:])


def test_batches_are_equal_for_any_number_of_workers():
    rows = [{"text": "word " * (1 + n % 5), "label": n % 2} for n in range(20)]
    config = generate_dataset_config(rows, ["augmentation", "tokenization"], {"tokenizer": "bytes", "batch_size": 4})
    loaders = [device_aware_data_loading(config, target_device="cpu", workers=workers) for workers in (0, 1, 2)]
    for _ in range(2):
        expected = list(loaders[0])
        assert_same(list(loaders[1]), expected)
        assert_same(list(loaders[2]), expected)


@pytest.mark.slow
def test_spawned_workers_give_the_same_batches():
    config = generate_dataset_config(ROWS, [], {"batch_size": 4, "start_method": "spawn", "workers": 2})
    assert_same(list(device_aware_data_loading(config, Collator(4), "cpu")), list(load()))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_worker_arrives_with_all_its_parts(workers):
    with pytest.raises(DataError, match="never") as caught:
        list(load(collator=drawing_collators.refuse, workers=workers))
    assert (caught.value.where, caught.value.expected, caught.value.hint) == ("here", "less", "leave")


def test_a_sample_that_does_not_fit_is_named_by_its_number_in_the_data():
    with pytest.raises(DataError, match="sample 5, field 'x'"):
        list(load([{"x": [1, 2]}] * 5 + [{"x": "two"}] + [{"x": [1, 2]}] * 3, shuffle=False))


def test_everything_in_a_batch_is_moved_to_the_device():
    samples = [{"image": np.zeros((4, 4, 3), np.uint8), "boxes": np.zeros((n, 4)), "name": "a"} for n in range(3)]
    device = ComputeDevice("meta", torch.device("meta"), "always here")
    loader = Loader(prepare(generate_dataset_config(samples, [])), Collator(), device, BatchSampler(3, 8))
    batch = next(iter(loader))
    assert batch["pixel_values"].device.type == "meta" and {box.device.type for box in batch["boxes"]} == {"meta"}
    assert batch["name"] == ["a"] * 3


def test_the_report_counts_padding():
    loader = load([{"input_ids": [1] * n} for n in (1, 3, 4, 8)], Collator(2), shuffle=False)
    list(loader)
    report = loader.report
    assert (report.batches, report.samples, report.tokens, report.padded_tokens) == (2, 4, 16, 22)
    assert report.to_dict()["padding_share"] == pytest.approx(6 / 22) and "27.3% padding" in str(report)


@pytest.mark.parametrize("workers", [-1, "many", True])
def test_workers_must_be_a_number_from_0_up(workers):
    with pytest.raises(UsageError, match="workers"):
        load(workers=workers)


def test_any_function_is_a_collator():
    assert sorted(flat(load(collator=lambda samples: [sample["x"] for sample in samples]))) == list(range(23))


@pytest.fixture
def gpus(monkeypatch):
    """So many CUDA devices, no other."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setitem(sys.modules, "torch_qaic", None)

    def install(count):
        monkeypatch.setitem(devices._DEVICES, "cuda", lambda torch: (count, "no CUDA"))
        monkeypatch.setitem(devices._DEVICES, "mps", lambda torch: (0, "no Metal"))

    return install


@pytest.mark.parametrize("word", ["cpu", "CPU", "auto", torch.device("cpu")])
def test_the_cpu_needs_no_warning(gpus, word):
    gpus(0)
    assert choose_device(word).name == "cpu"


@pytest.mark.parametrize("word", ["gpu", "cuda", "cuda:1", "mps", "qaic"])
def test_a_missing_device_is_the_cpu_with_a_warning_or_an_error(gpus, word):
    gpus(0)
    with pytest.warns(FewbitWarning, match=f"'{word}' is not available.*stay on the CPU"):
        assert choose_device(word).name == "cpu"
    with pytest.raises(UsageError, match="not available"):
        choose_device(word, required=True)


def test_cuda_devices_by_number_and_by_local_rank(gpus, monkeypatch):
    gpus(2)
    assert [choose_device(word).name for word in ("gpu", "auto", "cuda", "cuda:1")] == ["cuda:0"] * 3 + ["cuda:1"]
    assert choose_device("cuda").pins_memory
    with pytest.raises(UsageError, match="cuda:0 to cuda:1"):
        choose_device("cuda:2", required=True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("gpu").name == "cuda:1" and choose_device("cuda:0").name == "cuda:0"


def test_an_unknown_device_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="no device 'cudda'") as caught:
        choose_device("cudda")
    assert caught.value.expected == "cuda"


def test_qaic_says_what_is_missing(gpus, monkeypatch):
    with pytest.raises(UsageError, match="Cloud AI SDK"):
        choose_device("qaic", required=True)
    monkeypatch.setitem(sys.modules, "torch_qaic", ModuleType("torch_qaic"))
    monkeypatch.setattr(torch, "qaic", SimpleNamespace(is_available=lambda: False), raising=False)
    with pytest.raises(UsageError, match="no Cloud AI card"):
        choose_device("qaic", required=True)
