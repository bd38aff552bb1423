# SPDX-License-Identifier: Apache-2.0
"""Decoders quantized with data, written as compressed-tensors, read by transformers: what it computes is what we do."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import fewbit
from fewbit.modules import huggingface
from fewbit.schemes.presets import preset
from tiny_models import shaken

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of the libraries that read
BF16 = torch.bfloat16


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, tie_word_embeddings=False,
    )  # fmt: skip
    return shaken(LlamaForCausalLM(config)).to(dtype)


def texts(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 96, (2, 16), generator=draw)} for _ in range(count)]


def answers(model):
    with torch.no_grad():
        return torch.cat([model(**item).logits.double().log_softmax(-1) for item in texts(4, seed=9)])


def divergence(wanted, found):
    """Kullback and Leibler's, a position."""
    return float((wanted.exp() * (wanted - found)).sum(-1).mean())


def loaded(folder, dtype):
    pytest.importorskip("compressed_tensors")
    import transformers

    with huggingface.quiet(transformers):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


# Where scales are found in each call a last bit may decide about a code, hence the differences in KL.
# The preset, what changes it, the model's dtype, the cache, the format; the KL of float and ours, of ours and theirs.
CASES = {
    "int8 fixed": ("w8a8", {}, torch.float32, None, "int-quantized", 0.01, 1e-6),
    "int8 by token": ("w8a8_dynamic", {}, torch.float32, None, "int-quantized", 0.003, 1e-4),
    "int4 beside int8": ("w4a8_dynamic", {"group_size": 32}, torch.float32, None, "int-quantized", 0.1, 1e-4),
    "fp8 fixed": ("fp8", {}, torch.float32, None, "float-quantized", 0.04, 1e-4),
    "fp8 by token": ("fp8_dynamic", {}, torch.float32, None, "float-quantized", 0.02, 1e-4),
    "mxfp4": ("mxfp4", {}, BF16, None, "mxfp4-pack-quantized", 0.35, 0.06),
    "mxfp8": ("mxfp8", {}, BF16, None, "mxfp8-quantized", 0.03, 0.02),
    "nvfp4 weights": ("nvfp4_a16", {}, BF16, None, "nvfp4-pack-quantized", 0.09, 1e-3),
    "nvfp4 weights, fp8 cache": ("nvfp4_a16", {}, BF16, "fp8", "nvfp4-pack-quantized", 0.1, 0.01),
    "int8, fp8 cache": ("w8a8", {}, torch.float32, "fp8", "int-quantized", 0.02, 1e-4),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_what_was_quantized(case, tmp_path):
    name, changes, dtype, cache, format, lost, apart = CASES[case]
    model, config = llama(dtype), preset(name, exclude=["lm_head"], **changes)
    made = fewbit.quantize(model, texts(20), preset=config, kv_cache=cache, advanced_parameters={"exact": True})
    folder = fewbit.export(made, tmp_path / "out", format="compressed_tensors")
    written = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert written["format"] == format
    assert (written["kv_cache_scheme"] is not None) is (cache is not None)
    theirs = answers(loaded(folder, dtype))
    assert divergence(answers(made), theirs) < apart
    assert divergence(answers(model), theirs) < lost
