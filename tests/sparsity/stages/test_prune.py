# SPDX-License-Identifier: Apache-2.0
"""One-shot pruning of modules: exact zeros, the best that the data allows, and nothing of the user's changed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from fewbit import UsageError
from fewbit.sparsity.stages import prune
from fewbit.sparsity.stages.prune import Settings
from pruned_models import convolutional, images, job, off, pruned, texts, zeros
from tiny_models import transformer

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def weights(model, names=LINEAR):
    return {n: p for n, p in model.named_parameters() if n.endswith(tuple(f"{name}.weight" for name in names))}


def lines(made, what):
    return {line["where"]: line for line in made.record.lines if line["what"] == what}


@pytest.mark.parametrize("algorithm", ["wanda", "sparse_gpt", "alps", "stepwise", None])
def test_a_decoder_is_nearer_than_by_magnitude_and_has_exactly_the_zeros(algorithm):
    model, data = transformer("llama"), texts()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plain, _ = pruned(model, Settings(0.5, algorithm="magnitude"), data)
    found, made = pruned(model, Settings(0.5, algorithm=algorithm), data)
    assert all(zeros(w) == w.numel() // 2 for w in weights(found).values())
    assert not zeros(found.lm_head.weight) and not zeros(found.model.embed_tokens.weight)
    assert off(found, model, texts(6, seed=5)) < off(plain, model, texts(6, seed=5))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    facts = made.record.facts["prune"]
    assert (facts["zeros"], facts["elements"], facts["share"]) == (1920, 3840, 0.5)
    assert {each["algorithm"] for each in facts["layers"].values()} == {algorithm or "stepwise"}
    told = lines(made, "pruned")
    assert told.keys() == weights(model).keys() and all(line["share"] == 0.5 for line in told.values())
    assert lines(made, "dense").keys() == {"lm_head", "model.embed_tokens"}


@pytest.mark.parametrize("algorithm", ["magnitude", "wanda", "sparse_gpt"])
def test_two_of_four_along_the_input_of_every_layer(algorithm):
    model = transformer("gpt2")  # whose weights lie the other way round
    found, _ = pruned(model, Settings(structure="2:4", algorithm=algorithm), texts())
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        weight = found.transformer.h[0].get_submodule(name).weight.T  # [out, in]
        groups = weight.reshape(len(weight), -1, 4)
        assert bool(((groups != 0).sum(-1) == 2).all())


def test_blocks_rows_and_one_threshold_over_all_layers():
    model, data = transformer("llama"), texts()
    blocks, _ = pruned(model, Settings(0.5, structure="1x4"), data)
    rows, _ = pruned(model, Settings(0.25, scope="row"), data)
    everywhere, made = pruned(model, Settings(0.3, scope="global"), data)
    for w in weights(blocks).values():
        there = (w.reshape(len(w), -1, 4) != 0).any(-1)
        assert zeros(w) == w.numel() // 2 and int(there.sum()) == there.numel() // 2
    assert all(bool(((w == 0).sum(1) == w.shape[1] // 4).all()) for w in weights(rows).values())
    dense = torch.cat([w.detach().flatten() for w in weights(model).values()])
    mask = torch.cat([w.detach().flatten() != 0 for w in weights(everywhere).values()])
    assert int((~mask).sum()) == 1152 == made.record.facts["prune"]["zeros"]
    assert dense[~mask].abs().max() < dense[mask].abs().min()


def test_without_data_it_is_magnitude_and_the_record_says_so():
    model = transformer("llama")
    found, made = pruned(model, Settings(0.5))
    reasons = [line["reason"] for line in made.record.lines if line["what"] == "algorithm"]
    assert reasons == ["there is no calibration data"]
    for name, w in weights(found).items():
        dense = weights(model)[name].abs()
        assert dense[w == 0].max() <= dense[w != 0].min()


@pytest.mark.parametrize("algorithm", ["sparse_gpt", None])
def test_convolutions_make_up_for_what_is_gone(algorithm):
    model, data = convolutional(), images()
    plain, _ = pruned(model, Settings(0.5, algorithm="wanda", correct=False), data)
    found, made = pruned(model, Settings(0.5, algorithm=algorithm, correct=False), data)
    assert off(found, model, images(5, seed=7)) < off(plain, model, images(5, seed=7))
    told, solvers = lines(made, "pruned"), lines(made, "algorithm")
    assert all(2 * zeros(found.get_submodule(n.rpartition(".")[0]).weight) == x["elements"] for n, x in told.items())
    assert told["conv1.weight"]["output_error"] < told["conv1.weight"]["output_error_magnitude"]
    assert "grouped" in solvers["conv2.weight"]["reason"] and told["conv2.weight"]["algorithm"] == "wanda"
    assert not zeros(found.stem.weight) and not zeros(found.fc.weight)


def test_biases_are_corrected_where_answers_come_nearer():
    model, data = convolutional(), images()
    found, made = pruned(model, Settings(0.5, algorithm="magnitude"), data)
    without, _ = pruned(model, Settings(0.5, algorithm="magnitude", correct=False), data)
    facts = made.record.facts["prune"]["correction"]
    assert facts["error"] < facts["error_uncorrected"]
    assert off(found, model, images(5, seed=7)) < off(without, model, images(5, seed=7))


class Upwards(nn.Module):
    """A transposed convolution between two others."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1)
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.last(self.up(self.first(x).relu()).relu())


