# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models go out with their configuration and come back without a skeleton."""

import json

import pytest
import torch
from torch import nn
from transformers import CLIPConfig

from fewbit.engine.delivering import export, load
from fewbit.errors import DataError, UsageError
from fewbit.modules.huggingface import is_pretrained, read_config
from fewbit.modules.opening import open_model
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


@pytest.fixture
def no_kernels(monkeypatch):
    """Fails where transformers would fetch a kernel, as it does where the library for it is installed."""
    from transformers import modeling_utils

    def fetch(name, *_, **__):
        assert "/" not in name and "flash" not in name, f"{name} was to be fetched"

    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", fetch)
    monkeypatch.setattr(modeling_utils, "is_kernels_available", lambda *_: True)


def change(folder, edit):
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


KERNEL = "kernels-community/flash-attn2"
NAMING_CODE = [
    lambda c: c.update(attn_implementation=KERNEL),
    lambda c: c.update(_attn_implementation=KERNEL),
    lambda c: c.update(_attn_implementation_internal=KERNEL),
    lambda c: c.update(attn_implementation="flash_attention_2"),
    lambda c: c.update(attn_implementation={"": KERNEL, "text_config": KERNEL}),
    lambda c: c["text_config"].update(attn_implementation=KERNEL),
    lambda c: c["vision_config"].update(_attn_implementation=KERNEL),
    lambda c: c.update(attribute_map={"_attn_implementation_internal": "other"}, other=KERNEL),
    lambda c: c.update(experts_implementation="evil/experts"),
]


@pytest.mark.parametrize("edit", NAMING_CODE)
@pytest.mark.usefixtures("no_kernels")
def test_a_configuration_that_names_a_kernel(edit, tmp_path):
    """The outputs are those of code that is here: the name is dropped, in a folder of ours and in any other."""
    model = clip()
    exported = export(quantize_linears(clip()), tmp_path / "out")
    model.save_pretrained(tmp_path / "hf")
    for folder, made, expected in ((exported, load, load(exported)), (tmp_path / "hf", open_model, model)):
        change(folder, edit)
        found = made(folder)
        parts = found.config, found.config.text_config, found.config.vision_config
        assert all(part._attn_implementation in ("sdpa", "eager") for part in parts)
        assert torch.equal(run(found), run(expected))


def test_other_parts_keep_the_code_they_name(tmp_path):
    clip().save_pretrained(tmp_path / "hf")
    names = {"": KERNEL, "text_config": "eager", "vision_config": KERNEL}
    change(tmp_path / "hf", lambda c: c.update(_attn_implementation=names))
    config = read_config(CLIPConfig, tmp_path / "hf")
    assert config._attn_implementation is None and config.vision_config._attn_implementation is None
    assert config.text_config._attn_implementation == "eager"


def test_code_beside_a_configuration_is_not_run(tmp_path, monkeypatch):
    """Not that for the whole, and not that for a part, where transformers would ask at the terminal."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    clip().save_pretrained(tmp_path / "hf")
    code = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
    (tmp_path / "hf" / "evil.py").write_text((tmp_path / "evil.py").read_text())

    def edit(config):
        for part in (config, config["text_config"], config["vision_config"]):
            part.update(auto_map=code, _name_or_path=str(tmp_path / "hf"))

    change(tmp_path / "hf", edit)
    assert torch.equal(run(open_model(tmp_path / "hf")), run(clip()))
    change(tmp_path / "hf", lambda c: c.update(architectures=None))
    assert type(open_model(tmp_path / "hf")).__name__ == "CLIPModel"
    change(tmp_path / "hf", lambda c: c.update(model_type="evil"))
    with pytest.raises(DataError, match="cannot open"):
        open_model(tmp_path / "hf")
    assert not (tmp_path / "ran").exists()
    parts = [read_config(CLIPConfig, tmp_path / "hf"), read_config(CLIPConfig, tmp_path / "hf").text_config]
    assert not any(hasattr(part, "auto_map") for part in parts)


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
