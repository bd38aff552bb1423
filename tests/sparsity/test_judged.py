# SPDX-License-Identifier: Apache-2.0
"""Numbers of samples taken one by one are those of whole batches."""

from types import SimpleNamespace

import pytest
import torch
from transformers.utils import ModelOutput

from fewbit.errors import DataError
from fewbit.sparsity.judged import _rows, judge
from fewbit.tuning.tasks import (
    image_classification,
    object_detection,
    question_answering,
    segmentation,
    token_classification,
)

CPU = torch.device("cpu")


class _Feed:
    """Batches that are there already."""

    def __init__(self, batches):
        self._batches = batches

    def epoch(self, number, start=0):
        return iter([SimpleNamespace(batch=batch) for batch in self._batches])


def _boxes(draw, count):
    return torch.rand(count, 4, generator=draw) * 0.3 + 0.3


def _detection(draw, size):
    labels = [
        {"class_labels": torch.randint(0, 3, (2,), generator=draw), "boxes": _boxes(draw, 2)} for _ in range(size)
    ]
    outputs = ModelOutput(
        loss=torch.tensor(1.0),
        logits=torch.randn(size, 5, 4, generator=draw) * 2,
        pred_boxes=torch.stack([torch.cat([each["boxes"], _boxes(draw, 3)]) for each in labels]),
    )
    return outputs, {"pixel_values": torch.zeros(size, 1), "labels": labels, "class_count": 3}


def _segmentation(draw, size):
    labels = torch.randint(0, 3, (size, 6, 6), generator=draw)
    return torch.randn(size, 3, 3, 3, generator=draw), {"pixel_values": torch.zeros(size, 1), "labels": labels}


def _answers(draw, size):
    outputs = ModelOutput(**{f"{end}_logits": torch.randn(size, 9, generator=draw) for end in ("start", "end")})
    first = torch.randint(0, 5, (size,), generator=draw)
    return outputs, {"input_ids": torch.zeros(size, 9), "start_positions": first, "end_positions": first + 2}


def _tokens(draw, size):
    labels = torch.randint(0, 3, (size, 7), generator=draw)
    labels[:, 5:] = -100
    return (torch.randn(size, 7, 3, generator=draw),), {"input_ids": torch.zeros(size, 7), "labels": labels}


def _classes(draw, size):
    labels = torch.randint(0, 8, (size,), generator=draw)
    return torch.randn(size, 8, generator=draw), {"args": (torch.zeros(size, 2),), "labels": labels}


@pytest.mark.parametrize(
    ("task", "made"),
    [
        (object_detection, _detection),
        (segmentation, _segmentation),
        (question_answering, _answers),
        (token_classification, _tokens),
        (image_classification, _classes),
    ],
)
def test_samples_one_by_one_add_up_to_the_batches(task, made):
    draw = torch.Generator().manual_seed(0)
    rounds = [made(draw, size) for size in (4, 1, 3)]
    whole = task.METRIC()
    lost, counts = 0.0, 0.0
    for outputs, batch in rounds:
        whole.update(outputs, batch)
        total, count = task.loss(outputs, batch)
        lost, counts = lost + float(total), counts + float(count)
    answers = iter([outputs for outputs, _ in rounds])
    found, samples = judge(lambda batch: next(answers), _Feed([batch for _, batch in rounds]), task, place=CPU)
    assert samples == 8
    wanted = {name: float(value) for name, value in whole.result().items()}
    assert {name: estimate.value for name, estimate in found.items() if name != "loss"} == pytest.approx(wanted)
    assert found["loss"].value == pytest.approx(lost / counts)
    assert all(each.low <= each.value <= each.high for name, each in found.items() if name != "loss")


@pytest.mark.parametrize("made", [_segmentation, _answers, _tokens, _classes])
def test_the_interval_of_the_loss_is_that_of_samples_however_they_are_batched(made):
    task = {_segmentation: segmentation, _answers: question_answering, _tokens: token_classification}.get(
        made, image_classification
    )
    outputs, batch = made(torch.Generator().manual_seed(0), 6)
    found, _ = judge(lambda batch: outputs, _Feed([batch]), task, place=CPU)
    rows = list(_rows(outputs, batch))
    answers = iter([each for each, _ in rows])
    wanted, _ = judge(lambda batch: next(answers), _Feed([each for _, each in rows]), task, place=CPU)
    assert found["loss"].low is not None
    assert found["loss"].to_dict() == pytest.approx(wanted["loss"].to_dict())


def test_enough_samples_are_enough():
    draw = torch.Generator().manual_seed(0)
    batches = [_classes(draw, 4)[1] for _ in range(5)]
    found, samples = judge(
        lambda batch: torch.zeros(4, 8), _Feed(batches), image_classification, place=CPU, limit=6, losses=False
    )
    assert samples == 8 and "loss" not in found


def test_no_sample_is_refused():
    with pytest.raises(DataError, match="no sample"):
        judge(lambda batch: None, _Feed([]), image_classification, place=CPU)
