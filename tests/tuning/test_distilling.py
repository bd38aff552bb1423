# SPDX-License-Identifier: Apache-2.0
"""Distillation: against a slow formula, at supervised positions only, and the same in parts as in one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fewbit.errors import UsageError
from fewbit.tuning import distances
from fewbit.tuning.blocks import find_blocks
from fewbit.tuning.distilling import Distillation
from fewbit.tuning.tasks import causal_lm, question_answering, sequence_classification
from quantized_models import mlp, numbers, quantize_linears
from tiny_models import transformer


def _batch(rows: int = 3, length: int = 7) -> dict[str, torch.Tensor]:
    ids = torch.randint(4, 40, (rows, length), generator=torch.Generator().manual_seed(5))
    labels, mask = ids.clone(), torch.ones_like(ids)
    labels[:, :2] = -100
    labels[0, 4:], mask[0, 4:] = -100, 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _slow(student, teacher, labels, temperature: float) -> tuple[float, int]:
    """One position at a time, in plain Python floats."""
    total, count = 0.0, 0
    for row in range(labels.shape[0]):
        for place in range(labels.shape[1] - 1):
            if labels[row, place + 1] == -100:
                continue
            count += 1
            p = [math.exp(v / temperature) for v in teacher[row, place].tolist()]
            q = [math.exp(v / temperature) for v in student[row, place].tolist()]
            for a, b in zip(p, q):
                total += a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) * temperature**2
    return total, count


def _two(name: str = "llama"):
    teacher = transformer(name)
    student = quantize_linears(copy.deepcopy(teacher))
    return student.eval(), teacher


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_the_loss_is_the_mixed_one_at_supervised_positions(weight):
    student, teacher = _two()
    batch = _batch()
    total, count = Distillation(causal_lm, teacher, temperature=3.0, weight=weight)(student, batch)
    with torch.no_grad():
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        mine, theirs = student(**inputs).logits, teacher(**inputs).logits
    wanted, places = _slow(mine, theirs, batch["labels"], 3.0)
    task, _ = causal_lm.loss(student(**inputs), batch)
    assert int(count) == places == 12
    assert total.item() == pytest.approx(weight * wanted + (1 - weight) * task.item(), rel=1e-4)


@pytest.mark.parametrize("hidden", [0.0, 2.0])
def test_parts_add_up_to_the_large_batch(hidden):
    student, teacher = _two()
    batch = _batch(6)
    objective = Distillation(causal_lm, teacher, weight=0.5, hidden=hidden)
    for module in student.modules():
        if isinstance(module, nn.Embedding):
            module.weight.requires_grad_()

    def gradient(parts):
        student.zero_grad()
        counts = 0.0
        for part in parts:
            total, count = objective(student, part)
            total.backward()
            counts += float(count)
        return student.model.embed_tokens.weight.grad / counts

    halves = [{name: value[a:b] for name, value in batch.items()} for a, b in ((0, 2), (2, 6))]
    torch.testing.assert_close(gradient(halves), gradient([batch]), rtol=1e-4, atol=1e-6)


def _first(out):
    return out if isinstance(out, torch.Tensor) else out[0]


def test_hidden_states_are_compared_block_by_block():
    student, teacher = _two()
    batch = _batch()
    plain, _ = Distillation(causal_lm, teacher, weight=1.0)(student, batch)
    both, _ = Distillation(causal_lm, teacher, weight=1.0, hidden=0.5)(student, batch)
    seen: dict[str, list[torch.Tensor]] = {"student": [], "teacher": []}
    hooks = [
        layer.register_forward_hook(lambda m, a, out, name=name: seen[name].append(_first(out)))
        for name, model in (("student", student), ("teacher", teacher))
        for layer in model.model.layers
    ]
    for model in (student, teacher):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    for hook in hooks:
        hook.remove()
    where = functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:] != -100
    wanted = [
        ((s - t).square().sum(-1) / t.square().sum(-1))[where].sum() for s, t in zip(seen["student"], seen["teacher"])
    ]
    assert len(wanted) == 2
    assert (both - plain).item() == pytest.approx(0.5 * sum(wanted).item() / 2, rel=1e-4)


def test_a_model_is_no_distance_from_itself_and_a_teacher_gets_no_gradient():
    _, teacher = _two()
    student = copy.deepcopy(teacher)
    for parameter in teacher.parameters():
        parameter.requires_grad_(True)
    total, _ = Distillation(causal_lm, teacher, weight=1.0, hidden=1.0)(student, _batch())
    assert total.item() == pytest.approx(0, abs=1e-5)
    total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_other_vocabularies_and_widths_are_told_before_training():
    teacher, student = transformer("llama", vocab_size=48), transformer("llama")
    with pytest.raises(
        UsageError, match=r"(?s)logits are \[3, 7, 40\] of the model and \[3, 7, 48\] of the teacher"
    ) as told:
        Distillation(causal_lm, teacher).check(student, _batch())
    assert told.value.try_ == "the model before it was compressed"  # hidden states have nothing to do with it
    wide = transformer("llama", hidden_size=32, head_dim=8)
    with pytest.raises(UsageError, match=r"states of block 0.*states of block 1") as told:
        Distillation(causal_lm, wide, hidden=1.0).check(student, _batch())
    assert "hidden_weight=0" in told.value.try_
    Distillation(causal_lm, wide).check(student, _batch())
    with pytest.raises(UsageError, match="not stacked of blocks"):
        Distillation(causal_lm, nn.Linear(2, 2), hidden=1.0)
    assert not student.training and all(p.grad is None for p in student.parameters())


def test_fewer_blocks_learn_from_the_blocks_as_far_along():
    teacher, student = transformer("llama", num_hidden_layers=4), transformer("llama", num_hidden_layers=2)
    Distillation(causal_lm, teacher, hidden=1.0).check(student, _batch())
    assert len(find_blocks(teacher)) == 4 and len(find_blocks(transformer("t5", num_layers=3))) == 3


def test_plain_modules_and_images():
    teacher = mlp()
    student = quantize_linears(copy.deepcopy(teacher))
    batch = {"x": numbers(5, 40), "labels": torch.tensor([1, 2, -100, 0, 3])}
    total, count = Distillation(sequence_classification, teacher, weight=1.0, temperature=1.0)(student, batch)
    kept = batch["labels"] != -100
    wanted = functional.kl_div(
        student(batch["x"])[kept].log_softmax(-1), teacher(batch["x"])[kept].softmax(-1), reduction="sum"
    )
    assert int(count) == 4 and total.item() == pytest.approx(wanted.item(), rel=2e-3)


def test_both_ends_of_an_answer():
    from transformers import BertConfig, BertForQuestionAnswering

    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=40)
    teacher = BertForQuestionAnswering(config).eval()
    student = quantize_linears(copy.deepcopy(teacher))
    batch = {**_batch(), "start_positions": torch.tensor([1, 2, 3]), "end_positions": torch.tensor([2, 3, 4])}
    del batch["labels"]
    total, count = Distillation(question_answering, teacher, weight=1.0, temperature=1.0, hidden=1.0)(student, batch)
    plain, _ = Distillation(question_answering, teacher, weight=1.0, temperature=1.0)(student, batch)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    mine, theirs = student(**inputs), teacher(**inputs)
    both = [
        functional.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="sum")
        for a, b in ((mine.start_logits, theirs.start_logits), (mine.end_logits, theirs.end_logits))
    ]
    assert float(count) == 3 and plain.item() == pytest.approx(sum(both).item() / 2, rel=1e-2)
    assert total.item() > plain.item()


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(2, 9)), st.floats(0.5, 4), st.booleans(),
    st.sampled_from([1, 12, 2**24]), st.integers(0, 10**6),
)  # fmt: skip
def test_the_divergence_and_its_gradient_are_those_of_the_formula(shape, temperature, some, at_once, seed):
    draw = torch.Generator().manual_seed(seed)
    student, teacher = (3 * torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    where = torch.rand(shape[:-1], generator=draw) < 0.6 if some else None
    mine, plain = student.clone().requires_grad_(), student.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "_AT_ONCE", at_once)
        total, _ = distances.divergence(mine, teacher, where, temperature)
        (total / 7).backward()
    wanted, given_ = (each / temperature for each in (teacher, plain))
    each = (wanted.softmax(-1) * (wanted.softmax(-1).log() - given_.softmax(-1).log())).sum(-1)
    expected = temperature**2 * (each if where is None else each * where).sum()
    (expected / 7).backward()
    assert torch.allclose(total, expected)
    assert torch.allclose(mine.grad, plain.grad)


def test_the_divergence_keeps_one_gradient_in_the_dtype_of_the_student():
    student = torch.randn(4, 8).bfloat16().requires_grad_()
    total, _ = distances.divergence(student, torch.randn(4, 8), None, 1.0)
    assert total.dtype is torch.float32
    total.backward()
    assert student.grad.dtype is torch.bfloat16
    with torch.no_grad():
        assert distances.divergence(student, torch.randn(4, 8), None, 1.0)[0] > 0
