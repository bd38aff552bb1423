# SPDX-License-Identifier: Apache-2.0
"""Every method through `finetune`: it learns, holds what it promises to hold, and goes on where it was stopped."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import fewbit
from fewbit.modules.coded import Quantized
from fewbit.tuning.finetune import finetune
from fewbit.tuning.loop import Loop
from fewbit.tuning.stepping import Stepper
from tiny_models import transformer

pytest.importorskip("accelerate")
pytest.importorskip("peft")


def _loader(rows: int = 16) -> DataLoader:
    ids = torch.randint(4, 40, (rows, 8), generator=torch.Generator().manual_seed(0))
    return DataLoader([{"input_ids": row, "labels": row.clone()} for row in ids], batch_size=8)


def _codes() -> nn.Module:
    return fewbit.compress_weights(transformer("llama"), mode="int4_sym", group_size=16)


_RUNS = {
    "lora": lambda: (transformer("llama"), {"method": "lora"}),
    "lora over codes": lambda: (_codes(), {"method": "lora", "dropout": 0.1}),
    "dora": lambda: (transformer("llama"), {"method": "dora"}),
    "qat": lambda: (_codes(), {"method": "qat"}),
    "qat of a float model": lambda: (transformer("llama"), {"method": "qat", "preset": "w8a8"}),
    "distill": lambda: (
        _codes(),
        {"method": "distill", "teacher": transformer("llama"), "hidden_weight": 0.1, "lr": 3e-4},
    ),
    "lora with a teacher": lambda: (_codes(), {"method": "lora", "teacher": transformer("llama")}),
}


def _run(model, more, **also):
    settings = {"lr": 3e-3, "max_steps": 4, **more, **also}
    return finetune(model, _loader(), validation=_loader(), device="cpu", **settings)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _equal(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("name", _RUNS)
def test_it_learns_and_the_given_models_stay_as_they_are(name):
    model, more = _RUNS[name]()
    given = [(each, _state(each), each.training) for each in (model, more.get("teacher")) if each is not None]
    tuned = _run(model, more)
    facts = tuned.fewbit_record.facts
    losses = [loss for _, loss in facts["loss"]]
    assert losses[-1] < losses[0] or facts["after"]["loss"] < facts["before"]["loss"]
    for each, before, training in given:
        assert _equal(_state(each), before) and each.training == training
    quantized = isinstance(model.model.layers[0].mlp.up_proj, Quantized) or "preset" in more
    assert isinstance(tuned.model.layers[0].mlp.up_proj, Quantized) == quantized
    assert ("merge" in facts) == (more["method"] in ("lora", "dora"))
    if "merge" in facts:
        assert facts["merge"]["worst"] in facts["merge"]["layers"] and facts["merge"]["batches"] > 0


@pytest.mark.parametrize("method", ["qat", "distill"])
def test_a_quantized_model_begins_where_its_teacher_is(method, monkeypatch):
    begun = {}

    def look(stepper, *args, **kwargs):
        begun.update({name: value.detach().clone() for name, value in stepper._model.named_parameters()})
        raise KeyboardInterrupt

    monkeypatch.setattr(Stepper, "run", look)
    teacher, small = transformer("llama"), fewbit.compress_weights(transformer("llama"), algorithm="rtn")
    with pytest.raises(KeyboardInterrupt):
        finetune(small, _loader(), method=method, teacher=teacher, max_steps=1, device="cpu", validation=False)
    weight = teacher.model.layers[0].mlp.up_proj.weight
    assert torch.equal(begun["model.layers.0.mlp.up_proj.weight"], weight)


@pytest.mark.parametrize("name", _RUNS)
def test_a_run_that_was_stopped_ends_with_the_same_bits(name, tmp_path, monkeypatch):
    model, more = _RUNS[name]()
    whole = _run(model, more, output=tmp_path / "whole", save_every=1)
    save, done = Loop._save, []

    def save_and_stop(loop):
        save(loop)
        done.append(1)
        if len(done) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            _run(model, more, output=tmp_path / "parts", save_every=1)
    again = _run(model, more, output=tmp_path / "parts", save_every=1)
    assert any(line["what"] == "resumed" for line in again.fewbit_record.lines)
    assert _equal(_state(again), _state(whole))


@pytest.mark.parametrize("method", ["full", "lora", "dora", "qat", "distill"])
def test_zeros_hold_in_every_method(method):
    model = transformer("llama")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            flat = module.weight.data.reshape(-1, 4)
            module.weight.data = flat.scatter(1, flat.abs().argsort(1)[:, :2], 0.0).reshape(module.weight.shape)
    more = {"preset": "w8a16"} if method in ("qat", "distill") else {}
    more |= {"teacher": copy.deepcopy(model)} if method == "distill" else {}
    tuned = _run(model, {"method": method, **more}, weight_decay=0.1)
    changed = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            after = tuned.get_submodule(name).weight
            assert bool((after[module.weight == 0] == 0).all()), name
            changed += not torch.equal(after, module.weight)
    assert changed >= 14


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["lora", "lora over codes", "qat"])
def test_a_half_model_comes_back_as_one(name, precision):
    model, more = _RUNS[name]()
    model = copy.deepcopy(model).bfloat16()
    kernels = [getattr(m, "kernel", None) and m.kernel.name for m in model.modules()]
    for merge in (True, False):
        tuned = _run(model, more, precision=precision, merge=merge)
        learned = {n: p.dtype for n, p in tuned.named_parameters() if "lora" in n}
        assert {p.dtype for n, p in tuned.named_parameters() if n not in learned} == {torch.bfloat16}
        assert set(learned.values()) <= {torch.float32}
        assert tuned.model.layers[0].mlp.up_proj.weight.dtype is torch.bfloat16
        tuned(torch.ones(1, 4, dtype=torch.long))
        if merge:
            assert [getattr(m, "kernel", None) and m.kernel.name for m in tuned.modules()] == kernels


def test_a_teacher_of_another_vocabulary_is_refused_before_training(monkeypatch):
    monkeypatch.setattr(Loop, "run", lambda loop: pytest.fail("training began"))
    with pytest.raises(
        fewbit.UsageError, match=r"logits are \[8, 8, 40\] of the model and \[8, 8, 48\] of the teacher"
    ):
        _run(_codes(), {"method": "distill", "teacher": transformer("llama", vocab_size=48)})


@pytest.mark.parametrize("merge", [False, True])
def test_lora_over_layers_whose_activations_alone_are_quantized(merge):
    inputs = fewbit.QuantizationSpec("int8", is_dynamic=True)
    config = fewbit.Config(fewbit.QuantizationConfig(input_tensors=inputs))
    model = fewbit.ModelQuantizer(config).quantize_model(transformer("llama"))
    layer = model.model.layers[0].mlp.up_proj
    assert isinstance(layer, Quantized) and not layer.coded
    tuned = finetune(model, _loader(), method="lora", merge=merge, lr=3e-3, max_steps=2, device="cpu", validation=False)
    assert tuned.fewbit_record.facts["loss"]
    if merge:
        assert not torch.equal(tuned.model.layers[0].mlp.up_proj.weight, layer.weight)
