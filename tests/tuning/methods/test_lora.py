# SPDX-License-Identifier: Apache-2.0
"""LoRA and DoRA over floats, codes and zeros, and what merging makes of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fewbit
from fewbit.errors import UsageError
from fewbit.modules.coded import Quantized
from fewbit.tuning.adapters import adapted, add_adapters, merged_weight, update_of
from fewbit.tuning.merging import merge_adapters
from fewbit.tuning.methods import dora, lora
from fewbit.tuning.options import Options
from fewbit.tuning.targets import find_targets, heads, task_heads
from quantized_models import GRIDS, mlp, numbers, quantize_linears
from small_models import opt, token_ids
from tiny_models import Encoder, tokens, transformer

peft = pytest.importorskip("peft")
METHODS = {"lora": lora, "dora": dora}


def _options(**more) -> Options:
    return Options.read({"rank": 4, "alpha": 8.0, **more})


def _read(out):
    return out.logits if hasattr(out, "logits") else out


def _trained(model: nn.Module, batch, steps: int = 4, lr: float = 0.02) -> nn.Module:
    model.train()
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr)
    wanted = torch.randn(_read(model(batch)).shape, generator=torch.Generator().manual_seed(3))
    for _ in range(steps):
        optimizer.zero_grad()
        (_read(model(batch)) - wanted).square().mean().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "t5"])
def test_merging_into_floats_changes_no_answer(method, name):
    torch.manual_seed(0)
    start = transformer(name)
    batch = {"input_ids": tokens(), **({"decoder_input_ids": tokens()} if name == "t5" else {})}

    def answers(model):
        with torch.no_grad():
            return model(**batch).logits

    model = METHODS[method].setup(copy.deepcopy(start), _options())
    torch.testing.assert_close(answers(model), answers(start), rtol=1e-4, atol=1e-5)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.02)
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch).logits.square().mean().backward()
        optimizer.step()
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    learned = answers(model)
    assert not torch.allclose(learned, answers(start), atol=1e-2)
    merged = METHODS[method].finish(model, [batch])
    torch.testing.assert_close(answers(merged), learned, rtol=1e-3, atol=1e-4)
    assert {n for n, _ in merged.named_parameters()} == {n for n, _ in start.named_parameters()}
    assert all(p.requires_grad for p in merged.parameters()) and not any(adapted(merged))
    report = merged.fewbit_merge
    assert report.output_error < 1e-5 and report.worst in report.layers and report.batches == 1
    assert all(each["weight_error"] == 0 for each in report.layers.values())


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
@pytest.mark.parametrize("with_dora", [False, True])
def test_the_merged_weight_is_pefts(kind, with_dora):
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    layer = nn.Linear(12, 20) if kind == "linear" else Conv1D(20, 12)
    model = add_adapters(nn.Sequential(layer, nn.Linear(20, 3)), rank=3, alpha=6, targets=["0"], dora=with_dora)
    _trained(model, numbers(8, 12))
    ours, theirs = merged_weight(model[0]), copy.deepcopy(model[0])
    theirs.merge(safe_merge=True)
    torch.testing.assert_close(ours, theirs.get_base_layer().weight.detach(), rtol=1e-5, atol=1e-6)


def test_targets_are_found_by_structure():
    assert find_targets(opt()) == [n for n, m in opt().named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    assert len(find_targets(transformer("gpt2"))) == 8
    assert len(find_targets(quantize_linears(transformer("llama")))) == 14
    assert "encoder.layers.0.self_attn.out_proj" not in find_targets(Encoder())  # attention never calls it
    assert find_targets(opt(), ["q_proj"]) == [f"model.decoder.layers.{i}.self_attn.q_proj" for i in (0, 1)]
    assert find_targets(opt(), ["*.1.fc?"]) == ["model.decoder.layers.1.fc1", "model.decoder.layers.1.fc2"]
    assert find_targets(opt(), ["re:.*0.fc1", "lm_head"]) == ["model.decoder.layers.0.fc1", "lm_head"]


def test_wrong_targets_are_told_at_once_with_near_ones():
    with pytest.raises(UsageError, match=r"(?s)'re:\('.*'q_porj'.*did you mean 'q_proj'.*'fc3'"):
        find_targets(opt(), ["q_porj", "k_proj", "fc3", "re:("])
    with pytest.raises(UsageError, match="no linear layer beside its head"):
        find_targets(nn.Sequential(nn.Linear(2, 2)))


def test_the_head_of_a_task_learns_and_that_of_a_vocabulary_does_not():
    from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification

    config = BertConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, vocab_size=40)
    model = lora.setup(BertForSequenceClassification(config), _options())
    learning = {n for n, p in model.named_parameters() if p.requires_grad and "lora" not in n}
    assert learning == {"classifier.weight", "classifier.bias"}
    assert task_heads(BertForQuestionAnswering(config)) == {"qa_outputs"}
    assert heads(opt()) == {"lm_head"} and task_heads(opt()) == set()
    model = lora.setup(transformer("llama"), _options())
    assert all("lora" in n for n, p in model.named_parameters() if p.requires_grad)


def _codes(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: b.clone() for n, b in model.named_buffers() if n.endswith(("_packed", "_scale"))}


@pytest.mark.parametrize("method", METHODS)
def test_codes_stay_while_adapters_learn_over_them(method):
    model = copy.deepcopy(fewbit.quantize(opt(), [token_ids()], preset="w4a16"))
    quantized = {n for n, m in model.named_modules() if isinstance(m, Quantized)}
    with torch.no_grad():
        answers = model(token_ids()).logits
    model = METHODS[method].setup(model, _options())
    before = _codes(model)
    assert len(before) == 2 * len(quantized)
    with torch.no_grad():
        # the kernels are off, and those for int4 compute in bfloat16
        assert float((model(token_ids()).logits - answers).norm() / answers.norm()) < 2e-2
    _trained(model, token_ids())
    assert all(torch.equal(t, before[n]) for n, t in _codes(model).items())
    with torch.no_grad():
        learned = model(token_ids()).logits
    merged = METHODS[method].finish(model, [{"input_ids": token_ids()}])
    report = merged.fewbit_merge
    assert {n for n, m in merged.named_modules() if isinstance(m, Quantized)} == quantized
    with torch.no_grad():
        off = float((merged(token_ids()).logits - learned).norm() / learned.norm())
    assert report.output_error == pytest.approx(off, rel=1e-4) and 0 < off < 0.7
    assert report.worst == max(report.layers, key=lambda n: report.layers[n]["output_error"])
    assert all(0 < each["output_error"] < 0.5 for each in report.layers.values())


@pytest.mark.parametrize("name", ["int8", "int4", "int4 asym", "nf4", "mxfp4", "nvfp4"])
def test_merging_rounds_on_the_same_grid_and_loses_no_more_than_rounding_does(name):
    model = quantize_linears(mlp(48), GRIDS[name])
    before = copy.deepcopy(model[0].coded["weight"])
    add_adapters(model, rank=2, alpha=4.0, targets=["0"])
    _trained(model, numbers(8, 48))
    wanted = merged_weight(model[0])
    report = merge_adapters(model, [numbers(8, 48)], call=lambda m, x: m(x))
    assert model[0].coded["weight"] == before and type(model[0]).__name__ == "QuantizedLinear"
    from quantized_models import encode

    plain = encode(wanted, GRIDS[name]).dequantize()
    assert float((model[0].weight - wanted).norm()) <= float((plain - wanted).norm()) * (1 + 1e-6)
    assert report.layers["0"]["weight_error"] == pytest.approx(
        float((model[0].weight - wanted).norm() / wanted.norm()), rel=1e-5
    )


def _layers(width: int = 256, depth: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)), nn.Linear(width, 2))
    return quantize_linears(model)


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_autograd_keeps_no_dequantized_weight(autocast):
    """Bytes that are saved for the backward, counted by torch's own hooks."""
    x = numbers(4, 256).requires_grad_()

    def kept(model) -> int:
        seen: dict[int, int] = {}

        def pack(tensor):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", enabled=autocast):
            out = model(x).float().sum()
        out.backward()
        return sum(seen.values())

    plain = kept(_layers())
    model = add_adapters(_layers(), rank=2, alpha=4.0)
    assert plain > 6 * 256 * 256 * (2 if autocast else 4)
    assert kept(model) < 0.25 * plain


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_gradients_through_codes_are_those_through_their_values(autocast):
    x = numbers(4, 256)
    model = add_adapters(_layers(), rank=2, alpha=4.0)
    twin = copy.deepcopy(model)
    for _, layer in adapted(twin):
        base = layer.get_base_layer()
        plain = nn.Linear(256, 256)
        plain.weight, plain.bias = nn.Parameter(base.weight.detach(), False), base.bias
        layer.base_layer = plain
    for each in (model, twin):
        for _, layer in adapted(each):
            nn.init.constant_(layer.lora_B["default"].weight, 0.01)
        with torch.autocast("cpu", enabled=autocast):
            each(x).float().square().sum().backward()
    learning = [[p for p in each.parameters() if p.requires_grad] for each in (model, twin)]
    pairs = list(zip(*learning))
    assert len(pairs) == 6 * 2 + 1 and all(torch.equal(p.grad, q.grad) and bool(p.grad.any()) for p, q in pairs)


