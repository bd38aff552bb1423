# SPDX-License-Identifier: Apache-2.0
"""Every form a loader's documentation shows, and what people really pass."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from transformers import BatchEncoding

import fewbit
from fewbit.errors import DataError, UsageError

device = None


def test_a_loader_over_a_tensor():
    dataset = fewbit.Dataset(DataLoader(torch.rand(128, 128), batch_size=4, shuffle=False))
    assert dataset.batched and dataset.sample_count == 128 and len(dataset) == 32
    assert next(iter(dataset)).shape == (4, 128)


@pytest.mark.parametrize("wrap", [lambda t: {"input_ids": t}, lambda t: t])
def test_a_loader_over_a_list_with_no_batch_size(wrap):
    items = [wrap(torch.rand(128, 128)), wrap(torch.rand(128, 128))]
    dataset = fewbit.Dataset(DataLoader(items, batch_size=None, shuffle=False))
    assert len(dataset) == 2 and dataset.batched
    assert sum(1 for _ in dataset.subset(100)) == 1  # one item already holds 128 samples


def test_a_loader_over_a_dict_with_a_collate_fn():
    # PyTorch itself asks such a dict for the key 0 and fails; and torch.Tensor cannot be made of tensor rows.
    def collate(blocks):
        batch = {"input_ids": torch.Tensor([block["input_ids"] for block in blocks])}
        if device:
            batch["input_ids"] = batch["input_ids"].to(device)
        return batch

    columns = {"input_ids": torch.rand(128, 128)}
    dataset = fewbit.Dataset(DataLoader(columns, batch_size=4, collate_fn=collate))
    items = list(dataset)
    assert len(items) == len(dataset) == 32 and dataset.sample_count == 128
    assert torch.equal(torch.cat([item["input_ids"] for item in items]), columns["input_ids"])
    assert dataset.record.lines[0]["what"] == "rows-as-lists"


def test_a_loader_over_a_dict_without_a_collate_fn():
    dataset = fewbit.Dataset(DataLoader({"a": torch.arange(6), "b": torch.ones(6, 2)}, batch_size=4))
    assert [item["b"].shape for item in dataset] == [(4, 2), (2, 2)]
    assert dataset.record.lines == []


def test_a_collate_fn_that_fails_either_way_shows_its_own_error():
    def collate(blocks):
        raise ValueError("mine")

    dataset = fewbit.Dataset(DataLoader({"a": torch.arange(6)}, batch_size=4, collate_fn=collate))
    with pytest.raises(DataError, match="mine") as caught:
        list(dataset)
    assert caught.value.where == "batch 0"


def test_columns_of_different_length_are_refused():
    with pytest.raises(DataError, match="a: 3, b: 4"):
        fewbit.Dataset({"a": np.zeros(3), "b": np.zeros(4)})


def test_tuples_batch_encodings_and_named_tuples_come_as_they_are():
    Pair = namedtuple("Pair", "x y")
    for item in ((torch.zeros(2), 1), BatchEncoding({"ids": torch.zeros(1, 2)}), Pair(1, 2), [torch.zeros(2)]):
        assert next(iter(fewbit.Dataset([item]))) is item


def test_arrays_and_tensors_are_samples_along_the_first_axis():
    for array in (np.arange(6).reshape(3, 2), torch.arange(6).reshape(3, 2)):
        dataset = fewbit.Dataset(array)
        assert (len(dataset), dataset.batched, dataset[1].tolist()) == (3, False, [2, 3])
    with pytest.raises(DataError, match="0-d"):
        fewbit.Dataset(np.float32(1))


def test_a_dict_of_columns_is_samples():
    dataset = fewbit.Dataset({"x": np.arange(3), "y": ["a", "b", "c"]})
    assert (len(dataset), dict(dataset[2])) == (3, {"x": 2, "y": "c"})


def test_a_pytorch_dataset_is_samples_and_its_errors_name_the_element():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return torch.zeros(2), 10 // (2 - index)

    dataset = fewbit.Dataset(Broken())
    assert not dataset.batched and dataset[0][1] == 5
    with pytest.raises(DataError, match="ZeroDivisionError") as caught:
        list(dataset)
    assert caught.value.where == "element 2"


def test_an_iterable_dataset_is_a_stream_of_samples():
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    dataset = fewbit.Dataset(Numbers())
    assert list(dataset) == [0, 1, 2, 3, 4] and not dataset.batched and dataset.sample_count is None


def test_the_batch_axis_can_be_declared():
    assert fewbit.Dataset([np.zeros(3)], batched=False).batched is False
    assert fewbit.Dataset(TensorDataset(torch.zeros(4, 1)), batched=True).batched is True


def test_a_loader_that_fails_names_the_batch():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.zeros(2 if index < 4 else 3) if index != 5 else torch.zeros(9)

    with pytest.raises(DataError, match="RuntimeError") as caught:
        list(fewbit.Dataset(DataLoader(Broken(), batch_size=2)))
    assert caught.value.where == "batch 2"


def test_what_cannot_be_read_is_refused_with_a_reason():
    with pytest.raises(DataError, match=r"no known format fits an object of type builtins\.int"):
        fewbit.Dataset(7)
    with pytest.raises(UsageError, match="has no splits"):
        fewbit.open_dataset([1, 2], split="train")


def test_checking_a_loader_finds_nan_and_odd_elements():
    items = [{"x": torch.ones(2, 2)}, {"x": torch.full((2, 2), float("nan"))}, {"y": np.ones(2)}]
    report = fewbit.check_dataset(items)
    assert dict(report.counts) == {"not-finite": 1, "element-differs": 1}
    assert report.errors[0].place.index == 1 and report.understood["items"] == 3


def test_checking_an_empty_loader_is_an_error_and_a_generator_is_not_used_up():
    assert fewbit.check_dataset([]).counts == {"no-samples": 1}
    generator = iter([1, 2])
    with pytest.raises(UsageError, match="use it up"):
        fewbit.check_dataset(generator)
    assert list(generator) == [1, 2]


def test_a_check_counts_samples_as_everything_else_does():
    items = [torch.rand(128, 4), torch.rand(100, 4)]
    understood = fewbit.check_dataset(DataLoader(items, batch_size=None)).understood
    assert (understood["items"], understood["samples"]) == (2, 228)
