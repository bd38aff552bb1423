# SPDX-License-Identifier: Apache-2.0
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import fewbit
from fewbit.data.batch import count_samples
from fewbit.data.objects.spool import SpoolWarning
from fewbit.errors import DataError, UsageError


def loader(samples=300, batch_size=128, shuffle=False):
    return DataLoader(TensorDataset(torch.arange(samples), torch.arange(samples)), batch_size, shuffle=shuffle)


def seen(dataset):
    return [int(v) for item in dataset for v in item[0]]


def test_a_dataset_is_ordered_and_re_iterable():
    dataset = fewbit.Dataset([1, 2, 3])
    assert list(dataset) == list(dataset) == [1, 2, 3]
    assert (len(dataset), dataset[1], dataset[-1], list(dataset[1:])) == (3, 2, 3, [2, 3])
    with pytest.raises(IndexError, match="sample 3 of 3"):
        dataset[3]


def test_it_is_lazy():
    def explode(item):
        raise AssertionError("read too early")

    dataset = fewbit.Dataset([1, 2], explode)
    assert len(dataset.subset(1)) if not dataset.batched else True
    assert "2 items" in repr(dataset)


def test_subset_size_counts_samples_never_batches():
    # Peers count batches: 300 of them would be 38,400 samples here.
    subset = fewbit.Dataset(loader(1000, 128)).subset(300)
    assert [count_samples(item) for item in subset] == [128, 128, 44]
    assert seen(subset) == list(range(300))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 50), st.sampled_from([None, 0, 7]))
@settings(deadline=None, max_examples=60)
def test_a_subset_of_any_loader_holds_exactly_that_many_samples(samples, batch_size, n, seed):
    subset = fewbit.Dataset(loader(samples, batch_size)).subset(n, seed)
    found = seen(subset)
    assert len(found) == len(set(found)) == min(n, samples)
    assert seen(subset) == found


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_a_seeded_subset_is_a_choice_in_order(samples, n, seed):
    dataset = fewbit.Dataset(np.arange(samples))
    chosen = [int(v) for v in dataset.subset(n, seed)]
    assert chosen == sorted(set(chosen)) and len(chosen) == min(n, samples)
    assert chosen == [int(v) for v in fewbit.Dataset(np.arange(samples)).subset(n, seed)]


@given(st.integers(0, 60), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.sampled_from([None, 0, 1]))
@settings(deadline=None)
def test_splits_are_disjoint_and_together_everything(samples, weights, seed):
    total = sum(weights) or 1
    fractions = [w / total for w in weights] if sum(weights) else [1.0]
    parts = fewbit.Dataset(np.arange(samples)).split(*fractions, seed=seed)
    assert sorted(int(v) for part in parts for v in part) == list(range(samples))


@given(st.integers(0, 40), st.integers(1, 6), st.booleans())
@settings(deadline=None)
def test_shards_are_disjoint_and_together_everything(samples, world, stream):
    source = (lambda: iter(range(samples))) if stream else np.arange(samples)
    shards = [[int(v) for v in fewbit.Dataset(source).shard(rank, world)] for rank in range(world)]
    assert sorted(v for shard in shards for v in shard) == list(range(samples))
    if not stream:
        assert [len(fewbit.Dataset(source).shard(r, world)) for r in range(world)] == [len(s) for s in shards]


def test_wrong_parts_are_refused():
    dataset = fewbit.Dataset(np.arange(4))
    for wrong in (lambda: dataset.subset(-1), lambda: dataset.shard(2, 2), lambda: dataset.split(0.9, 0.9)):
        with pytest.raises(UsageError):
            wrong()


def test_a_generator_is_kept_on_disk_once_and_says_so():
    calls = []

    def generate():
        for i in range(4):
            calls.append(i)
            yield {"x": torch.full((2, 3), float(i)), "bf": torch.ones(1, dtype=torch.bfloat16), "name": f"n{i}"}

    with pytest.warns(SpoolWarning, match="kept on disk"):
        dataset = fewbit.Dataset(generate())
    assert calls == []
    first = [next(iter(dataset))["name"], *(item["name"] for item in dataset)]
    assert first == ["n0", "n0", "n1", "n2", "n3"] and calls == [0, 1, 2, 3]
    again = list(dataset)
    assert torch.equal(again[2]["x"], torch.full((2, 3), 2.0)) and again[2]["bf"].dtype == torch.bfloat16
    assert (len(dataset), dataset[3]["name"], calls) == (4, "n3", [0, 1, 2, 3])
    assert dataset.record.lines[0]["what"] == "spooled"


def test_a_function_is_called_anew_for_each_pass():
    dataset = fewbit.Dataset(lambda: iter([1, 2, 3]))
    assert list(dataset) == list(dataset) == [1, 2, 3]
    with pytest.raises(TypeError, match="length is not known"):
        len(dataset)
    assert list(dataset.subset(2, seed=1)) == list(dataset.subset(2, seed=1))


def test_none_is_no_data():
    dataset = fewbit.Dataset(None)
    assert (len(dataset), list(dataset)) == (0, [])
    with pytest.raises(DataError, match="empty"):
        dataset.validate(torch.nn.Linear(2, 2))


def test_a_shuffled_loader_is_read_alike_every_time_and_no_random_state_moves():
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    dataset = fewbit.Dataset(loader(20, 3, shuffle=True), lambda item: (item[0] + 0 * int(np.random.rand()), item[1]))
    first = seen(dataset)
    assert seen(dataset) == first != list(range(20))
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_a_loaders_own_generator_is_put_back():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    data = DataLoader(torch.arange(9), batch_size=2, shuffle=True, generator=generator)
    dataset = fewbit.Dataset(data)
    assert [v.tolist() for v in dataset] == [v.tolist() for v in dataset]
    assert torch.equal(generator.get_state(), before)


def test_a_transform_error_names_the_sample_and_where_it_came_from(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n\n{"text": "y"}\n')

    def transform_fn(sample):
        return {"x": {"x": 1}[sample["text"]]}

    dataset = fewbit.Dataset(tmp_path / "a.jsonl", transform_fn)
    with pytest.raises(DataError, match="transform_fn raised KeyError: 'y'") as caught:
        list(dataset)
    assert "sample 1" in caught.value.where and "a.jsonl:3" in caught.value.where
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_transform_of_a_loader_names_the_batch():
    with pytest.raises(DataError, match="ZeroDivisionError") as caught:
        list(fewbit.Dataset(loader(), lambda item: 1 / 0))
    assert "sample 0" in caught.value.where


def test_a_failed_transform_is_called_by_hand_in_a_way_its_source_allows():
    def fails(item):
        raise ValueError

    def advice(data, function):
        with pytest.raises(DataError) as caught:
            list(fewbit.Dataset(data, function))
        return caught.value.try_

    assert "fails(next(iter(data_source)))" in advice(loader(), fails)
    assert "fails(Dataset(data_source)[0])" in advice(np.ones((2, 3)), fails)
    batches = DataLoader(torch.arange(4), batch_size=2)
    assert "next(itertools.islice(data_source, 1, None))" in advice(batches, lambda item: {0: "first"}[int(item[0])])


def test_the_users_data_is_never_changed():
    rows = [{"x": np.ones(2)}, {"x": np.zeros(2)}]
    dataset = fewbit.Dataset(rows)
    list(dataset), dataset.subset(1, seed=0), list(dataset.split(0.5, 0.5))
    assert [row["x"].tolist() for row in rows] == [[1, 1], [0, 0]] and len(rows) == 2