def _pruned(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            weight = module.weight.data
            flat = weight.reshape(-1, 4)
            weight.copy_(flat.scatter(1, flat.abs().argsort(1)[:, :2], 0.0).reshape(weight.shape))
    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["opt", "gpt2"])
def test_zeros_are_not_filled_and_training_knows_it(method, name):
    start = _pruned(transformer(name))
    targets = find_targets(start)
    zeros = {n: start.get_submodule(n).weight == 0 for n in targets}
    assert all(0.49 < float(z.float().mean()) < 0.51 for z in zeros.values())
    model = _trained(METHODS[method].setup(copy.deepcopy(start), _options()), tokens())
    with torch.no_grad():
        learned = model(tokens()).logits
    layer = dict(adapted(model))[targets[0]]
    assert bool((update_of(layer) != 0).any())
    merged = METHODS[method].finish(model, [{"input_ids": tokens()}])
    for target in targets:
        assert torch.equal(merged.get_submodule(target).weight == 0, zeros[target])
        assert not torch.equal(merged.get_submodule(target).weight, start.get_submodule(target).weight)
    with torch.no_grad():
        torch.testing.assert_close(merged(tokens()).logits, learned, rtol=1e-3, atol=1e-4)


def test_adapters_may_stay():
    model = lora.finish(lora.setup(transformer("llama"), _options(merge=False)))
    assert len(list(adapted(model))) == 14 and not hasattr(model, "fewbit_merge")


def test_a_second_set_of_adapters_is_refused():
    model = lora.setup(transformer("llama"), _options())
    with pytest.raises(UsageError, match="adapters already"):
        lora.setup(model, _options())
    with pytest.raises(UsageError, match="no adapters"):
        merge_adapters(mlp())
