# SPDX-License-Identifier: Apache-2.0
"""A step in several batches has the gradient of one large batch, however ragged its masks are."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fewbit.data.collate import Collator
from fewbit.tuning.choosing import TaskLoss
from fewbit.tuning.feeding import Part, SampleFeed, Sharing
from fewbit.tuning.machine import started
from fewbit.tuning.methods import full
from fewbit.tuning.options import Options
from fewbit.tuning.stepping import Stepper, tokens_of, unit_for
from fewbit.tuning.tasks import causal_lm
from tuning_runs import language_model, texts


def gradients(model, batch):
    """Of the mean loss over a batch, as transformers itself computes it."""
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def change(model, parts, **settings):
    """What a step of plain gradient descent at rate 1 takes away from each weight, and what the step told."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    options = Options.read({"clip": None, "device": "cpu", **settings})
    with started(options) as machine:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        stepper = Stepper(machine, model, optimizer, TaskLoss(causal_lm), full, options, unit_for(16))
        for part in parts:
            stepper.run(part)
        told = stepper.finish(1.0)
    return {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}, told


@pytest.mark.parametrize(("batch_size", "accumulation"), [(1, 12), (2, 6), (5, 3), (12, 1)])
def test_batches_of_a_step_weigh_as_much_as_is_learned_in_them(batch_size, accumulation):
    data = texts(12)
    whole = Collator()([data[index] for index in range(12)])
    wanted = gradients(language_model(), whole)
    feed = SampleFeed(data, Collator(), Sharing(batch_size, accumulation), shuffle=False)
    found, told = change(language_model(), feed.epoch(0))
    # Weights lie around 1 and lose the last digits of a difference; gradients themselves are compared in the next test.
    for name in wanted:
        assert torch.allclose(found[name], wanted[name], atol=3e-7), name
    with torch.no_grad():
        loss = language_model()(**whole).loss
    assert told.sums[0] / told.sums[1] == pytest.approx(float(loss), rel=1e-6)
    assert told.norm == pytest.approx(float(torch.cat([each.flatten() for each in wanted.values()]).norm()), rel=1e-5)


def test_gradients_are_equal_to_a_millionth_in_double_precision():
    data = texts(12)
    wanted = gradients(language_model().double(), Collator()([data[index] for index in range(12)]))
    feed = SampleFeed(data, Collator(), Sharing(1, 12), shuffle=False)
    found, _ = change(language_model().double(), feed.epoch(0))
    for name in wanted:
        error = (found[name] - wanted[name]).norm() / wanted[name].norm()
        assert error < 1e-6, name


def test_a_mean_of_means_would_be_another_gradient():
    data = texts(12)
    wanted = gradients(language_model(), Collator()([data[index] for index in range(12)]))["lm_head.weight"]
    each = [gradients(language_model(), Collator()([data[index]]))["lm_head.weight"] for index in range(12)]
    assert (torch.stack(each).mean(0) - wanted).norm() > 0.01 * wanted.norm()


def test_the_norm_is_cut_as_pytorch_cuts_it():
    data = texts(6)
    model = language_model()
    grads = gradients(model, Collator()([data[index] for index in range(6)]))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    assert norm > 0.1
    feed = SampleFeed(data, Collator(), Sharing(2, 3), shuffle=False)
    found, _ = change(language_model(), feed.epoch(0), clip=0.05)
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=3e-7), name
        assert not torch.allclose(found[name], grads[name], atol=1e-5) or grads[name].abs().max() < 1e-4


def test_a_part_that_does_not_count_changes_nothing():
    data = texts(4)
    batch = Collator()([data[0], data[1]])
    other = Collator()([data[2], data[3]])
    alone, _ = change(language_model(), [Part(batch, (0, 1), True)])
    both, told = change(language_model(), [Part(batch, (0, 1), False), Part(other, (2,), True, counts=False)])
    assert all(torch.equal(alone[name], both[name]) for name in alone)
    learned = functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:] != -100
    assert told.sums[1] == learned.sum()


def test_tokens_are_counted_without_padding():
    count = torch.tensor(3)
    ids = torch.ones(2, 4, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    assert tokens_of({"input_ids": ids, "attention_mask": mask}, count) == 5
    assert tokens_of({"input_ids": ids}, count) == 8
    assert tokens_of({"pixel_values": torch.ones(2, 3, 4, 4)}, count) == 3
