# SPDX-License-Identifier: Apache-2.0
"""Sparse transfer: a model with zeros learns other data, and has the same zeros afterwards and no others."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from drawn_shapes import write_folder
from fewbit.cli._output import parse_options
from fewbit.errors import UsageError
from fewbit.modules.quantized import is_quantized
from fewbit.numerics.sparsity import Pattern, kept
from fewbit.sparsity.stages import train
from fewbit.sparsity.verb import sparsify
from sparse_runs import job, network, pictures, pruned_layers
from tuning_runs import language_model, same, texts

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

RUN = {"batch_size": 16, "max_steps": 12, "lr": 1e-2, "distill": False}


def pruned(model, structure="unstructured"):
    """A model with zeros of a pattern in its usual layers."""
    for name in pruned_layers(model):
        weight = model.get_parameter(name).data
        width = weight.shape[1]
        pattern = Pattern.read(structure, None if ":" in structure else 0.7)
        if not pattern.of or width % pattern.of == 0:
            weight.mul_(kept(weight.abs(), pattern))
    return model


def resnet(classes):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(**sizes, num_labels=classes)).eval()


def zeros(model, names):
    return {name: model.get_submodule(name.rpartition(".")[0]).weight.detach() == 0 for name in names}


def transferred(model, settings, **changes):
    this = job(model, mode="sparse-transfer", **changes)
    train.refuse(settings, model, this)
    return train.run(model, settings, this), this.record


@pytest.mark.parametrize("structure", ["unstructured", "2:4", "1x4"])
def test_the_zeros_are_the_same_before_and_after(structure):
    model = pruned(network(), structure)
    names = pruned_layers(model)
    before = zeros(model, names)
    given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = {"data": pictures(96, 0, True), "validation": pictures(48, 1000, True)}
    tuned, record = transferred(model, train.Settings(options={"weight_decay": 0.1}, **RUN | {"max_steps": 30}), **data)
    after = zeros(tuned, names)
    assert all(torch.equal(before[name], after[name]) for name in names)
    assert any(bool(each.any()) for each in after.values())
    assert all(not torch.equal(tuned.get_parameter(name), model.get_parameter(name)) for name in names)
    assert record.facts["train"]["after"]["loss"] < record.facts["train"]["before"]["loss"]
    assert all(torch.equal(given[name], tensor) for name, tensor in model.state_dict().items())
    told = {line["where"]: line["zeros"] for line in record.lines if line["what"] == "sparse"}
    assert told == {name.removesuffix(".weight"): int(each.sum()) for name, each in before.items() if each.any()}


def test_codes_at_the_end_have_every_zero():
    model = pruned(network())
    names = pruned_layers(model)
    tuned, record = transferred(model, train.Settings(quantize="w8a8", **RUN))
    assert [run["name"] for run in record.facts["train"]["runs"]] == ["sparse", "codes"]
    assert all(is_quantized(tuned.get_submodule(name.removesuffix(".weight"))) for name in names)
    before, after = zeros(model, names), zeros(tuned, names)
    assert all(bool((after[name] | ~before[name]).all()) for name in names)


def test_codes_that_a_solver_found_have_every_zero_too():
    """Four bits of a language model are found by gptq, which could make something of a zero; no step here undoes it."""
    model = language_model()
    names = pruned_layers(model)
    for name in names:
        weight = model.get_parameter(name).data
        weight.mul_(kept(weight.abs(), Pattern(0.5)))
    before = zeros(model, names)
    settings = train.Settings(quantize="w4a16", **RUN | {"lr": 0.0, "max_steps": 2})
    tuned, record = transferred(model, settings, data=texts(), validation=texts(6, 1), task="causal_lm")
    after = zeros(tuned, names)
    assert record.facts["train"]["runs"][-1]["best_step"] == 0
    assert all(bool((after[name] | ~before[name]).all()) for name in names)


@pytest.mark.parametrize("kind", ["resnet", "plain"])
def test_other_classes_are_refused_and_a_new_head_is_given_if_asked_for(tmp_path, kind):
    model = pruned(resnet(5) if kind == "resnet" else network(5))
    names = pruned_layers(model)
    before = zeros(model, names)
    data = {"data": str(write_folder(tmp_path / "shapes", train=48, val=12, size=16)), "validation": None}
    with pytest.raises(UsageError, match=r"(?s)3 classes \(disc, square, triangle\), the model tells 5.*new_head"):
        transferred(model, train.Settings(**RUN), **data)
    tuned, record = transferred(model, train.Settings(new_head=True, **RUN), **data)
    after = zeros(tuned, names)
    assert all(torch.equal(before[name], after[name]) for name in names)
    heads = [module for module in tuned.modules() if isinstance(module, nn.Linear)]
    assert heads[-1].out_features == 3
    assert any(line["what"] == "new-head" for line in record.lines)
    if kind == "resnet":
        assert tuned.config.id2label == {0: "disc", 1: "square", 2: "triangle"} and model.config.num_labels == 5
    again, _ = transferred(model, train.Settings(new_head=True, **RUN), **data)
    assert same(tuned, again)


def test_a_new_head_does_not_learn_from_the_old_one_but_may_from_a_teacher(tmp_path):
    model = pruned(network(5))
    data = {"data": str(write_folder(tmp_path / "shapes", train=24, val=12, size=16)), "validation": None}
    short = RUN | {"max_steps": 2}
    settings = train.Settings(new_head=True, quantize="w8a8", **short | {"distill": True})
    alone, record = transferred(model, settings, **data)
    assert [line["reason"] for line in record.lines if line["what"] == "not-distilled"] == [
        "no teacher: the model that was given answers for other classes than the new head"
    ]
    without, plain = transferred(model, train.Settings(new_head=True, quantize="w8a8", **short), **data)
    assert same(alone, without) and record.facts["train"]["loss"] == plain.facts["train"]["loss"]
    _, taught = transferred(model, settings, teacher=network(3), **data)
    assert taught.facts["train"]["loss"] != plain.facts["train"]["loss"]
    assert all(line["what"] != "not-distilled" for each in (taught, plain) for line in each.lines)


def test_the_refusal_of_other_classes_says_what_works(tmp_path):
    """What it tells to try is tried, as the command line would."""
    data = write_folder(tmp_path / "shapes", train=24, val=12, size=16)
    call = {"mode": "sparse-transfer", "use_case": "image_classification", "max_steps": 1, "batch_size": 8}
    with pytest.raises(UsageError) as error:
        sparsify(pruned(network(5)), data, **call)
    option = re.search(r"--option (\S+)", str(error.value))[1]
    tuned = sparsify(pruned(network(5)), data, **call, **parse_options([option]))
    assert [layer for layer in tuned.modules() if isinstance(layer, nn.Linear)][-1].out_features == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_of_few_bits_learns(dtype):
    """Convolutions take no other floats than their own; the dense one that teaches it is of few bits too."""
    model = pruned(network()).to(dtype)
    tuned, record = transferred(model, train.Settings(quantize="w8a8", **RUN | {"distill": True}))
    assert record.facts["train"]["after"]["loss"] < record.facts["train"]["before"]["loss"]
    assert {each.dtype for each in tuned.parameters() if each.is_floating_point()} == {dtype}


def test_a_new_head_needs_names_and_a_head():
    with pytest.raises(UsageError, match="does not say what its classes are"):
        transferred(pruned(network()), train.Settings(new_head=True, **RUN))
    model = nn.Sequential(*list(network())[:-1])
    with pytest.raises(UsageError, match="the head of a Sequential is not known"):
        transferred(model, train.Settings(new_head=True, **RUN), classes=["a", "b"], data=pictures(24))
