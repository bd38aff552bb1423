# SPDX-License-Identifier: Apache-2.0
"""A quantized model that learns is the quantized model until its first step, and codes again at the end."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import fewbit
from fewbit.errors import UsageError
from fewbit.modules.coded import Quantized
from fewbit.modules.freezing import freeze
from fewbit.modules.quantized import get_weight
from fewbit.numerics.quantize import quantize
from fewbit.tuning.methods import qat
from fewbit.tuning.options import Options
from fewbit.tuning.training_quantized import is_learning, learn_quantized, settle_quantized, stretches
from quantized_models import GRIDS, INT4, encode, mlp, numbers, quantize_linears
from small_models import images, mixed, opt, token_ids
from tiny_models import Encoder, Tagger, tokens, transformer


def _codes(model: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    return {
        f"{path}.{name}": get_weight(module, name).tensors()
        for path, module in model.named_modules()
        if isinstance(module, Quantized)
        for name in module.coded
    }


def _same(one, other) -> bool:
    def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
        return {key: part.reshape(-1).view(torch.uint8).numpy().tobytes() for key, part in tensors.items()}

    return one.keys() == other.keys() and all(bits(parts) == bits(other[name]) for name, parts in one.items())


@pytest.mark.parametrize("name", [name for name in GRIDS if name not in ("float16", "bfloat16")])
@pytest.mark.parametrize("learn_scales", [False, True], ids=["fixed scales", "learned scales"])
def test_nothing_learned_gives_the_same_codes(name, learn_scales):
    model = quantize_linears(mlp(), GRIDS[name])
    x, before = numbers(5, 40), _codes(model)
    answers = model(x)
    learn_quantized(model, learn_scales=learn_scales)
    assert torch.equal(model(x), answers)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    settle_quantized(model)
    assert _same(_codes(model), before)
    assert torch.equal(model(x), answers) and not is_learning(model)
    assert type(model[0]).__name__ == "QuantizedLinear" and not model[0]._parameters.get("weight_stretch")


def _trained(model: nn.Module, batch, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.02)
    for _ in range(steps):
        outputs = model(batch)
        loss = (outputs.logits if hasattr(outputs, "logits") else outputs).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _answers(model: nn.Module, batch) -> torch.Tensor:
    """Without gradients: with them torch runs recurrent layers and attention in another order."""
    out = model(batch)
    return out.logits if hasattr(out, "logits") else out


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    return Encoder().eval()


def _tagger() -> nn.Module:
    torch.manual_seed(0)
    return Tagger().eval()


_MODELS = {
    "convolution": (mixed, lambda: images()[0], images),
    "opt": (opt, token_ids, lambda: [token_ids()]),
    "gpt2": (lambda: transformer("gpt2"), tokens, lambda: [tokens()]),
    "experts": (lambda: transformer("mixtral"), tokens, lambda: [tokens()]),
    "recurrent": (_tagger, tokens, lambda: [tokens()]),
    "attention": (_encoder, lambda: numbers(2, 5, 16), lambda: [numbers(2, 5, 16)]),
}


@pytest.mark.parametrize("kind", _MODELS)
@pytest.mark.parametrize("preset", ["w4a16", "w8a8", "w4a8_dynamic"])
def test_every_kind_of_layer_learns_and_is_codes_again(kind, preset):
    make, sample, data = _MODELS[kind]
    quantizer = fewbit.ModelQuantizer(preset)
    model = copy.deepcopy(quantizer.quantize_model(make(), data()))
    batch = sample()
    answers = _answers(model, batch)
    before = _codes(model)
    learn_quantized(model, learn_scales=True)
    assert torch.equal(_answers(model, batch), answers)
    masters = [p for n, p in model.named_parameters() if p.ndim >= 2]
    _trained(model, batch)
    assert masters and all(p.grad is not None for p in model.parameters() if p.requires_grad and kind != "experts")
    learned = _answers(model, batch)
    settle_quantized(model)
    assert torch.equal(_answers(model, batch), learned)
    assert _codes(model).keys() == before.keys() and not _same(_codes(model), before)
    assert not is_learning(model)


def test_exports_and_loads_as_before(tmp_path):
    model = fewbit.quantize(opt(), [token_ids()], preset="w4a16")
    tuned = learn_quantized(copy.deepcopy(model), learn_scales=True)
    _trained(tuned, token_ids())
    settle_quantized(tuned)
    assert [type(m).__name__ for m in tuned.modules()] == [type(m).__name__ for m in model.modules()]
    fewbit.export(tuned, tmp_path / "own")
    again = fewbit.load(tmp_path / "own", model=opt())
    assert _same(_codes(again), _codes(tuned))
    fewbit.export(tuned, tmp_path / "packed", format="compressed_tensors")
    assert list((tmp_path / "packed").glob("*.safetensors"))


def test_kernels_come_back():
    model = quantize_linears(mlp(64))
    freeze(model, exact=True)
    names = [layer.kernel and layer.kernel.name for layer in (model[0], model[2])]
    learn_quantized(model)
    assert model[0].kernel is None
    settle_quantized(model)
    assert [layer.kernel and layer.kernel.name for layer in (model[0], model[2])] == names


def test_tied_weights_stay_one():
    model = fewbit.compress_weights(opt(), mode="int8_asym", all_layers=True)
    learn_quantized(copy.deepcopy(model))
    model = learn_quantized(copy.deepcopy(model))
    head, table = model.lm_head, model.model.decoder.embed_tokens
    assert head._parameters["weight"] is table._parameters["weight"]
    _trained(model, token_ids())
    settle_quantized(model)
    assert head.weight_packed is table.weight_packed
    assert torch.equal(head.weight, table.weight)


def test_the_original_gives_what_lies_between_codes():
    original = mlp()
    model = quantize_linears(copy.deepcopy(original), INT4)
    nudged = encode(original[0].weight, INT4)
    before = _codes(model)
    learn_quantized(model, original=original)
    assert torch.equal(model[0]._parameters["weight"], original[0].weight)
    settle_quantized(model)
    assert _same(_codes(model), before) and torch.equal(nudged.packed, model[0].weight_packed)


@pytest.mark.parametrize("name", [name for name in GRIDS if name not in ("float16", "bfloat16", "float32")])
def test_without_the_original_weights_begin_anywhere_in_their_cells(name):
    model = quantize_linears(mlp(), GRIDS[name])
    middles = model[0].weight.detach().clone()
    learn_quantized(model)
    apart = model[0]._parameters["weight"].detach() - middles.float()
    assert (apart != 0).float().mean() > 0.9 and abs((apart > 0).float().mean() - 0.5) < 0.1
    again = learn_quantized(quantize_linears(mlp(), GRIDS[name]))
    assert torch.equal(again[0]._parameters["weight"], model[0]._parameters["weight"])


_CELLS = ["int4", "int8", "uint4 asym", "full range", "fp4", "nf4", "nvfp4", "fp8_e4m3", "fp6_e2m3"]


@pytest.mark.parametrize("name", _CELLS)
def test_cells_are_filled_evenly(name):
    """As many weights nearer to the middle of their cells as nearer to the edge."""
    model = quantize_linears(mlp(400), GRIDS[name])
    codes, layer = model[0].codes_of("weight"), model[0]
    middles = layer.weight.detach().float().clone()
    learn_quantized(model)
    moved = layer._parameters["weight"].detach() - middles
    edge = torch.zeros_like(moved)  # how far a weight may go in the direction it went, by bisection
    for power in range(-1, 30):
        further = edge + moved.sign() * middles.abs().max() * 2.0**-power
        edge = torch.where(quantize(middles + further, codes.qparams) == codes.codes(), further, edge)
    ends = edge.abs() < middles.abs().max()  # the cells of the largest codes do not
    share = (moved / edge)[ends & (moved != 0)].abs()
    assert share.max() <= 1 and (moved != 0).float().mean() > 0.99
    assert (share < 0.5).float().mean() > 0.4


def test_what_was_clipped_begins_where_it_can_learn():
    original = mlp()
    model = quantize_linears(copy.deepcopy(original), INT4)
    model[0].weight_scale.mul_(0.6)
    x = numbers(64, 40)
    for known in (None, original):
        one = learn_quantized(copy.deepcopy(model), original=known)
        one(x).square().sum().backward()
        assert (one[0]._parameters["weight"].grad != 0).float().mean() > 0.9


def test_other_seeds_begin_elsewhere_and_every_layer_by_itself():
    one, other, again = (
        learn_quantized(quantize_linears(mlp(), INT4), seed=seed)[0]._parameters["weight"] for seed in (0, 1, 0)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_codes_that_the_original_does_not_round_to_stay():
    original = mlp()
    model = quantize_linears(copy.deepcopy(original), INT4)
    before = _codes(model)
    with torch.no_grad():
        original[0].weight[0] *= -1
    learn_quantized(model, original=original)
    begun = model[0]._parameters["weight"]
    assert torch.equal(begun[1:], original[0].weight[1:]) and not torch.equal(begun[0], original[0].weight[0])
    settle_quantized(model)
    assert _same(_codes(model), before)


def test_copies_and_pickles_learn_too():
    model = learn_quantized(quantize_linears(mlp()), learn_scales=True)
    x = numbers(3, 40)
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    third = torch.load(file, weights_only=False)
    for other in (twin, third):
        assert is_learning(other) and torch.equal(other(x), model(x))
        assert other[0]._parameters["weight"] is not model[0]._parameters["weight"]
        assert other.state_dict().keys() == model.state_dict().keys()
    assert len(list(stretches(model))) == 2
    assert {"0.weight", "0.weight_scale", "0.weight_stretch", "0.bias"} <= model.state_dict().keys()


def test_a_half_model_learns_in_float32():
    model = quantize_linears(mlp()).bfloat16()
    x = numbers(3, 40).bfloat16()
    answers = model(x)
    learn_quantized(model)
    assert model[0]._parameters["weight"].dtype is torch.float32 and torch.equal(model(x), answers)
    model(x).float().sum().backward()
    assert model[0]._parameters["weight"].grad.dtype is torch.float32
    settle_quantized(model)
    assert model[0].weight.dtype is torch.bfloat16 and torch.equal(model(x), answers)


def test_a_float_model_is_refused():
    with pytest.raises(UsageError, match="no quantized layers"):
        learn_quantized(mlp())


def test_a_quantized_cache_does_not_cut_the_gradient_and_comes_back():
    """Codes of keys and values have no gradient: with them the key projection would learn nothing."""
    model = fewbit.quantize(transformer("llama"), [tokens()], preset="w8a8", kv_cache="int8")
    tuned = qat.setup(copy.deepcopy(model), Options())
    tuned(tokens()).logits.square().mean().backward()
    assert bool(tuned.model.layers[0].self_attn.k_proj._parameters["weight"].grad.any())
    finished = qat.finish(tuned)
    with torch.no_grad():
        assert torch.equal(finished(tokens()).logits, model(tokens()).logits)
    assert finished.fewbit_cache.keys() == model.fewbit_cache.keys()
