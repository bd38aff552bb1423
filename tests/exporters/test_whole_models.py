# SPDX-License-Identifier: Apache-2.0
"""Models of several kinds through the whole journey: quantized with data, frozen, exported, loaded, frozen again."""

import pytest
import torch
from torch import nn

from fewbit.engine.delivering import export, load
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.schemes.config import Config
from fewbit.schemes.presets import preset
from small_models import distance, token_ids


def gpt2():
    """Its linear layers are Hugging Face's `Conv1D`; its head is tied to the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=96, n_positions=64, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def mixtral():
    """Its experts are stacks in one tensor."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=4, vocab_size=96, max_position_embeddings=64,
    )  # fmt: skip
    return MixtralForCausalLM(config).eval()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(96, 16)
        self.lstm = nn.LSTM(16, 16, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(32, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.head = nn.Linear(8, 96)

    def forward(self, ids):
        return self.head(self.encoder(self.gru(self.lstm(self.embed(ids))[0])[0]))


def recurrent():
    torch.manual_seed(0)
    return Recurrent().eval()


def run(model):
    with torch.no_grad():
        out = model(token_ids())
        return out if isinstance(out, torch.Tensor) else out.logits


@pytest.mark.parametrize(("make", "name"), [(gpt2, "w8a8"), (mixtral, "w4a16"), (recurrent, "w8a8")])
def test_the_whole_journey(make, name, tmp_path):
    quantizer = ModelQuantizer(name)
    model = quantizer.quantize_model(make(), [token_ids()[i : i + 1] for i in range(5)])
    frozen = quantizer.freeze(model)
    export(model, tmp_path / "model")
    export(frozen, tmp_path / "frozen")
    skeleton = make() if make is recurrent else None
    assert torch.equal(run(load(tmp_path / "model", skeleton)), run(model))
    assert torch.equal(run(load(tmp_path / "frozen", skeleton, freeze=True)), run(frozen))
    files = [(tmp_path / folder / "fewbit.safetensors").read_bytes() for folder in ("model", "frozen")]
    assert files[0] == files[1]


def test_a_coded_cache_comes_back(tmp_path):
    cache = {"dtype": "int8", "qscheme": "per_token", "is_dynamic": True}
    model = ModelQuantizer(preset("w4a16", kv_cache_quant_config=cache)).quantize_model(mixtral())
    made = load(export(model, tmp_path / "out"))
    ids = token_ids(2)

    def last(network):
        with torch.no_grad():
            past = network(ids[:, :-1], use_cache=True).past_key_values
            return network(ids[:, -1:], past_key_values=past).logits

    assert torch.equal(last(made), last(model)) and len(made.fewbit_cache) == 1


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_the_coded_cache_of_a_decoder_beside_an_encoder_comes_back(tmp_path, dynamic):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=96, decoder_start_token_id=0)
    model, ids = T5ForConditionalGeneration(config).eval(), token_ids(2)
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
    reference = model(**inputs).logits
    cache = {"dtype": "int8", "qscheme": "per_token" if dynamic else "per_tensor", "is_dynamic": dynamic}
    quantizer = ModelQuantizer(Config(kv_cache_quant_config=cache))
    assert {each.point.layer for each in quantizer.plan(model).activations} == {"decoder.block.0.layer.0.SelfAttention"}
    coded = quantizer.quantize_model(model, [inputs])
    assert 0 < distance(coded(**inputs).logits, reference) < 0.02
    assert torch.equal(load(export(coded, tmp_path / "out"))(**inputs).logits, coded(**inputs).logits)
