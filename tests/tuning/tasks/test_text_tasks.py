# SPDX-License-Identifier: Apache-2.0
"""The tasks on text: losses as transformers computes them, numbers as one would count them by hand."""

from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification

from fewbit.tuning.calling import run
from fewbit.tuning.choosing import find_task
from fewbit.tuning.tasks import causal_lm, question_answering, sequence_classification, token_classification
from tuning_runs import language_model

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}


def draw(low, high, *shape, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def bert(kind, labels=4):
    torch.manual_seed(0)
    return kind(BertConfig(**SIZES, num_labels=labels)).eval()


def some_labels():
    labels = draw(0, 4, 3, 7, seed=1)
    labels[0, 4:] = -100
    return labels


def measured(task, outputs, batch):
    metric = task.METRIC()
    metric.update(outputs, batch)
    metric.merge([metric.parts()])
    return metric.result()


CASES = [
    (causal_lm, language_model, {"labels": some_labels()}),
    (sequence_classification, lambda: bert(BertForSequenceClassification), {"labels": draw(0, 4, 3, seed=1)}),
    (token_classification, lambda: bert(BertForTokenClassification), {"labels": some_labels()}),
    (
        question_answering,
        lambda: bert(BertForQuestionAnswering, 2),
        {"start_positions": torch.tensor([1, 0, 3]), "end_positions": torch.tensor([2, 0, 9])},
    ),
]


@pytest.mark.parametrize(
    ("task", "make", "answers"), CASES, ids=[case[0].__name__.rpartition(".")[2] for case in CASES]
)
def test_the_loss_is_that_of_transformers_summed(task, make, answers):
    model = make()
    batch = {"input_ids": draw(0, 40, 3, 7), **answers}
    with torch.no_grad():
        outputs = run(model, batch, getattr(task, "ANSWERS", ("labels",)))
        wanted = model(**batch).loss
    assert outputs.get("loss") is None
    total, count = task.loss(outputs, batch)
    if task is question_answering:  # its mean of means differs where an answer was cut away: one start more than ends
        first, last = (
            torch.nn.functional.cross_entropy(outputs.start_logits, answers["start_positions"], reduction="sum"),
            torch.nn.functional.cross_entropy(outputs.end_logits[:2], answers["end_positions"][:2], reduction="sum"),
        )
        assert float(total) == pytest.approx(float(first + last) / 2) and float(count) == 2.5
    else:
        assert float(total / count) == pytest.approx(float(wanted), rel=1e-6)
    name = task.__name__.rpartition(".")[2]
    assert find_task(None, None, model)[0] == name


def test_perplexity_and_accuracy_of_tokens():
    logits = torch.zeros(1, 4, 5)
    logits[0, 0, 2] = logits[0, 1, 3] = 9.0
    batch = {"labels": torch.tensor([[-100, 2, 1, -100]])}
    found = measured(causal_lm, logits, batch)
    each = [torch.log_softmax(logits[0, place], -1)[label] for place, label in ((0, 2), (1, 1))]
    assert found["perplexity"] == pytest.approx(float(torch.exp(-sum(each) / 2)), rel=1e-5)
    assert found["token_accuracy"] == 0.5


def test_names_in_a_text_are_counted_as_by_hand():
    said, true = draw(0, 3, 4, 9, seed=3), draw(0, 3, 4, 9, seed=4)
    true[1, 5:] = -100
    logits = torch.nn.functional.one_hot(said, 3).float()
    pairs = [(s, t) for s, t in zip(said.flatten().tolist(), true.flatten().tolist()) if t != -100]
    right = sum(s == t for s, t in pairs)
    found, claimed, there = (sum(x) for x in zip(*((s == t > 0, s > 0, t > 0) for s, t in pairs)))
    precision, recall = found / claimed, found / there
    numbers = measured(token_classification, logits, {"labels": true})
    assert numbers["accuracy"] == pytest.approx(right / len(pairs))
    assert numbers["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert (numbers["precision"], numbers["recall"]) == pytest.approx((precision, recall))


def test_the_best_span_is_the_best_of_all_pairs_in_order():
    start, end = (torch.randn(50, 9, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    first, last = question_answering.best_span(start, end)
    for row in range(50):
        pairs = {(i, j): start[row, i] + end[row, j] for i in range(9) for j in range(i, 9)}
        assert (first[row].item(), last[row].item()) == max(pairs, key=pairs.get)


def test_answers_are_judged_token_by_token():
    def outputs(spans):
        logits = [torch.nn.functional.one_hot(torch.tensor(each), 10).float() * 9 for each in zip(*spans)]
        return SimpleNamespace(start_logits=logits[0], end_logits=logits[1])

    batch = {"start_positions": torch.tensor([2, 4, 0]), "end_positions": torch.tensor([5, 6, 1])}
    found = measured(question_answering, outputs([(2, 5), (5, 8), (3, 4)]), batch)
    assert found["exact_match"] == pytest.approx(1 / 3)
    assert found["f1"] == pytest.approx((1 + 2 * 2 / (4 + 3) + 0) / 3)


def test_processes_add_up():
    labels, logits = draw(0, 4, 10, seed=1), torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    whole = measured(sequence_classification, logits, {"labels": labels})
    parts = []
    for rows in (slice(0, 3), slice(3, 10)):
        metric = sequence_classification.METRIC()
        metric.update(logits[rows], {"labels": labels[rows]})
        parts.append(metric.parts())
    metric = sequence_classification.METRIC()
    metric.merge(parts)
    assert metric.result() == whole


@pytest.mark.parametrize(
    ("task", "batch", "told"),
    [
        (sequence_classification, {"labels": torch.tensor([0, 4])}, "go up to 4"),
        (sequence_classification, {"labels": torch.tensor([0.0, 1.0])}, "whole"),
        (token_classification, {"labels": torch.tensor([[0, -1]])}, "go down to -1"),
        (question_answering, {"start_positions": torch.tensor([0])}, "no end_positions"),
        (
            question_answering,
            {"start_positions": torch.tensor([3]), "end_positions": torch.tensor([1])},
            "ends before it starts",
        ),
    ],
)
def test_faults(task, batch, told):
    first = next(iter(batch.values()))
    ids = torch.ones(len(first), 2 if first.ndim == 2 else 5, dtype=torch.long)
    found = task.faults({"input_ids": ids, **batch}, bert(BertForSequenceClassification))
    assert any(told in fault for fault in found), found


def test_a_model_that_says_nothing_but_nan_is_right_about_no_text():
    found = measured(sequence_classification, torch.full((4, 3), torch.nan), {"labels": torch.tensor([0, 0, 0, 1])})
    assert found == {"accuracy": 0.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