def test_a_transposed_convolution():
    torch.manual_seed(0)
    model, data = Upwards().eval(), images()
    settings = [Settings(0.5, algorithm=name, correct=False) for name in ("magnitude", "sparse_gpt")]
    (plain, _), (found, made) = (pruned(model, each, data) for each in settings)
    line = lines(made, "pruned")["up.weight"]
    assert 2 * zeros(found.up.weight) == found.up.weight.numel() and "fallback" not in line
    assert line["held_out_output_error"] < line["held_out_output_error_magnitude"]
    assert off(found, model, images(5, seed=7)) < off(plain, model, images(5, seed=7))


def test_what_is_too_large_or_too_wide_gets_another_algorithm(monkeypatch):
    from fewbit.sparsity.pruning import solvers

    monkeypatch.setattr(solvers, "_ONE", 16 * 60**2)
    monkeypatch.setattr(solvers, "_WIDE", 50)
    _, made = pruned(convolutional(), Settings(0.5), images())
    told = lines(made, "algorithm")
    assert told[None]["algorithm"] == "alps" and "plain1.weight" not in told
    assert told["conv1.weight"]["algorithm"] == "wanda" and "GiB" in told["conv1.weight"]["reason"]
    assert told["plain2.weight"]["algorithm"] == "stepwise" and "wide" in told["plain2.weight"]["reason"]


def test_zeros_go_where_answers_feel_them_least():
    model, data = transformer("llama"), texts(20)
    plain, _ = pruned(model, Settings(0.5), data)
    found, made = pruned(model, Settings(0.5, budget="sensitivity"), data)
    facts = made.record.facts["prune"]
    shares = [each["share"] for each in facts["layers"].values()]
    assert facts["zeros"] == 1920 and min(shares) < 0.45 and 0.55 < max(shares) <= 0.95
    assert facts["budget"]["used"] and facts["budget"]["error"] < facts["budget"]["error_uniform"]
    assert off(found, model, texts(6, seed=5)) < off(plain, model, texts(6, seed=5))


def test_with_codes_of_few_bits_in_the_same_sweep():
    model = transformer("llama")
    found, made = pruned(model, Settings(structure="2:4", quantize="int4_sym", group_size=8), texts())
    facts = made.record.facts["prune"]
    assert facts["zeros"] >= facts["elements"] // 2  # codes of small weights may be zero too
    weight = found.model.layers[0].mlp.up_proj.weight
    assert bool(((weight.reshape(len(weight), -1, 4) != 0).sum(-1) <= 2).all())
    assert type(found.model.layers[0].mlp.up_proj) is not nn.Linear


def test_experts_in_one_tensor_each_have_their_share():
    model = transformer("mixtral")
    found, made = pruned(model, Settings(structure="2:4"), texts())
    weight = found.model.layers[0].mlp.experts.gate_up_proj
    assert bool(((weight.reshape(*weight.shape[:2], -1, 4) != 0).sum(-1) == 2).all())
    _, made = pruned(model, Settings(0.3), texts())
    assert made.record.facts["prune"]["zeros"] == sum(
        round(0.3 * each["elements"] + 1e-9) for each in made.record.facts["prune"]["layers"].values()
    )
    assert not any("fallback" in line for line in made.record.lines)


def test_one_threshold_goes_through_stacks_of_experts_too():
    model = transformer("mixtral")
    stacks = [p for name, p in model.named_parameters() if "experts" in name]
    with torch.no_grad():
        for stack in stacks:
            stack[0] *= 1000
    found, made = pruned(model, Settings(0.5, scope="global"))
    names = list(made.record.facts["prune"]["layers"])
    dense, sparse = (torch.cat([m.get_parameter(n).detach().flatten() for n in names]) for m in (model, found))
    assert stacks and int((sparse == 0).sum()) == dense.numel() // 2
    assert dense[sparse == 0].abs().max() <= dense[sparse != 0].abs().min()


