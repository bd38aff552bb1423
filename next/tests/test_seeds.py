# SPDX-License-Identifier: Apache-2.0
"""The calls that the seeds print for PyTorch: the three strategies of 001, the loaders of 000.

Claims 0.* and 1.* of the list of claims; the models are tiny and random.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fewbit import (
    Config,
    DataError,
    Dtype,
    FewbitWarning,
    ModelQuantizer,
    PerChannelMinMaxObserver,
    PerTensorMinMaxObserver,
    QSchemeType,
    QuantizationConfig,
    QuantizationSpec,
    RoundType,
    ScaleType,
    UsageError,
)

transformers = pytest.importorskip("transformers")

UINT4 = QuantizationSpec(
    dtype=Dtype.uint4, observer_cls=PerChannelMinMaxObserver, symmetric=False, scale_type=ScaleType.float,
    round_method=RoundType.half_even, qscheme=QSchemeType.per_group, ch_axis=0, is_dynamic=False, group_size=32,
)  # fmt: skip
INT8 = QuantizationSpec(
    dtype=Dtype.int8, qscheme=QSchemeType.per_tensor, observer_cls=PerTensorMinMaxObserver, symmetric=True,
    scale_type=ScaleType.float, round_method=RoundType.half_even, is_dynamic=True,
)  # fmt: skip
FP8 = QuantizationSpec(
    dtype=Dtype.fp8_e4m3, qscheme=QSchemeType.per_tensor, observer_cls=PerTensorMinMaxObserver, is_dynamic=False
)
STRATEGIES = {
    "weight_only": QuantizationConfig(weight=UINT4),
    "dynamic": QuantizationConfig(input_tensors=INT8, weight=INT8),
    "static": QuantizationConfig(input_tensors=FP8, weight=FP8),
}


@pytest.fixture
def opt():
    """A decoder with the layers of facebook/opt-125m, its head tied to the embedding."""
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=96, hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=64,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config).eval()


@pytest.fixture
def text():
    """The token ids of one short text."""
    return torch.tensor([[2, 31, 6, 141, 32, 47, 116]]) % 96


def quantize(opt, text, strategy):
    quantizer = ModelQuantizer(Config(global_quant_config=STRATEGIES[strategy]))
    if strategy == "static":
        with pytest.warns(FewbitWarning, match="1 sample is few to calibrate with"):
            return quantizer, quantizer.quantize_model(opt, DataLoader(text))
    return quantizer, quantizer.quantize_model(opt, DataLoader(text))


def linear_layers(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_001_weight_only_is_the_min_max_formula(opt, text):
    _, quantized = quantize(opt, text, "weight_only")
    for name, layer in linear_layers(opt).items():
        groups = layer.weight.detach().reshape(len(layer.weight), -1, 32)
        low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
        scale = ((high - low).double() / 15).float()
        scale[scale == 0] = 1
        zero = -torch.round(low / scale)
        integers = (torch.round(groups / scale) + zero).clamp(0, 15)
        expected = ((integers - zero) * scale).reshape(layer.weight.shape)
        assert torch.equal(quantized.get_submodule(name).weight, expected), name
    assert quantized.lm_head.weight_packed is quantized.model.decoder.embed_tokens.weight_packed


def test_001_dynamic_scales_follow_the_input(opt, text):
    _, quantized = quantize(opt, text, "dynamic")
    name, layer = next(iter(linear_layers(opt).items()))
    step = (layer.weight.abs().max().double() / 127.5).float()
    weight = torch.round(layer.weight / step).clamp(-128, 127) * step
    for factor in (1.0, 100.0, 0.01):
        x = torch.randn(2, 5, 64) * factor
        scale = (x.abs().max().double() / 127.5).float()
        expected = nn.functional.linear(torch.round(x / scale).clamp(-128, 127) * scale, weight, layer.bias)
        assert torch.equal(quantized.get_submodule(name)(x), expected)
    zeros = torch.zeros(1, 5, 64)
    assert torch.equal(quantized.get_submodule(name)(zeros), nn.functional.linear(zeros, weight, layer.bias))


def test_001_static_scales_are_those_of_the_calibration_text(opt, text):
    _, quantized = quantize(opt, text, "static")
    seen = {}
    handles = [
        layer.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0].abs().max()}))
        for name, layer in linear_layers(opt).items()
    ]
    with torch.no_grad():
        opt(text)
    for handle in handles:
        handle.remove()
    for name, layer in linear_layers(opt).items():
        result = quantized.get_submodule(name)
        assert result.input_quantizer.scale.item() == pytest.approx(seen[name].item() / 448, rel=1e-6)
        step = (layer.weight.abs().max().double() / 448).float()
        expected = (layer.weight / step).clamp(-448, 448).to(torch.float8_e4m3fn).float() * step
        assert torch.equal(result.weight, expected)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_001_one_interface_freeze_and_generate(opt, text, strategy):
    digest, states = _digest(opt), _random_states()
    quantizer, quantized = quantize(opt, text, strategy)
    frozen = quantizer.freeze(quantized)
    with torch.no_grad():
        expected, out, fast = opt(text).logits, quantized(text).logits, frozen(text).logits
    assert 0 < (out - expected).norm() < 0.3 * expected.norm()
    assert (fast - out).norm() < 0.02 * expected.norm()
    assert frozen.generate(text, max_new_tokens=2, do_sample=False).shape == (1, 9)
    assert quantized.fewbit_record is quantizer.record and quantizer.record.verdict == "not-measured"
    assert _digest(opt) == digest and _same_states(states)
    assert type(opt.lm_head) is nn.Linear and "fewbit_record" not in vars(opt)


def test_001_only_static_quantization_needs_the_loader(opt):
    for strategy in ("weight_only", "dynamic"):
        ModelQuantizer(Config(global_quant_config=STRATEGIES[strategy])).quantize_model(opt)
    with pytest.raises(UsageError, match="data-required"):
        ModelQuantizer(Config(global_quant_config=STRATEGIES["static"])).quantize_model(opt)


def test_001_variations(opt, text):
    loader = DataLoader(torch.randint(0, 96, (60, 12)), batch_size=10)
    weight = QuantizationSpec("int8", qscheme="per_channel", ch_axis=0)
    inputs = QuantizationSpec("int8", observer_cls="min_max")
    base = QuantizationConfig(weight=weight, input_tensors=inputs)
    variations = {
        "exclude": Config(base, exclude=["lm_head", "*.fc1"]),
        "by name": Config(base, layer_quant_config={"*.fc1": {"weight": {"dtype": "int4", "group_size": 40}}}),
        "by type": Config(layer_type_quant_config={nn.Linear: base}),
        "embedding": Config(layer_type_quant_config={"Embedding": QuantizationConfig(weight=weight)}),
        "output": Config(QuantizationConfig(weight=weight, output_tensors=inputs)),
        "bias": Config(QuantizationConfig(weight=weight, bias=QuantizationSpec("int32"))),
        "other axis": Config(QuantizationConfig(weight=QuantizationSpec("int8", qscheme="per_channel", ch_axis=1))),
        "floor": Config(QuantizationConfig(weight=QuantizationSpec("int8", round_method="floor"))),
        "pof2": Config(QuantizationConfig(weight=QuantizationSpec("int8", scale_type="pof2"), input_tensors=inputs)),
        "float zero": Config(
            QuantizationConfig(weight=QuantizationSpec("uint4", group_size=32, zero_point_type="float32"))
        ),
        **{
            name: Config(QuantizationConfig(weight=weight, input_tensors=QuantizationSpec("int8", observer_cls=name)))
            for name in ("histogram", "percentile", "mse", "entropy", "moving_average")
        },
        "gptq": Config(QuantizationConfig(weight=QuantizationSpec("int4", group_size=32, algorithm="gptq"))),
    }
    with torch.no_grad():
        expected = opt(text).logits
        for name, config in variations.items():
            quantizer = ModelQuantizer(config)
            quantized = quantizer.quantize_model(opt, loader)
            error = (quantized(text).logits - expected).norm() / expected.norm()
            assert 0 < error < 0.3, (name, error)
            assert quantizer.record.quality["samples"] == 20, name
            frozen = quantizer.freeze(quantized, exact=True)
            assert torch.allclose(frozen(text).logits, quantized(text).logits, atol=2e-3), name


def test_001_wrong_configurations(opt):
    with pytest.raises(UsageError, match="lm_hed"):
        ModelQuantizer(Config(STRATEGIES["weight_only"], exclude=["lm_hed"])).plan(opt)
    with pytest.raises(UsageError, match="group_size"):
        QuantizationSpec("uint4", qscheme="per_group").complete("weight")


class Reader(nn.Module):
    """Takes `input_ids` by name, as the loaders of the seed yield them."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, input_ids):
        return self.net(input_ids)


