# SPDX-License-Identifier: Apache-2.0
"""Samples that nothing can be learned from are named: labels beyond the outputs, labels that are not there."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fewbit.data.dataset import Dataset
from fewbit.errors import DataError, UsageError
from fewbit.tuning.finetune import finetune
from fewbit.tuning.unfit_samples import Unfit, samples_named, told_accelerator

CPU = {"device": "cpu", "tensorboard": False, "workers": 0}
COUNTS = {"often": 30, "seldom": 20, "so": 20, "well": 1}


def folder_of(place, counts):
    """A folder with so many pictures of each class."""
    for name, count in counts.items():
        (place / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(np.full((8, 8, 3), 40 * number % 256, np.uint8)).save(place / name / f"{number}.png")
    return str(place)


def cnn(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def loader(**labels):
    """Ten batches of four rows, whose labels are 0 but for those given by their place."""
    found = torch.zeros(40, dtype=torch.long)
    for place, label in labels.items():
        found[int(place[1:])] = label
    return DataLoader(TensorDataset(torch.randn(40, 4), found), batch_size=4)


def test_a_plain_model_for_fewer_classes_is_refused_before_the_first_step(tmp_path):
    place = folder_of(tmp_path / "pictures", COUNTS)
    with pytest.raises(UsageError, match=r"has 4 classes \(often, seldom, so, well\), the model tells 3 apart") as told:
        finetune(cnn(3), place, task="image_classification", output=tmp_path / "out", **CPU)
    assert told.value.try_ == "a last layer with 4 outputs"
    assert finetune(cnn(4), place, task="image_classification", max_steps=1, **CPU).fewbit_record.facts["steps"] == 1


@pytest.mark.parametrize(("place", "label"), [("n33", 7), ("n33", -1), ("n39", 3)])
def test_a_label_beyond_the_outputs_in_a_later_batch(place, label):
    with pytest.raises(DataError, match=f"a label is {label}; the model has 3 outputs, 0 to 2") as told:
        finetune(nn.Linear(4, 3), loader(**{place: label}), task="sequence_classification", **CPU)
    batch, row = divmod(int(place[1:]), 4)
    assert told.value.where == f"training data, step {batch + 1}, batch {batch}, row {row} of the batch"
    assert told.value.try_


def test_in_the_first_batch_and_in_data_to_judge_by():
    with pytest.raises(DataError, match="a label is 5; the model has 3 outputs") as told:
        finetune(nn.Linear(4, 3), loader(n2=5), task="sequence_classification", **CPU)
    assert told.value.where == "training data, batch 0, row 2 of the batch"
    with pytest.raises(DataError, match="a label is 5") as told:
        finetune(nn.Linear(4, 3), loader(), validation=loader(n30=5), task="sequence_classification", **CPU)
    assert told.value.where == "validation data, batch 7, row 2 of the batch"


def test_of_samples_their_numbers_are_said():
    rows = [{"input": np.zeros(4, np.float32), "label": 9 if n == 17 else 1} for n in range(20)]
    data = Dataset(rows, batched=False)
    with pytest.raises(DataError, match="a label is 9") as told:
        finetune(nn.Linear(4, 3), data, task="sequence_classification", shuffle=False, batch_size=2, **CPU)
    assert told.value.where.startswith("training data, step 9, sample 17")


def test_pixels():
    labels = torch.zeros(6, 5, 5, dtype=torch.long)
    labels[5, 2, 2] = 4
    data = DataLoader(TensorDataset(torch.randn(6, 3, 5, 5), labels), batch_size=1)
    with pytest.raises(DataError, match="a label is 4; the model has 2 outputs") as told:
        finetune(nn.Conv2d(3, 2, 1), data, task="segmentation", **CPU)
    assert "batch 5" in told.value.where


@pytest.mark.parametrize("missing", [{0}, {5}, set(range(8))])
@pytest.mark.parametrize("size", [1, 8])
def test_a_label_that_is_none_is_named_with_its_row(missing, size):
    picture = np.zeros((8, 8, 3), np.uint8)
    rows = [{"image": picture, "label": None if n in missing else n % 2} for n in range(8)]
    options = {"task": "image_classification", "validation": False, "batch_size": size, "shuffle": False, **CPU}
    with pytest.raises(DataError, match=r"^a label is None") as told:
        finetune(cnn(2), Dataset(rows, batched=False), **options)
    if len(missing) == 1:
        assert f"sample {min(missing)}" in told.value.where
    assert "is not None" in told.value.try_


def test_rows_that_are_prepared_are_named_as_they_were_given():
    rows = [{"image": np.zeros((8, 8, 3), np.uint8), "label": None if n == 5 else 1} for n in range(8)]
    with pytest.raises(DataError, match=r"^a label is None") as told:
        finetune(cnn(2), rows, task="image_classification", **CPU)
    assert "(list, sample 5)" in told.value.where


def test_what_is_said_of_samples_comes_back_from_another_process():
    said = pickle.loads(pickle.dumps(Unfit("it is wrong", rows=[3], of=4, try_="another")))
    assert (said.what, said.rows, said.of, said.code, said.try_) == ("it is wrong", [3], 4, "batch", "another")


def test_other_errors_stay_what_they_are():
    with pytest.raises(AttributeError, match="of the model"), samples_named({"labels": 1}, (0,), str, "data"):
        raise AttributeError("of the model")
    with pytest.raises(RuntimeError, match="something else"), told_accelerator(lambda: "step 3"):
        raise RuntimeError("something else")


def test_an_assertion_of_an_accelerator_is_told_with_what_helps():
    with pytest.raises(DataError, match="outside of its table") as told, told_accelerator(lambda: "step 3 to 9"):
        raise RuntimeError("CUDA error: device-side assert triggered")
    assert told.value.where == "step 3 to 9" and "device='cpu'" in told.value.try_
