# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models without some channels and heads, saved and loaded as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from channel_nets import job_for
from fewbit.errors import UsageError
from fewbit.sparsity.stages import shrink
from tiny_models import shaken, transformer


def _batches(count: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(4, 40, (2, 9), generator=generator) for _ in range(count)]


def _vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    return shaken(ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)))


def _round_trip(made: Any, item: torch.Tensor, folder: Path) -> None:
    made.save_pretrained(folder)
    again = type(made).from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.equal(again(item)[0], made(item)[0])


@pytest.mark.parametrize(
    ("name", "options", "config"),
    [
        ("llama", {"channels": 0.25, "heads": 0.5}, {"intermediate_size": 18, "num_attention_heads": 2, "head_dim": 4}),
        ("bert", {"channels": 0.5}, {"intermediate_size": 12, "num_attention_heads": 4}),
        ("gpt2", {"channels": 0.5}, {"n_inner": 32, "n_head": 4}),
    ],
)
def test_the_configuration_says_the_new_sizes(name: str, options: Any, config: Any, tmp_path: Path) -> None:
    model, data = transformer(name), _batches()
    before = model.config.to_dict()
    made = shrink.run(model, shrink.Settings(**options), job_for(model, data))
    assert {key: getattr(made.config, key) for key in config} == config
    assert model.config.to_dict() == before and all(part.config is not model.config for part in (made, made.base_model))
    _round_trip(made, data[0][:1, :5], tmp_path)


def test_a_key_head_takes_its_query_heads_along() -> None:
    model = transformer("llama")
    made = shrink.run(model, shrink.Settings(heads=0.5, compensate=False), job_for(model, _batches()))
    for old, new in zip(model.model.layers, made.model.layers, strict=True):
        own, left = old.self_attn.k_proj.weight.view(2, 4, 16), new.self_attn.k_proj.weight
        kept = next(head for head in range(2) if torch.equal(own[head], left))
        assert torch.equal(new.self_attn.q_proj.weight, old.self_attn.q_proj.weight.view(2, 8, 16)[kept])
        assert torch.equal(new.self_attn.o_proj.weight, old.self_attn.o_proj.weight.view(16, 2, 8)[:, kept])


def test_a_vision_transformer(tmp_path: Path) -> None:
    model = _vit()
    data = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    made = shrink.run(model, shrink.Settings(channels=0.5), job_for(model, data))
    assert made.config.intermediate_size == 12
    _round_trip(made, data[0][:1], tmp_path)
    made = shrink.run(model, shrink.Settings(heads=0.5, reloadable=False), job_for(model, data))
    assert sum(p.numel() for p in made.parameters()) < sum(p.numel() for p in model.parameters())


def test_heads_that_no_configuration_can_say_are_refused_unless_told_otherwise() -> None:
    model, data = transformer("gpt2", n_layer=1), _batches()
    with pytest.raises(UsageError, match="could not be saved and loaded again") as caught:
        shrink.run(model, shrink.Settings(heads=0.5), job_for(model, data))
    assert "reloadable: false" in str(caught.value)
    made = shrink.run(model, shrink.Settings(heads=0.5, reloadable=False), job_for(model, data))
    attention = made.transformer.h[0].attn
    assert tuple(attention.c_attn.weight.shape) == (16, 24) and tuple(attention.c_proj.weight.shape) == (8, 16)
    with torch.no_grad():
        assert made(data[0][:1, :4])[0].shape == (1, 4, 40)


def test_sizes_in_lists_and_of_two_stacks(tmp_path: Path) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
    images = [torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    model = shaken(ResNetForImageClassification(ResNetConfig(**sizes)))
    made = shrink.run(model, shrink.Settings(channels=0.5), job_for(model, images))
    assert (made.config.embedding_size, made.config.hidden_sizes) == (4, [4, 8])
    _round_trip(made, images[0][:1], tmp_path)
    model = transformer("t5")
    pairs = [{"input_ids": ids, "decoder_input_ids": ids[:, :5]} for ids in _batches(2)]
    made = shrink.run(model, shrink.Settings(channels=0.5), job_for(model, pairs))
    assert made.config.d_ff == 12 and made.decoder.config.d_ff == made.encoder.config.d_ff == 12
    with torch.no_grad():
        assert made(**pairs[0])[0].shape == (2, 5, 40)


def test_heads_with_a_table_of_places() -> None:
    from transformers import SwinConfig, SwinModel

    sizes = {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1], "num_heads": [4], "window_size": 2}
    model = shaken(SwinModel(SwinConfig(**sizes)))
    images = [torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    made = shrink.run(model, shrink.Settings(heads=0.25, reloadable=False), job_for(model, images))
    tables = [tensor for name, tensor in made.named_parameters() if "position_bias" in name]
    assert [table.shape[1] for table in tables] == [3]
