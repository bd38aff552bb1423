# SPDX-License-Identifier: Apache-2.0
"""A model of several widths in the formats that hold them: read again by others, it computes the same."""

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from fewbit import compress_weights
from fewbit.errors import UsageError
from fewbit.modules import huggingface
from fewbit.modules.quantized import get_weight, is_quantized
from small_models import token_ids
from tiny_models import shaken

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of the libraries that read
MIXED = {"bits": 5.6, "group_size": 32, "dataset": [token_ids(2)], "algorithm": "rtn"}


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, tie_word_embeddings=False,
    )  # fmt: skip
    return shaken(LlamaForCausalLM(config))


def values(made):
    """What the codes of the blocks stand for, by layer, and their widths."""
    found = {name: get_weight(m, "weight") for name, m in made.named_modules() if is_quantized(m) and "layers" in name}
    return {name: q.dequantize() for name, q in found.items()}, {name: q.grid.dtype.bits for name, q in found.items()}


def test_transformers_reads_two_widths(tmp_path):
    pytest.importorskip("compressed_tensors")
    import transformers

    wanted, bits = values(compress_weights(llama(), **MIXED))
    assert set(bits.values()) == {4, 8}
    compress_weights(llama(), **MIXED, output=tmp_path / "out", format="compressed-tensors")
    groups = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["config_groups"]
    assert sorted(group["weights"]["num_bits"] for group in groups.values()) == [4, 8]
    with huggingface.quiet(transformers), torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        found = model(token_ids(2)).logits  # weights are decoded in the first call
        for name, weight in wanted.items():
            torch.testing.assert_close(model.get_submodule(name).weight, weight, rtol=0, atol=0)
        original = llama()
        for name, weight in wanted.items():
            original.get_submodule(name).weight.copy_(weight)
        for name in ("lm_head", "model.embed_tokens"):
            original.get_submodule(name).weight.copy_(model.get_submodule(name).weight)
        torch.testing.assert_close(found, original(token_ids(2)).logits, rtol=1e-4, atol=1e-4)


def test_gptq_names_the_layers_of_the_other_width(tmp_path):
    _, bits = values(compress_weights(llama(), **MIXED))
    compress_weights(llama(), **MIXED, output=tmp_path / "out", format="gptq")
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    other = {name for name, width in bits.items() if width != config["bits"]}
    named = {pattern[3:-1].replace("\\", "") for pattern in config["dynamic"] if pattern.startswith("+:")}
    assert named == other and other
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        for name, width in bits.items():
            rows = file.get_slice(f"{name}.qweight").get_shape()[0]
            assert rows == llama().get_submodule(name).in_features * width // 32


def test_awq_has_one_width_and_says_so_before_the_model_is_run(tmp_path):
    model, calls = llama(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(UsageError, match="8-bit codes, not 4") as caught:
        compress_weights(model, **{**MIXED, "dataset": [token_ids(1)] * 20}, output=tmp_path / "out", format="awq")
    assert "model.layers.0" in str(caught.value)
    assert len(calls) <= 2  # what layers there are and which read the same: no pass over the data
    assert not (tmp_path / "out").exists()
