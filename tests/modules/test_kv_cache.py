# SPDX-License-Identifier: Apache-2.0
"""Caches of Hugging Face models, kept as codes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fewbit import UsageError
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.kv_cache import CacheCodec, KeyValueCodecs, attach_cache, cache_layers
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import ScaleType
from small_models import distance, opt

GRIDS = [
    Grid(Dtype.int8, QSchemeType.per_token),
    Grid(Dtype.uint8, QSchemeType.per_token, symmetric=False),
    Grid(Dtype.uint4, QSchemeType.per_group, group_size=8, symmetric=False),
    Grid(Dtype.int3, QSchemeType.per_token, scale_type=ScaleType.float16),
    Grid(Dtype.fp8_e4m3, QSchemeType.per_token),
    Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu),
    Grid(Dtype.int16, QSchemeType.per_token),
    Grid(Dtype.uint8, QSchemeType.per_token, symmetric=False, float_zero=True),
    Grid(Dtype.uint4, QSchemeType.per_group, group_size=8, symmetric=False, float_zero=True),
    Grid(Dtype.int5, QSchemeType.per_token, symmetric=False, float_zero=True, scale_type=ScaleType.bfloat16),
]


def llama(**changes: object) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 64,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, pad_token_id=0, **changes)).eval()


def attached(model: nn.Module, grid: Grid) -> nn.Module:
    codec = lambda: CacheCodec(ActivationQuantizer(grid))  # noqa: E731
    attach_cache(model, {index: KeyValueCodecs(codec(), codec()) for index in cache_layers(model)})
    return model


def tokens(rows: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(1, 64, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.dtype.name}-{g.granularity.value}")
@pytest.mark.parametrize("features", [16, 33])
@pytest.mark.parametrize("away", [0, 40], ids=["around zero", "away from zero"])
def test_records_decode_to_what_the_grid_means(grid, features, away):
    x = torch.randn(2, 3, 5, features, generator=torch.Generator().manual_seed(0)) + away
    codec = CacheCodec(ActivationQuantizer(grid))
    records = codec.encode(x)
    assert records.dtype is torch.uint8 and records.shape[:-1] == x.shape[:-1]
    found = codec.decode(records, features, torch.float32)
    assert torch.equal(found, fake_quantize(x, codec.quantizer.qparams(x)))
    one_by_one = torch.cat([codec.encode(x[:, :, i : i + 1]) for i in range(5)], dim=2)
    assert torch.equal(one_by_one, records)  # a token's record does not depend on its neighbours
    # One token of one head lies at any address, where numbers of several bytes may not begin.
    assert torch.equal(codec.decode(records[1:, 1:2, 3:4], features, torch.float32), found[1:, 1:2, 3:4])


def test_fixed_scales_are_not_repeated_in_every_record():
    grid = Grid(Dtype.fp8_e4m3)
    fixed = from_range(torch.tensor([-3.0]), torch.tensor([3.0]), grid, (1,))
    codec = CacheCodec(ActivationQuantizer(grid, fixed=fixed))
    x = torch.randn(1, 2, 3, 8)
    assert codec.encode(x).shape == (1, 2, 3, 8)
    assert torch.equal(codec.decode(codec.encode(x), 8, torch.float32), fake_quantize(x, codec.quantizer.qparams(x)))


def test_one_scale_for_all_tokens_cannot_be_found_token_by_token():
    with pytest.raises(UsageError, match="per_tensor"):
        CacheCodec(ActivationQuantizer(Grid(Dtype.int8)))


@pytest.mark.parametrize("make", [llama, opt], ids=["llama", "opt"])
def test_the_cache_is_small_and_the_model_still_right(make):
    model = make()
    ids = tokens()
    with torch.no_grad():
        reference = model(ids, use_cache=True)
        coded = attached(copy.deepcopy(model), Grid(Dtype.int8, QSchemeType.per_token))(ids, use_cache=True)
        none = attached(copy.deepcopy(model), Grid(Dtype.int8, QSchemeType.per_token))(ids, use_cache=False)
    assert 0 < distance(coded.logits, reference.logits) < 0.02
    assert torch.equal(none.logits, reference.logits)
    before, after = (output.past_key_values.layers[0].keys for output in (reference, coded))
    assert after.dtype is torch.uint8
    assert after.numel() < before.numel() * 4 * 0.4


def test_step_by_step_equals_all_at_once():
    model = attached(llama(), Grid(Dtype.int8, QSchemeType.per_token))
    ids = tokens()
    with torch.no_grad():
        whole = model(ids, use_cache=True).logits
        cache = model(ids[:, :4], use_cache=True).past_key_values
        rest = model(ids[:, 4:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(rest, whole[:, 4:], rtol=1e-4, atol=1e-5)


def test_generation_with_beams_reorders_records():
    model = llama()
    mask = torch.ones_like(tokens())
    arguments = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "num_beams": 3}
    reference = model.generate(tokens(), **arguments)
    fine = attached(model, Grid(Dtype.int16, QSchemeType.per_token))
    assert torch.equal(fine.generate(tokens(), **arguments), reference)  # 16 bits are too fine to change a choice


def test_sliding_windows_keep_their_length():
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    model = MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=2, sliding_window=4)).eval()
    reference = model(tokens(1, 9), use_cache=True)
    coded = attached(copy.deepcopy(model), Grid(Dtype.int16, QSchemeType.per_token))(tokens(1, 9), use_cache=True)
    assert distance(coded.logits, reference.logits) < 1e-3
    assert coded.past_key_values.layers[0].keys.shape[2] == reference.past_key_values.layers[0].keys.shape[2]


def t5() -> nn.Module:
    """A decoder with more layers than the encoder: their numbers are the same."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 64}
    config = T5Config(**sizes, num_layers=1, num_decoder_layers=2, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config).eval()


def bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    sides = {f"{side}_{part}": size for side in ("encoder", "decoder") for part, size in [
        ("layers", 2), ("attention_heads", 2), ("ffn_dim", 64),
    ]}  # fmt: skip
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = BartConfig(
        d_model=32, vocab_size=64, max_position_embeddings=64, forced_eos_token_id=None, **sides, **special
    )
    return BartForConditionalGeneration(config).eval()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (t5, [f"decoder.block.{i}.layer.0.SelfAttention" for i in (0, 1)]),
        (bart, [f"model.decoder.layers.{i}.self_attn" for i in (0, 1)]),
    ],
)
def test_beside_an_encoder_only_the_decoders_own_tokens_are_coded(make, names):
    model = make()
    assert list(cache_layers(model).values()) == names
    inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(2, 5), "use_cache": True}
    with torch.no_grad():
        reference = model(**inputs)
        fine = attached(copy.deepcopy(model), Grid(Dtype.int16, QSchemeType.per_token))(**inputs)
        coarse = attached(model, Grid(Dtype.int4, QSchemeType.per_token))(**inputs)
    assert distance(fine.logits, reference.logits) < 1e-3 < 10 * distance(coarse.logits, reference.logits)
    caches = fine.past_key_values, reference.past_key_values
    assert all(cache.self_attention_cache.layers[1].keys.shape[2] == 5 for cache in caches)
    assert caches[0].self_attention_cache.layers[1].keys.dtype is torch.uint8
    assert torch.equal(*(cache.cross_attention_cache.layers[0].keys for cache in caches))


def test_generation_beside_an_encoder():
    model = bart()
    arguments = {"input_ids": tokens(), "max_new_tokens": 6, "do_sample": False, "num_beams": 3}
    reference = model.generate(**arguments)
    fine = attached(model, Grid(Dtype.int16, QSchemeType.per_token))
    assert torch.equal(fine.generate(**arguments), reference)


def test_a_decoder_that_is_shown_an_encoders_states():
    """Such a model is no encoder-decoder by itself; whether it attends to one shows in the call."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64, n_positions=32, add_cross_attention=True)
    model = GPT2LMHeadModel(config).eval()
    inputs = {"input_ids": tokens(), "encoder_hidden_states": torch.randn(2, 3, 32), "use_cache": True}
    reference = model(**inputs).logits
    assert distance(attached(model, Grid(Dtype.int16, QSchemeType.per_token))(**inputs).logits, reference) < 1e-3


def test_one_cache_for_both_is_refused():
    from transformers import DynamicCache

    model = attached(t5(), Grid(Dtype.int8, QSchemeType.per_token))
    with pytest.raises(UsageError, match="DynamicCache") as error:
        model(input_ids=tokens(), decoder_input_ids=tokens(2, 5), past_key_values=DynamicCache(), use_cache=True)
    assert "EncoderDecoderCache" in error.value.expected


def test_the_innermost_numbered_modules_fill_the_cache():
    def numbered(index: int, **inner: nn.Module) -> nn.Module:
        module = nn.Module()
        module.layer_idx = index
        for name, part in inner.items():
            setattr(module, name, part)
        return module

    model = nn.Module()
    model.layers = nn.ModuleList(numbered(i, deep=nn.ModuleDict({"attention": numbered(i)})) for i in range(12))
    model.layers[11] = numbered(11)  # its name begins like that of layers.1
    names = cache_layers(model)
    assert list(names) == list(range(12)) and names[1] == "layers.1.deep.attention" and names[11] == "layers.11"


def test_transformers_own_layer_types_are_left_alone():
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    model = attached(llama(), Grid(Dtype.int8, QSchemeType.per_token))
    model(tokens(), use_cache=True)
    assert all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def test_a_model_without_a_cache_is_refused():
    with pytest.raises(UsageError, match="no cache"):
        attach_cache(nn.Linear(2, 2), {})
