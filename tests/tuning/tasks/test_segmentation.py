# SPDX-License-Identifier: Apache-2.0
"""Classes of pixels: what labels are made of, the loss pixel by pixel, the overlap of all pictures together."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fewbit.data.collate import Collator
from fewbit.tuning.tasks import segmentation as task


def model_of(classes):
    model = nn.Conv2d(3, classes, 1)
    model.config = SimpleNamespace(num_labels=classes)
    return model


def picture(height, width):
    return np.zeros((height, width, 3), np.uint8)


def test_objects_are_painted_with_small_ones_on_large_ones():
    small, large = np.zeros((4, 6), bool), np.zeros((4, 6), bool)
    small[1, 1:3], large[:3] = True, True
    sample = {"image": picture(4, 6), "masks": np.stack([small, large]), "classes": np.array([0, 1])}
    sample["boxes"] = np.zeros((2, 4))
    labels = task.prepare(Collator()([sample]), model_of(3))["labels"][0]
    assert labels.tolist() == [[2] * 6, [2, 1, 1, 2, 2, 2], [2] * 6, [0] * 6]


def test_what_fills_the_canvas_is_not_learned():
    full, tall = (
        {"image": picture(height, 2), "masks": np.ones((1, height, 2), bool), "classes": np.array([0])}
        for height in (2, 4)
    )
    batch = task.prepare(Collator()([full, tall]), model_of(2))
    assert batch["labels"].tolist() == [[[1, 1]] * 2 + [[-100, -100]] * 2, [[1, 1]] * 4]
    assert "masks" not in batch and "classes" not in batch


def test_a_picture_without_objects_is_background():
    empty = {"image": picture(2, 2), "masks": np.zeros((0, 2, 2), bool), "classes": np.zeros(0, np.int64)}
    assert task.prepare(Collator()([empty]), model_of(2))["labels"].tolist() == [[[0, 0], [0, 0]]]


@pytest.mark.parametrize("classes, expected", [(3, -100), (300, 255)])
def test_255_is_unknown_unless_it_is_a_class(classes, expected):
    mask = np.array([[0, 255], [2, 1]], np.uint8)
    batch = task.prepare(Collator()([{"image": picture(2, 2), "mask": mask}]), model_of(classes))
    assert batch["labels"].tolist() == [[[0, expected], [2, 1]]]
    own = task.prepare({"labels": torch.tensor([[[255]]])}, model_of(classes))
    assert own["labels"].tolist() == [[[expected]]]


def test_the_loss_is_that_of_each_pixel_for_itself():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator)
    labels = torch.randint(0, 3, (2, 4, 5), generator=generator)
    labels[0, 0] = -100
    expected = 0.0
    for n, y, x in np.ndindex(2, 4, 5):
        if labels[n, y, x] >= 0:
            expected -= float(logits[n, :, y, x].double().log_softmax(0)[labels[n, y, x]])
    total, count = task.loss(logits, {"labels": labels})
    assert float(total) == pytest.approx(expected, rel=1e-5) and count == 35


def test_small_logits_are_enlarged_as_the_model_itself_does():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8, 8, 8, 8], "num_attention_heads": [1, 1, 1, 1], "decoder_hidden_size": 8}
    model = SegformerForSemanticSegmentation(SegformerConfig(**sizes, depths=[1, 1, 1, 1], num_labels=3)).eval()
    labels = torch.randint(0, 3, (2, 32, 32))
    labels[0, :5] = 255
    outputs = model(pixel_values=torch.rand(2, 3, 32, 32), labels=labels)
    total, count = task.loss(outputs, task.prepare({"labels": labels}, model))
    torch.testing.assert_close(total / count, outputs.loss)


def test_the_overlap_is_that_of_all_pictures_together():
    said = torch.tensor([[[0, 0], [1, 1]], [[1, 1], [1, 1]]])
    labels = torch.tensor([[[0, 1], [1, -100]], [[1, 1], [1, 1]]])
    logits = nn.functional.one_hot(said, 3).movedim(-1, 1).float()
    first, second = task.METRIC(), task.METRIC()
    first.update(logits[:1], {"labels": labels[:1]})
    second.update(logits[1:], {"labels": labels[1:]})
    first.merge([first.parts(), second.parts()])
    # Class 0: 1 of 2 pixels; class 1: 5 of 6; class 2 is nowhere.
    assert first.result() == {"mean_iou": pytest.approx((1 / 2 + 5 / 6) / 2), "pixel_accuracy": pytest.approx(6 / 7)}


def test_faults():
    assert "no labels" in task.faults({"pixel_values": torch.zeros(1, 3, 4, 4)}, model_of(2))[0]
    assert "[1]" in task.faults({"labels": torch.tensor([1])}, model_of(2))[0]
    assert "2 classes" in task.faults({"labels": torch.full((1, 4, 4), 2)}, model_of(2))[0]
    assert not task.faults({"labels": torch.ones((1, 4, 4), dtype=torch.long)}, model_of(2))
