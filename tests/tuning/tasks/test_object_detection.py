# SPDX-License-Identifier: Apache-2.0
"""Objects in pictures: what labels are made of, the loss in parts and as a whole, boxes that are right and wrong."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from drawn_shapes import draw
from fewbit.data.collate import Collator
from fewbit.tuning.tasks import object_detection as task
from tiny_pictures import conditional_detr


def sample(seed, count=2, size=32):
    image, shapes = draw(seed, size, count, kinds=2)
    boxes = [[each.x / size, each.y / size, 2 * each.reach / size, 2 * each.reach / size] for each in shapes]
    classes = np.array([each.kind for each in shapes], np.int64)
    return {"image": image, "boxes": np.array(boxes, np.float32).reshape(-1, 4), "classes": classes}


def run(model, samples):
    batch = task.prepare(Collator()(samples), model)
    return model(pixel_values=batch["pixel_values"], labels=batch["labels"]), batch


@pytest.mark.parametrize("targets", ["lists", "padded"])
def test_labels_are_made_of_boxes_and_classes(targets):
    samples = [sample(0), sample(1, count=0), sample(2, count=1)]
    batch = task.prepare(Collator(targets=targets)(samples), nn.Identity())
    assert [len(each["class_labels"]) for each in batch["labels"]] == [len(each["classes"]) for each in samples]
    for made, given in zip(batch["labels"], samples):
        np.testing.assert_array_equal(made["boxes"].numpy(), given["boxes"])
        np.testing.assert_array_equal(made["class_labels"].numpy(), given["classes"])
    assert not {"boxes", "classes"} & batch.keys()


def test_labels_that_are_there_stay():
    labels = [{"class_labels": torch.tensor([1]), "boxes": torch.rand(1, 4)}]
    assert task.prepare({"labels": labels}, nn.Identity())["labels"] is labels


def test_parts_of_a_batch_add_up_to_the_whole():
    model, samples = conditional_detr(), [sample(n, count) for n, count in enumerate((2, 1, 0, 3, 0, 2))]
    total, count = task.loss(*run(model, samples))
    parts = [task.loss(*run(model, samples[cut])) for cut in (slice(0, 2), slice(2, 3), slice(3, 6))]
    torch.testing.assert_close(sum(part for part, _ in parts), total, rtol=1e-5, atol=1e-5)
    assert sum(part for _, part in parts) == count == sum(len(each["classes"]) for each in samples)


def outputs(logits, boxes):
    return SimpleNamespace(logits=torch.tensor(logits), pred_boxes=torch.tensor(boxes))


RIGHT, BESIDE = [0.5, 0.5, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2]
TRUTH = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([RIGHT])}]


@pytest.mark.parametrize(
    "logits, boxes, expected",
    [
        ([[[0.0, 5.0], [0.0, 0.0]]], [[RIGHT, BESIDE]], 1.0),
        ([[[0.0, 0.0], [0.0, 5.0]]], [[RIGHT, BESIDE]], 0.5),  # a wrong one is likelier
        ([[[5.0, -9.0], [5.0, -9.0]]], [[BESIDE, BESIDE]], 0.0),
    ],
)
def test_boxes_that_are_right_and_wrong(logits, boxes, expected):
    metric = task.METRIC()
    metric.update(outputs(logits, boxes), {"labels": TRUTH, "class_count": 2})
    found = float(expected > 0)  # however unlikely the right one is
    wanted = {"map": expected, "map_50": expected, "recall": found, "recall_50": found}
    assert metric.result() == pytest.approx(wanted)


def test_a_class_more_than_the_model_has_is_for_no_object():
    """The box of the second query is right, and called nothing: one of the first is not counted either."""
    metric = task.METRIC()
    metric.update(outputs([[[0.0, 4.0, 0.0], [0.0, 0.0, 9.0]]], [[RIGHT, BESIDE]]), {"labels": TRUTH, "class_count": 2})
    assert metric.result()["map"] == pytest.approx(1.0)


def test_a_box_that_is_half_right():
    """Overlap 2/3: right at .5, .55, .6 and .65."""
    metric = task.METRIC()
    metric.update(outputs([[[-9.0, 5.0]]], [[[0.54, 0.5, 0.2, 0.2]]]), {"labels": TRUTH, "class_count": 2})
    assert metric.result() == pytest.approx({"map": 0.4, "map_50": 1.0, "recall": 0.4, "recall_50": 1.0})


def test_recall_is_a_mean_over_the_classes_there_are():
    """The square is found, both discs are not: one of two classes, whatever the number of objects."""
    metric = task.METRIC()
    kinds, boxes = torch.tensor([1, 0, 0]), torch.tensor([RIGHT, BESIDE, [0.8, 0.8, 0.2, 0.2]])
    truth = [{"class_labels": kinds, "boxes": boxes}]
    metric.update(outputs([[[-9.0, 5.0]]], [[RIGHT]]), {"labels": truth, "class_count": 2})
    assert metric.result()["recall"] == pytest.approx(0.5)


def test_processes_together_find_what_one_finds():
    model = conditional_detr()
    whole, halves = task.METRIC(), [task.METRIC(), task.METRIC()]
    samples = [sample(n) for n in range(6)]
    with torch.no_grad():
        whole.update(*run(model, samples))
        halves[0].update(*run(model, samples[:2]))
        halves[1].update(*run(model, samples[2:]))
    together = task.METRIC()
    together.merge([each.parts() for each in halves])
    assert together.result() == pytest.approx(whole.result())


def test_nothing_to_be_found_is_no_number():
    metric = task.METRIC()
    empty = [{"class_labels": torch.zeros(0, dtype=torch.long), "boxes": torch.zeros(0, 4)}]
    metric.update(outputs([[[0.0, 5.0]]], [[RIGHT]]), {"labels": empty, "class_count": 2})
    assert np.isnan(metric.result()["map"])


def test_faults():
    model = conditional_detr()
    fine = task.prepare(Collator()([sample(0), sample(1, 0)]), model)
    assert task.faults(fine, model) == []
    assert "takes no labels" in task.faults(fine, nn.Conv2d(3, 3, 1))[0]
    assert "no objects" in task.faults({"pixel_values": fine["pixel_values"]}, model)[0]
    wrong = [{"class_labels": torch.tensor([2]), "boxes": torch.tensor([[8.0, 8.0, 0.0, 4.0]])}]
    assert len(task.faults({"labels": wrong}, model)) == 3
