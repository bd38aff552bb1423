# SPDX-License-Identifier: Apache-2.0
"""Pictures of different sizes in one batch: refused where the model cannot be told where each of them ends."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from fewbit.data.config import generate_dataset_config
from fewbit.errors import DataError
from fewbit.tuning.finetune import finetune
from fewbit.tuning.picture_sizes import refuse_sizes
from fewbit.tuning.unfit_samples import Unfit

CPU = {"device": "cpu", "tensorboard": False, "workers": 0, "shuffle": False, "batch_size": 4}


def folder(place, sizes):
    """A picture of each size (width, height), of two classes in turn."""
    draw = np.random.default_rng(0)
    for number, (width, height) in enumerate(sizes):
        home = place / "ab"[number % 2]
        home.mkdir(parents=True, exist_ok=True)
        picture = draw.integers(0, 255, (height, width, 3), dtype=np.uint8)
        Image.fromarray(picture).save(home / f"{number:03}.png")
    return str(place)


def cnn():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


class Told(nn.Module):
    """A model that leaves out what is beside a picture."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, pixel_values, pixel_mask=None):
        mask = torch.ones_like(pixel_values[:, 0]) if pixel_mask is None else pixel_mask
        means = (pixel_values * mask[:, None]).sum((2, 3)) / mask.sum((1, 2))[:, None]
        return self.head(functional.relu(means))


def test_the_sizes_the_files_and_what_helps_are_said(tmp_path):
    place = folder(tmp_path, [(8 + n % 3, 9) for n in range(24)])
    with pytest.raises(DataError, match=r"8 x 9 and 1?[09] x 9 pixels, and the model takes no pixel_mask") as told:
        finetune(cnn(), place, task="image_classification", **CPU)
    assert told.value.where.startswith("training data, sample") and told.value.where.count(".png") == 2
    assert "['rescaling']" in told.value.try_ and "'image_size': [9, 8]" in told.value.try_
    config = generate_dataset_config(place, ["rescaling"], {"image_size": [9, 8]})
    for data, more in ((config, {}), (place, {"batch_size": 1})):
        facts = finetune(cnn(), data, task="image_classification", **{**CPU, **more}).fewbit_record.facts
        assert facts["steps"] > 0


def test_a_later_batch_is_refused_too(tmp_path):
    place = folder(tmp_path, [(8, 8)] * 38 + [(12, 8)] * 2)
    with pytest.raises(DataError, match="12 x 8") as told:
        finetune(cnn(), place, task="image_classification", validation=False, **CPU)
    assert "038.png" in told.value.where or "039.png" in told.value.where


def test_data_to_judge_by_is_looked_at_before_the_training(tmp_path):
    place = folder(tmp_path / "one", [(8, 8)] * 8)
    other = folder(tmp_path / "other", [(8 + n // 2 % 2, 8) for n in range(8)])
    with pytest.raises(DataError, match="different sizes") as told:
        finetune(cnn(), place, validation=other, task="image_classification", output=tmp_path / "out", **CPU)
    assert told.value.where.startswith("validation data") and not (tmp_path / "out" / "metrics.jsonl").exists()


def test_a_model_that_takes_the_mask_takes_all_sizes(tmp_path):
    place = folder(tmp_path, [(8 + n % 3, 9) for n in range(24)])
    assert finetune(Told(), place, task="image_classification", **CPU).fewbit_record.facts["steps"] > 0


def test_one_size_on_a_larger_canvas_depends_on_no_other_picture():
    mask = torch.zeros(3, 8, 8, dtype=torch.long)
    mask[:, :6, :7] = 1
    refuse_sizes({"pixel_mask": mask}, cnn())
    mask[2, 6] = mask[2, 0]
    with pytest.raises(Unfit, match="7 x 6 and 7 x 7 pixels") as told:
        refuse_sizes({"pixel_mask": mask}, cnn())
    assert told.value.rows == [0, 2] and told.value.of == 3


def test_a_folder_of_pictures_a_class_says_what_is_learned(tmp_path):
    tuned = finetune(cnn(), folder(tmp_path, [(8, 8)] * 16), **CPU)
    assert tuned.fewbit_record.facts["task"] == "image_classification"
    assert tuned.fewbit_record.facts["classes"] == ["a", "b"]
