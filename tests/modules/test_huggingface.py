# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models go out with their configuration and come back without a skeleton."""

import json

import pytest
import torch
from torch import nn

from fewbit.engine.delivering import export, load
from fewbit.errors import DataError, UsageError
from fewbit.modules.huggingface import is_pretrained
from quantized_models import quantize_linears
from small_models import opt, token_ids


def llama(**options):
    """Has buffers that no state dict lists: the frequencies of its positions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, max_position_embeddings=64, **options,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=96,
        max_position_embeddings=64,
    )  # fmt: skip
    return BertModel(config).eval()


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=96, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config).eval()


def clip():
    """A configuration with configurations inside."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**part, "vocab_size": 96, "max_position_embeddings": 16, "eos_token_id": 95}
    config = CLIPConfig(text_config=text, vision_config={**part, "image_size": 8, "patch_size": 4}, projection_dim=16)
    return CLIPModel(config).eval()


def run(model):
    with torch.no_grad():
        if hasattr(model, "vision_model"):
            images = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)
            return model(input_ids=token_ids(2), pixel_values=images).logits_per_image
        if model.config.is_encoder_decoder:
            return model(input_ids=token_ids(2), decoder_input_ids=token_ids(2)).logits
        return model(token_ids())[0]


@pytest.mark.parametrize("make", [opt, llama, bert, t5, clip])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_comes_back_from_its_folder_alone(make, dtype, tmp_path):
    model = quantize_linears(make().to(dtype))
    export(model, tmp_path / "out")
    made = load(tmp_path / "out")
    assert type(made) is type(model) and made.dtype is dtype and not made.training
    assert torch.equal(run(made), run(model))
    assert not any(tensor.is_meta for tensor in [*made.parameters(), *made.buffers()])
    assert made.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("code", ["eager", "sdpa"])
def test_attention_runs_the_code_it_ran(code, tmp_path):
    model = quantize_linears(llama(attn_implementation=code))
    export(model, tmp_path / "out")
    assert load(tmp_path / "out").config._attn_implementation == code


def test_a_kernel_from_the_hub_is_not_fetched(tmp_path):
    out = export(quantize_linears(llama()), tmp_path / "out")
    manifest = json.loads((out / "fewbit.json").read_text())
    manifest["huggingface"]["implementations"][""]["attn_implementation"] = "kernels-community/flash-attn"
    (out / "fewbit.json").write_text(json.dumps(manifest))
    assert load(out).config._attn_implementation == "sdpa"


def test_generation_goes_on_as_it_did(tmp_path):
    model = quantize_linears(llama())
    model.generation_config.max_new_tokens = 5
    export(model, tmp_path / "out")
    made = load(tmp_path / "out")
    assert made.generation_config.max_new_tokens == 5
    assert torch.equal(made.generate(token_ids(1)), model.generate(token_ids(1)))


def test_the_configuration_says_nothing_of_other_quantizations_or_of_this_machine(tmp_path):
    model = quantize_linears(llama())
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    model.config._name_or_path = "/home/me/secret"
    out = export(model, tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in config and "secret" not in json.dumps(config)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert model.config.quantization_config["bits"] == 4 and model.config._name_or_path == "/home/me/secret"


def test_transformers_does_not_take_the_folder_for_a_float_model(tmp_path):
    """It would find no weight it knows in a `model.safetensors`, and go on with random ones."""
    from transformers import LlamaForCausalLM

    out = export(quantize_linears(llama()), tmp_path / "out")
    with pytest.raises(OSError, match="no file named"):
        LlamaForCausalLM.from_pretrained(out, local_files_only=True)


class Tokenizer:
    def save_pretrained(self, folder):
        (folder / "tokenizer.json").write_text("{}")
        (folder / "templates").mkdir()
        (folder / "templates" / "chat.jinja").write_text("")


def test_a_tokenizer_goes_along_and_is_replaced_with_the_rest(tmp_path):
    model = quantize_linears(llama())
    out = export(model, tmp_path / "out", tokenizer=Tokenizer())
    assert (out / "templates" / "chat.jinja").is_file()
    assert {"tokenizer.json", "templates/chat.jinja"} <= set(json.loads((out / "fewbit.json").read_text())["files"])
    export(model, out, overwrite=True)
    assert not (out / "tokenizer.json").exists() and not (out / "templates" / "chat.jinja").exists()


def test_a_class_of_the_users_own_needs_the_users_code(tmp_path):
    from transformers import LlamaForCausalLM

    class MyLlama(LlamaForCausalLM):
        pass

    model = quantize_linears(MyLlama(llama().config).eval())
    out = export(model, tmp_path / "out")
    with pytest.raises(UsageError, match="no model class 'MyLlama'"):
        load(out)
    assert torch.equal(run(load(out, MyLlama(llama().config))), run(model))


def test_a_configuration_of_another_size_does_not_fit(tmp_path):
    out = export(quantize_linears(llama()), tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(DataError, match=r"no layer model\.layers\.1"):
        load(out)
    (out / "config.json").write_text(json.dumps({**config, "model_type": "lllama"}))
    with pytest.raises(DataError, match="cannot build") as error:
        load(out)
    assert "config.json" in error.value.where


def test_what_is_a_pretrained_model():
    assert is_pretrained(opt()) and not is_pretrained(nn.Linear(1, 1)) and not is_pretrained(None)
