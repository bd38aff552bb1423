# SPDX-License-Identifier: Apache-2.0
"""Classes of pictures: the loss against a formula, the numbers by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fewbit.tuning.tasks import image_classification as task


def test_the_loss_is_the_sum_of_minus_the_log_of_each_pictures_class():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 3, -100, 2, 1, 1])
    shares = logits.double().exp() / logits.double().exp().sum(-1, keepdim=True)
    expected = -sum(shares[row, label].log() for row, label in enumerate(labels.tolist()) if label >= 0)
    for outputs in (logits, SimpleNamespace(logits=logits), (logits, None)):
        total, count = task.loss(outputs, {"labels": labels})
        assert float(total) == pytest.approx(float(expected), rel=1e-6)
        assert count == 5


def test_two_batches_are_one():
    logits, labels = torch.eye(8), torch.tensor([0, 1, 2, 3, 4, 0, 0, 7])
    whole, half, other = task.METRIC(), task.METRIC(), task.METRIC()
    whole.update(logits, {"labels": labels})
    half.update(logits[:3], {"labels": labels[:3]})
    other.update(logits[3:], {"labels": labels[3:]})
    half.merge([half.parts(), other.parts()])
    assert whole.result() == half.result()
    # Classes 0 to 4 and 7 are right once, and 0 is twice taken for 5 and 6, of which there is none.
    wanted = {"accuracy": 6 / 8, "accuracy_top_5": 6 / 8, "precision": 6 / 8, "recall": (1 / 3 + 5) / 8}
    assert whole.result() == pytest.approx(wanted | {"f1": (2 / 4 + 5) / 8})


def test_of_few_classes_nobody_asks_for_five():
    metric = task.METRIC()
    metric.update(torch.eye(3), {"labels": torch.arange(3)})
    assert metric.result() == dict.fromkeys(("accuracy", "precision", "recall", "f1"), 1.0)


def test_what_is_not_a_number_is_no_class():
    metric = task.METRIC()
    metric.update(torch.full((2, 3), torch.nan), {"labels": torch.tensor([0, 0])})
    assert set(metric.result().values()) == {0.0}


def test_faults():
    model = nn.Linear(2, 3)
    assert task.faults({"labels": torch.zeros(4, 2, dtype=torch.long)}, model)
    assert not task.faults({"labels": torch.zeros(4, dtype=torch.long)}, model)
    model.config = SimpleNamespace(num_labels=3)
    assert "3 classes" in task.faults({"labels": torch.tensor([0, 3])}, model)[0]
