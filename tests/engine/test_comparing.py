# SPDX-License-Identifier: Apache-2.0
"""`compare` on whole models, against figures that transformers and torch compute themselves."""

import json
from copy import deepcopy

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import fewbit
import onnx_graphs
from fewbit.engine import pairing
from fewbit.engine.comparing import compare
from fewbit.errors import DataError, UsageError
from quantized_models import mlp, numbers, quantize_linears
from tiny_models import tokens, transformer


def texts(count=6, rows=2, length=12):
    draw = torch.Generator().manual_seed(4)
    return [torch.randint(4, 40, (rows, length), generator=draw) for _ in range(count)]


def noisy(model, by=0.05, seed=0):
    """A copy with every parameter a little off."""
    draw = torch.Generator().manual_seed(seed)
    made = deepcopy(model)
    for parameter in made.parameters():
        parameter.data.add_(by * torch.randn(parameter.shape, generator=draw))
    return made


# language models


@torch.no_grad()
def test_perplexity_kl_and_agreement_are_what_transformers_and_torch_say():
    model, ids = transformer("llama"), texts()
    made = noisy(model)
    facts = compare(model, made, [{"input_ids": each} for each in ids]).facts
    every = torch.cat(ids)
    for name, each in (("original", model), ("compressed", made)):
        loss = float(each(input_ids=every, labels=every).loss)
        assert facts["perplexity"][name]["value"] == pytest.approx(np.exp(loss), rel=1e-5)
    a, b = (each(input_ids=every).logits.double().log_softmax(-1) for each in (model, made))
    kl = (a.exp() * (a - b)).sum(-1)
    assert facts["kl"]["mean"]["value"] == pytest.approx(float(kl.mean()), rel=1e-4)
    assert facts["kl"]["median"]["value"] == pytest.approx(float(kl.quantile(0.5)), rel=1e-3)
    assert facts["kl"]["p99"]["value"] == pytest.approx(float(kl.quantile(0.99)), rel=1e-3)
    assert facts["agreement"]["value"] == float((a.argmax(-1) == b.argmax(-1)).double().mean())
    sample, position = divmod(int(kl.argmax()), 12)
    worst = facts["kl"]["worst"]
    assert (worst["item"], worst["sample"], worst["position"]) == (sample // 2, sample, position)
    assert worst["token"] == int(every[sample, position]) and worst["value"] == pytest.approx(float(kl.max()), rel=1e-4)
    assert (facts["kind"], facts["items"], facts["samples"], facts["positions"]) == ("language", 6, 12, 144)
    assert facts["perplexity"]["positions"] == 132


@torch.no_grad()
def test_the_interval_of_the_difference_is_paired():
    """Texts differ far more in how hard they are than the models do in how they take them."""
    model = transformer("llama")
    made = noisy(model, 0.01)
    found = compare(model, made, [{"input_ids": each} for each in texts(12)]).facts["perplexity"]
    losses = []
    for each in (model, made):
        rows = torch.cat([nn.functional.cross_entropy(
            each(input_ids=ids).logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)
            for ids in texts(12)]).double()  # fmt: skip
        losses.append(rows)
    apart = losses[1] - losses[0]
    reach = 2.0687 * float(apart.std()) / 24**0.5  # Student's 23 degrees; all texts are of one length
    assert found["log_difference"]["value"] == pytest.approx(float(apart.mean()), rel=1e-3)
    width = found["log_difference"]["high"] - found["log_difference"]["low"]
    assert width == pytest.approx(2 * reach, rel=1e-3)
    alone = np.log(found["original"]["high"] / found["original"]["low"])
    assert width < 0.3 * alone


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_left_out_on_either_side(side):
    model = transformer("llama")
    made = noisy(model)
    ids, lengths = texts(4), (12, 7)
    padded, alone = [], []
    for each in ids:
        mask, filled = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)
        for row, length in enumerate(lengths):
            place = slice(0, length) if side == "right" else slice(12 - length, 12)
            mask[row, place], filled[row, place] = 1, each[row, :length]
            alone.append({"input_ids": each[row : row + 1, :length]})
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        padded.append({"input_ids": filled, "attention_mask": mask, "position_ids": positions})
    one, other = (compare(model, made, data).facts for data in (padded, alone))
    assert one["positions"] == other["positions"] == 4 * 19 and one["perplexity"]["positions"] == 4 * 17
    for name in ("original", "compressed", "log_difference"):
        assert one["perplexity"][name] == pytest.approx(other["perplexity"][name], rel=1e-3)
    assert one["kl"]["p99"] == pytest.approx(other["kl"]["p99"], rel=1e-3) and one["agreement"] == other["agreement"]