def my_collate_fn(blocks):
    """As printed, without a device."""
    return {"input_ids": torch.Tensor([block["input_ids"] for block in blocks])}


LOADERS = {
    "tensor": lambda: DataLoader(torch.rand(128, 128), batch_size=4, shuffle=False),
    "list of dicts": lambda: DataLoader(
        [{"input_ids": torch.rand(128, 128)}, {"input_ids": torch.rand(128, 128)}], batch_size=None, shuffle=False
    ),
    "list of tensors": lambda: DataLoader([torch.rand(128, 128), torch.rand(128, 128)], batch_size=None),
    "dict": lambda: DataLoader({"input_ids": torch.rand(128, 128)}, batch_size=4, collate_fn=my_collate_fn),
}


@pytest.mark.filterwarnings("ignore::fewbit.FewbitWarning")
@pytest.mark.parametrize("preset", ["w8a8", "w4a16", "w8a8_dynamic", "fp8_static"])
@pytest.mark.parametrize("loader", LOADERS)
def test_000_loaders_as_printed(loader, preset):
    torch.manual_seed(0)
    model, x = Reader().eval(), torch.rand(8, 128)
    digest, states = _digest(model), _random_states()
    quantizer = ModelQuantizer(preset)
    quantized = quantizer.quantize_model(model, LOADERS[loader]() if loader == "dict" else _isolated(LOADERS[loader]))
    with torch.no_grad():
        error = (quantized(x) - model(x)).norm() / model(x).norm()
    assert 0 < error < {"w4a16": 0.15, "fp8_static": 0.08}.get(preset, 0.02)
    assert quantizer.record.data["items"] + quantizer.record.data["held_out"] >= 2
    assert _digest(model) == digest
    assert loader == "dict" or _same_states(states)