def test_experts_with_zeros_of_their_own_have_as_many_in_all_as_asked_for():
    model = transformer("mixtral")
    stacks = {name: p for name, p in model.named_parameters() if "experts" in name}
    with torch.no_grad():
        for stack in stacks.values():
            stack[0].flatten()[: round(0.8 * stack[0].numel())] = 0
    for settings, data in ((Settings(0.5), None), (Settings(0.5, algorithm="wanda"), texts())):
        found, _ = pruned(model, settings, data)
        assert all(zeros(found.get_parameter(name)) == p.numel() // 2 for name, p in stacks.items())


@pytest.mark.parametrize("algorithm", ["magnitude", "wanda", "sparse_gpt", "alps"])
def test_a_second_time_only_adds_zeros(algorithm):
    model, data = transformer("llama"), texts()
    once, _ = pruned(model, Settings(0.4, algorithm=algorithm), data)
    twice, _ = pruned(once, Settings(0.6, algorithm=algorithm), data)
    less, _ = pruned(once, Settings(0.2, algorithm=algorithm), data)
    for name, w in weights(once).items():
        again, fewer = weights(twice)[name], weights(less)[name]
        assert bool((again[w == 0] == 0).all())
        assert zeros(again) == round(0.6 * w.numel())
        assert torch.equal(fewer == 0, w == 0)


def test_padding_is_no_part_of_what_layers_read():
    model = transformer("llama")
    plain, padded = texts(10), []
    for each in plain:
        ids = torch.cat([each["input_ids"], torch.full((2, 5), 3)], 1)
        mask = torch.cat([torch.ones(2, 12), torch.zeros(2, 5)], 1).long()
        padded.append({"input_ids": ids, "attention_mask": mask})
    (a, _), (b, _) = (pruned(model, Settings(0.5, algorithm="wanda"), data) for data in (plain, padded))
    for name, w in weights(a).items():
        torch.testing.assert_close(w, weights(b)[name], rtol=1e-4, atol=1e-5)


def test_a_stopped_run_goes_on_and_random_state_is_left_alone(tmp_path, monkeypatch):
    model, data = transformer("llama"), texts()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    whole, _ = pruned(model, Settings(0.5), data)
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])
    settled, calls = [], []
    from fewbit.engine import settling

    def stopping(*given):
        calls.append(given)
        if len(calls) == 5:
            raise KeyboardInterrupt
        settled.append(given)
        return kept(*given)

    kept = settling.settle
    monkeypatch.setattr(settling, "settle", stopping)
    with pytest.raises(KeyboardInterrupt):
        prune.run(model, Settings(0.5), job(data, work=tmp_path))
    again, _ = pruned(model, Settings(0.5), data, work=tmp_path)
    assert len(settled) == 14  # none of them twice
    assert all(torch.equal(w, weights(again)[name]) for name, w in weights(whole).items())


def test_everything_that_is_wrong_is_told_before_any_work():
    model = transformer("llama", intermediate_size=26)
    with pytest.raises(UsageError) as error:
        prune.refuse(Settings(structure="2:4", algorithm="sparse_gpt"), model, job())
    text = str(error.value)
    assert "2 faults" in text and "down_proj (26 inputs)" in text and "sparse_gpt without data" in text
    prune.refuse(Settings(structure="2:4", ignore=("re:.*down_proj",)), model, job())
    with pytest.raises(UsageError) as error:
        prune.refuse(Settings(0.5, targets=("k_prjo",), ignore=("LayerNrm",)), model, job())
    assert "k_prjo" in str(error.value) and "LayerNrm" in str(error.value)


def test_names_patterns_and_classes_say_what_is_pruned():
    model = transformer("llama")
    found, made = pruned(model, Settings(0.5, targets=("re:.*mlp\\..*", "lm_head"), ignore=("*.up_proj",)), texts())
    assert zeros(found.lm_head.weight) and zeros(found.model.layers[1].mlp.gate_proj.weight)
    assert not zeros(found.model.layers[1].mlp.up_proj.weight)
    assert not zeros(found.model.layers[0].self_attn.q_proj.weight)
    dense = lines(made, "dense")
    assert "model.layers.0.mlp.up_proj" in dense and "model.embed_tokens" in dense