def test_what_is_said_of_a_difference():
    model, data = transformer("llama"), [{"input_ids": each} for each in texts(10)]
    worse = compare(model, noisy(model, 0.3), data).facts
    assert worse["verdict"].startswith("perplexity is ") and "higher" in worse["verdict"]
    assert worse["perplexity"]["log_difference"]["low"] > 0 and "on 20 samples, 220 positions" in worse["verdict"]
    better = compare(noisy(model, 0.3), model, data).facts
    assert "lower" in better["verdict"] and better["perplexity"]["log_difference"]["high"] < 0
    near = compare(model, noisy(model, 1e-4), data)
    assert near.facts["verdict"].startswith("no difference in perplexity could be shown")
    ends = near.facts["perplexity"]["log_difference"]
    assert ends["low"] <= 0 <= ends["high"] and near.lines[0]["samples"] == 20
    one = compare(model, noisy(model, 1e-4), [{"input_ids": texts()[0][:1]}]).facts
    assert "no difference" not in one["verdict"] and "cannot be said" in one["verdict"]
    assert one["perplexity"]["original"]["low"] is None


def test_a_model_that_reads_ahead_has_no_perplexity():
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertForMaskedLM(BertConfig(vocab_size=40, **sizes)).eval()
    record = compare(model, noisy(model), [{"input_ids": each} for each in texts()])
    assert record.facts["kind"] == "language" and "perplexity" not in record.facts
    assert record.facts["kl"]["mean"]["value"] > 0 and any(line["what"] == "looks-ahead" for line in record.lines)


@torch.no_grad()
def test_a_decoder_is_judged_by_its_own_tokens():
    model = transformer("t5")
    made = noisy(model, 0.02)
    item = {"input_ids": tokens(2, 6), "decoder_input_ids": tokens(2, 9)}
    facts = compare(model, made, [item]).facts
    logits = model(**item).logits[:, :-1].transpose(1, 2)
    loss = nn.functional.cross_entropy(logits, item["decoder_input_ids"][:, 1:])
    assert facts["perplexity"]["original"]["value"] == pytest.approx(float(loss.exp()), rel=1e-5)
    assert facts["positions"] == 18


def test_an_encoder_gives_values_and_not_words():
    model, ids = transformer("bert"), texts(3)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    facts = compare(model, noisy(model), [{"input_ids": each, "attention_mask": mask} for each in ids]).facts
    assert facts["kind"] == "values" and len(facts["outputs"]) == 2 and facts["samples"] == 6
    assert 0 < facts["error"]["value"] < 1 and 0.5 < facts["cosine"]["value"] < 1


# classifiers and everything else


def labelled(model, made):
    """Samples that the first model is mostly right about."""
    x = numbers(40, 40)
    y = model(x).argmax(1)
    y[:4] = (y[:4] + 1) % 8
    return [(x[i : i + 4], y[i : i + 4]) for i in range(0, 40, 4)], x, y


@torch.no_grad()
def test_a_classifier_with_labels():
    model = mlp()
    made = quantize_linears(deepcopy(model))
    data, x, y = labelled(model, made)
    record = compare(model, made, data)
    facts, ours, theirs = record.facts, model(x), made(x)
    right, other = (each.argmax(1) == y for each in (ours, theirs))
    assert facts["kind"] == "classes" and facts["samples"] == 40
    assert facts["accuracy"]["original"]["value"] == pytest.approx(0.9)
    assert facts["accuracy"]["compressed"]["value"] == pytest.approx(float(other.double().mean()))
    apart = other.double() - right.double()
    assert facts["accuracy"]["difference"]["value"] == pytest.approx(float(apart.mean()))
    reach = 2.0227 * float(apart.std()) / 40**0.5
    assert facts["accuracy"]["difference"]["high"] == pytest.approx(float(apart.mean()) + reach, abs=1e-4)
    assert facts["agreement"]["value"] == pytest.approx(float((ours.argmax(1) == theirs.argmax(1)).double().mean()))
    kl = nn.functional.kl_div(theirs.log_softmax(1), ours.log_softmax(1), reduction="none", log_target=True).sum(1)
    assert facts["kl"]["mean"]["value"] == pytest.approx(float(kl.mean()), rel=1e-3)
    assert facts["kl"]["worst"]["sample"] == int(kl.argmax()) and facts["kl"]["worst"]["item"] == int(kl.argmax()) // 4
    assert not any(line["what"] == "labels-left-out" for line in record.lines)