def _isolated(make):
    from fewbit.rng import isolated

    with isolated():
        return make()


@pytest.mark.parametrize("batch_size", [4, 5])
@pytest.mark.parametrize("shape", ["tensor", "dicts", "encoding", "generator"])
def test_000_token_ids_for_a_language_model(opt, shape, batch_size):
    ids = torch.randint(0, 96, (48, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    data = {
        "tensor": lambda: DataLoader(ids, batch_size=batch_size, shuffle=True),
        "dicts": lambda: DataLoader([{"input_ids": row, "attention_mask": m} for row, m in zip(ids, mask)], batch_size),
        "encoding": lambda: transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask}),
        "generator": lambda: (part for part in ids.split(batch_size)),
    }[shape]()
    quantizer = ModelQuantizer("w8a8")
    quantized = quantizer.quantize_model(opt, data)
    with torch.no_grad():
        error = (quantized(ids).logits - opt(ids).logits).norm() / opt(ids).logits.norm()
    assert error < 0.05
    assert quantizer.record.quality["samples"] >= 10


def test_000_float_ids_are_refused_with_the_cure(opt):
    loader = DataLoader({"input_ids": torch.rand(128, 16)}, batch_size=4, collate_fn=my_collate_fn)
    with pytest.raises(DataError, match=r"\.long\(\)"):
        ModelQuantizer("w8a8").quantize_model(opt, loader)


@pytest.mark.filterwarnings("ignore::fewbit.FewbitWarning")
def test_000_rows_without_a_batch_axis_and_an_empty_loader(opt):
    ids = torch.randint(0, 96, (24, 10), generator=torch.Generator().manual_seed(1))
    quantizer = ModelQuantizer("w8a8")
    quantizer.quantize_model(opt, DataLoader(ids, batch_size=None))
    assert quantizer.record.data["items"] == 16 and quantizer.record.data["held_out"] == 8
    with pytest.raises(DataError, match="empty"):
        ModelQuantizer("w8a8").quantize_model(opt, DataLoader([]))


def _digest(model):
    content = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        content.update(name.encode() + tensor.detach().numpy().tobytes())
    content.update(repr([(n, type(m).__name__, m.training) for n, m in model.named_modules()]).encode())
    content.update(repr([(n, p.requires_grad) for n, p in model.named_parameters()]).encode())
    return content.hexdigest()


def _random_states():
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _same_states(before):
    after = _random_states()
    numpy_same = all(np.array_equal(a, b) for a, b in zip(before[1], after[1]))
    return torch.equal(before[0], after[0]) and numpy_same and before[2] == after[2]
