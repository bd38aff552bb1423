# SPDX-License-Identifier: Apache-2.0
"""Numbers of samples taken one by one are those of whole batches."""

from types import SimpleNamespace

import pytest
import torch
from transformers.utils import ModelOutput

from fewbit.errors import DataError
from fewbit.sparsity.batch_rows import rows_of
from fewbit.sparsity.judged import judge, rehearse
from fewbit.tuning.tasks import (
    image_classification,
    object_detection,
    question_answering,
    segmentation,
    sequence_classification,
    token_classification,
)

CPU = torch.device("cpu")


class _Feed:
    """Batches that are there already."""

    def __init__(self, batches):
        self._batches = batches

    def epoch(self, number, start=0):
        return iter([SimpleNamespace(batch=batch, items=(at,)) for at, batch in enumerate(self._batches)])

    def name(self, items):
        return f"batch {items[0]}"


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
    rows = list(rows_of(outputs, batch))
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


@pytest.mark.parametrize("asked", [judge, rehearse])
def test_labels_that_the_model_has_no_score_for_are_told_with_their_place(asked):
    outputs, batch = _classes(torch.Generator().manual_seed(0), 4)
    batch["labels"] = torch.tensor([0, 1, 9, 2])
    with pytest.raises(DataError) as error:
        asked(lambda batch: outputs, _Feed([batch]), image_classification, place=CPU)
    assert "labels go up to 9" in error.value.what and "8 classes" in error.value.what
    assert "batch 0" in error.value.where


@pytest.mark.parametrize("asked", [judge, rehearse])
def test_classes_of_data_are_counted_before_a_sample_of_the_last_one_is_met(asked):
    outputs, batch = _classes(torch.Generator().manual_seed(0), 4)
    names = [f"kind {number}" for number in range(9)]
    with pytest.raises(DataError, match=r"9 classes \(kind 0, .* tells 8 apart"):
        asked(lambda batch: outputs, _Feed([batch]), image_classification, place=CPU, classes=names)


def test_what_a_model_raises_is_told_with_the_batch():
    def answer(batch):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    batch = _classes(torch.Generator().manual_seed(0), 4)[1]
    with pytest.raises(DataError, match="batch 0: RuntimeError: mat1 and mat2"):
        judge(answer, _Feed([batch]), image_classification, place=CPU)


@pytest.mark.parametrize("asked", [judge, rehearse])
@pytest.mark.parametrize("full", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_that_there_is_no_room_is_not_told_as_a_fault_of_the_data(asked, full):
    def answer(batch):
        raise full

    batch = _classes(torch.Generator().manual_seed(0), 4)[1]
    with pytest.raises(RuntimeError) as told:
        asked(answer, _Feed([batch]), image_classification, place=CPU)
    assert told.value is full


@pytest.mark.parametrize("made", [_detection, _segmentation, _answers, _tokens, _classes])
def test_one_batch_tells_which_numbers_there_will_be(made):
    tasks = {_detection: object_detection, _segmentation: segmentation, _answers: question_answering}
    task = tasks.get(made, token_classification if made is _tokens else image_classification)
    outputs, batch = made(torch.Generator().manual_seed(0), 4)
    named = rehearse(lambda batch: outputs, _Feed([batch]), task, place=CPU)
    found, _ = judge(lambda batch: outputs, _Feed([batch]), task, place=CPU)
    assert set(named) == set(found)


def test_a_batch_without_anything_to_learn_is_no_fault():
    outputs, batch = _tokens(torch.Generator().manual_seed(0), 4)
    nothing = batch | {"labels": torch.full_like(batch["labels"], -100)}
    found, samples = judge(lambda batch: outputs, _Feed([nothing, batch]), token_classification, place=CPU)
    assert samples == 8 and 0 <= found["accuracy"].value <= 1


@pytest.mark.parametrize(
    ("task", "made"),
    [(image_classification, _classes), (sequence_classification, _classes), (token_classification, _tokens)],
)
def test_where_no_label_says_what_is_right_there_is_no_number(task, made):
    outputs, batch = made(torch.Generator().manual_seed(0), 4)
    nothing = batch | {"labels": torch.full_like(batch["labels"], -100)}
    assert judge(lambda batch: outputs, _Feed([nothing]), task, place=CPU) == ({}, 4)