def test_labels_of_samples_go_by_name():
    model = mlp()
    x = numbers(6, 40).numpy()
    rows = [{"input": row, "label": int(model(torch.tensor(row)).argmax())} for row in x]
    data = fewbit.Dataset(rows, batched=False)
    for size in (1, 4):
        facts = compare(model, model, data, batch_size=size).facts
        assert facts["accuracy"]["original"]["value"] == 1.0 and facts["samples"] == 6
        assert "no difference in accuracy could be shown" in facts["verdict"] and "6 samples" in facts["verdict"]
    assert "accuracy" not in compare(model, model, fewbit.Dataset([*rows, {"input": x[0]}], batched=False)).facts


@torch.no_grad()
def test_values_of_any_kind():
    model, x = mlp(), numbers(20, 40)
    made = quantize_linears(deepcopy(model))
    facts = compare(model, made, [x[i : i + 5] for i in range(0, 20, 5)], kind="values").facts
    a, b = model(x).double(), made(x).double()
    wanted = (b - a).square().sum() / (a - a.mean()).square().sum()
    assert facts["error"]["value"] == pytest.approx(float(wanted), rel=1e-5)
    assert facts["cosine"]["value"] == pytest.approx(float(torch.cosine_similarity(a, b, dim=1).mean()), rel=1e-6)
    assert facts["error"]["low"] < facts["error"]["value"] < facts["error"]["high"]
    same = compare(model, model, [x], kind="values").facts
    assert same["error"]["value"] == 0 and "bit by bit" in same["verdict"]


# where models come from


def test_folders_give_what_modules_give(tmp_path):
    model = transformer("llama", hidden_size=32)
    made = fewbit.compress_weights(model, mode="int4_sym", group_size=8)
    model.save_pretrained(tmp_path / "float")
    fewbit.export(made, tmp_path / "small")
    data = [{"input_ids": each} for each in texts(3)]
    one, other = compare(model, made, data), compare(tmp_path / "float", tmp_path / "small", data)
    assert one.facts["kl"]["mean"] == pytest.approx(other.facts["kl"]["mean"], rel=1e-4)
    lines = [line for line in other.lines if line["what"] == "layer"]
    assert all(line["algorithm"] == "scale_search" and "per group of 8" in line["scheme"] for line in lines[:5])


def test_a_folder_for_another_runtime_is_opened_by_it(tmp_path):
    """transformers, with the library of the format: other code than fewbit's, and the same answers."""
    pytest.importorskip("compressed_tensors")
    model = transformer("llama", hidden_size=32, head_dim=8, intermediate_size=64)
    made = fewbit.compress_weights(model, mode="int4_sym", group_size=32)
    fewbit.export(made, tmp_path / "packed", format="compressed_tensors")
    data = [{"input_ids": each} for each in texts(3)]
    one, other = compare(model, made, data), compare(model, tmp_path / "packed", data)
    assert one.facts["kl"]["mean"] == pytest.approx(other.facts["kl"]["mean"], rel=2e-2)  # a kernel rounds inputs
    ours, theirs = (
        {line["where"]: line for line in record.lines if line["what"] == "layer"} for record in (one, other)
    )
    assert ours.keys() == theirs.keys() and len(ours) == 16
    for name, line in ours.items():
        assert theirs[name]["local_error"] == pytest.approx(line["local_error"], rel=2e-2)
        assert (theirs[name]["scheme"], theirs[name]["algorithm"]) == (line["scheme"], line["algorithm"])


def test_a_folder_without_code_is_built_like_the_original(tmp_path):
    model = mlp()
    made = fewbit.compress_weights(model, mode="int8_sym")
    fewbit.export(made, tmp_path / "small")
    record = compare(model, tmp_path / "small", [numbers(5, 40)])
    assert record.facts["bytes"]["compressed"] < 0.5 * record.facts["bytes"]["original"]
    assert record.facts["kl"]["mean"]["value"] < 1e-3


def linear(weight):
    node = onnx.helper.make_node("MatMul", ["input", "w"], ["y"], name="scores")
    return onnx_graphs.model([node], {"input": ["n", 40]}, {"y": ["n", 64]}, {"w": weight})


def test_graphs_and_a_graph_beside_a_module(monkeypatch):
    weight = onnx_graphs.random(40, 64)
    proto, module = linear(weight), nn.Linear(40, 64, bias=False).eval()
    module.weight.data = torch.tensor(weight.T.copy())
    data = [{"input": row[None]} for row in numbers(9, 40).numpy()]
    same = compare(module, proto, data)
    assert same.facts["kl"]["mean"]["value"] < 1e-9 and same.facts["agreement"]["value"] == 1.0
    assert any(line["what"] == "layers-not-ranked" for line in same.lines)
    made = fewbit.compress_weights(proto, mode="int4_sym", group_size=16)
    found = compare(proto, made, data).facts
    assert found["kl"]["mean"]["value"] > 1e-4 and found["bytes"]["compressed"] < found["bytes"]["original"] / 2
    monkeypatch.setattr(pairing, "_MOST", 1)  # one item at a time gives the same
    assert compare(proto, made, data).facts == found


# what goes wrong


def test_wrong_calls_and_wrong_answers():
    model, x = mlp(), [numbers(2, 40)]
    with pytest.raises(UsageError, match="kind='words'"):
        compare(model, model, x, kind="words")
    with pytest.raises(UsageError, match="scores of a next token"):
        compare(model, model, x, kind="language")
    with pytest.raises(DataError, match="empty"):
        compare(model, model, [])
    with pytest.raises(DataError, match=r"\(2, 8\).*\(2, 24\)"):
        compare(model, model[0], x)
    spoilt = deepcopy(model)
    spoilt[2].bias.data[3] = torch.nan
    with pytest.raises(DataError, match="the compressed model answers with 2 values of 16"):
        compare(model, spoilt, x)


def test_a_model_that_fails_is_named_with_the_sample():
    class Picky(nn.Linear):
        def forward(self, input):
            if float(input[0, 0]) > 3:
                raise ValueError("too large")
            return super().forward(input)

    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    picky = Picky(4, 3).eval()
    with pytest.raises(DataError, match=r"the compressed model: .*too large") as caught:
        compare(model, picky, [torch.ones(1, 4) * i for i in range(8)])
    assert "sample 4" in caught.value.where


def test_the_same_again_is_the_same_and_the_record_can_be_written(tmp_path):
    model = transformer("llama")
    made = noisy(model)
    first, second = (compare(model, made, [{"input_ids": each} for each in texts()]) for _ in range(2))
    assert first.facts == second.facts and first.lines == second.lines
    assert json.loads(first.save(tmp_path / "r.json").read_text())["verb"] == "compare"
    assert fewbit.Record.from_json(first.to_json()).facts == first.facts


def _linears():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).eval()


def test_weights_that_a_kernel_repacked_are_counted():
    model = _linears()
    small = fewbit.compress_weights(model, mode="int4_sym", all_layers=True)
    found = fewbit.compare(model, small, [torch.randn(2, 512)]).facts["bytes"]
    assert found == {"original": 4202496, "compressed": 548864}
    assert found["compressed"] == small.fewbit_record.facts["bytes_after"]


@pytest.mark.parametrize(
    "preset", ["w4a16", "w4a16_asym", "w8a16", "w8a8_dynamic", "w8a8", "w4a8_dynamic", "fp8_a16", "mxfp4", "nf4"]
)
def test_the_bytes_compared_are_those_of_the_record(preset):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 64), nn.Linear(64, 64)).eval()
    items = [torch.randn(4, 3, 8, 8) for _ in range(8)]
    small = fewbit.quantize(model, items, preset=preset)
    found = fewbit.compare(model, small, items).facts["bytes"]
    assert found["compressed"] == small.fewbit_record.facts["bytes_after"]
    assert found["original"] == small.fewbit_record.facts["bytes_before"]
