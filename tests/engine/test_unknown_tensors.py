# SPDX-License-Identifier: Apache-2.0
"""Tensors that the model class does not know, such as multi-token prediction layers, are not lost on the way."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fewbit
from fewbit.engine.checkpoint import compress_checkpoint
from fewbit.exporters._unknown_tensors import unknown_tensors
from fewbit.modules.opening import open_model
from fewbit.record import Record
from sparse_examples import SIZES, decoder, encoder
from tiny_models import transformer

EXTRA = {
    "mtp.0.eh_proj.weight": torch.arange(64, dtype=torch.bfloat16).reshape(8, 8),
    "mtp.0.norm.weight": torch.arange(8, dtype=torch.float32),
    "mtp.count": torch.tensor(3),
}
FORMATS = ["compressed_tensors", "gptq", "awq"]


@pytest.fixture
def folder(tmp_path):
    """A Llama with tensors that LlamaForCausalLM ignores."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = decoder(tmp_path / "base")  # with a tokenizer
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=96, max_position_embeddings=64)).save_pretrained(made)
    path = made / "model.safetensors"
    save_file(load_file(path) | EXTRA, path, metadata={"format": "pt"})
    return made


def _data(count=4):
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(4, 90, (1, 16), generator=draw)} for _ in range(count)]


def _all_tensors(out):
    found = {}
    for path in sorted(out.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def _same(out):
    found = _all_tensors(out)
    return all(name in found and found[name].dtype == each.dtype and torch.equal(found[name], each)
               for name, each in EXTRA.items())  # fmt: skip


def _noted(out, what="copied"):
    lines = Record.from_json((out / "record.json").read_bytes()).lines
    return sorted(line["where"] for line in lines if line["what"] == what)


def _mode(format):
    return {"mode": "int4_asym" if format == "awq" else "int4_sym", "group_size": 32, "all_layers": False}


@pytest.mark.parametrize("format", ["safetensors", *FORMATS])
@pytest.mark.parametrize("data", [True, False])
def test_they_are_copied_into_every_folder(folder, tmp_path, format, data):
    more = {"dataset": _data(), "algorithm": "gptq"} if data else {}
    out = fewbit.compress_weights(folder, **_mode(format), format=format, output=tmp_path / "out", **more)
    assert _same(out) and _noted(out) == sorted(EXTRA)
    assert json.loads((out / "fewbit.json").read_bytes())["copied_tensors"] == sorted(EXTRA)
    if format == "safetensors":
        fewbit.load(out)(_data()[0]["input_ids"])
        return
    index = json.loads((out / "model.safetensors.index.json").read_bytes())
    places = {name: path.name for path in out.glob("*.safetensors") for name in load_file(path)}
    assert index["weight_map"] == places
    size = sum(each.nbytes for each in _all_tensors(out).values())
    assert index["metadata"]["total_size"] == size
    how = json.loads((out / "config.json").read_bytes())["quantization_config"]
    said = {"compressed_tensors": "ignore", "gptq": "dynamic", "awq": "modules_to_not_convert"}[format]
    assert any("mtp" in name and "eh_proj" in name for name in how[said])


@pytest.mark.parametrize("shard_bytes", [20_000, 4 << 30])
def test_file_to_file_they_are_copied_too(folder, tmp_path, shard_bytes):
    out = compress_checkpoint(
        folder, tmp_path / "out", mode="int4_sym", group_size=32, algorithm="rtn", shard_bytes=shard_bytes
    )
    assert _same(out) and _noted(out) == sorted(EXTRA)
    index = json.loads((out / "model.safetensors.index.json").read_bytes())
    assert set(EXTRA) <= index["weight_map"].keys()


def test_a_model_that_transformers_opened_and_one_that_fewbit_loaded_again(folder, tmp_path):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    small = fewbit.compress_weights(model, **_mode("gptq"))
    first = fewbit.export(small, tmp_path / "first")
    assert _same(first) and _noted(first) == sorted(EXTRA)
    fewbit.export(small, tmp_path / "again")
    assert len(_noted(tmp_path / "again")) == len(EXTRA)  # noted once
    assert _same(fewbit.export(fewbit.load(first), tmp_path / "third", format="compressed_tensors"))


def test_a_finetuned_model_has_them_too(folder, tmp_path):
    pytest.importorskip("accelerate")
    rows = [{"text": "w12 w13 w14 w15"} for _ in range(8)]
    run = {"max_steps": 1, "batch_size": 4, "device": "cpu", "tensorboard": False, "validation": False}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fewbit.finetune(folder, path, output=tmp_path / "out", **run)
    assert _same(tmp_path / "out") and _noted(tmp_path / "out") == sorted(EXTRA)
    open_model(tmp_path / "out")


def test_gguf_names_what_it_cannot_hold(folder, tmp_path):
    pytest.importorskip("gguf")
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    small = fewbit.compress_weights(model, **_mode("gguf"))
    with pytest.warns(UserWarning, match=r"3 tensors that the model class does not know.*mtp\.0\.eh_proj\.weight"):
        out = fewbit.export(small, tmp_path / "out", format="gguf", tokenizer=False)
    assert _noted(out, "left-out") == sorted(EXTRA)


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "opt", "gpt2", "t5", "mixtral", "gpt_oss", "llama4"])
def test_no_tensor_of_the_model_is_taken_for_unknown(tmp_path, name):
    """Tied heads, and experts that transformers stacks and renames."""
    made = transformer(name)
    made.save_pretrained(tmp_path)
    model = type(made).from_pretrained(tmp_path)
    assert unknown_tensors(model) == {}
    small = fewbit.compress_weights(model, mode="int8_sym")
    assert unknown_tensors(small) == {}


def test_the_prefix_of_a_base_model_does_not_count(tmp_path):
    from transformers import BertForSequenceClassification, BertModel

    base = encoder(tmp_path / "base", "BertModel")
    model = BertForSequenceClassification.from_pretrained(base)
    assert set(unknown_tensors(model)) == set()
    model.save_pretrained(tmp_path / "whole")
    assert set(unknown_tensors(BertModel.from_pretrained(tmp_path / "whole"))) == {
        "classifier.weight", "classifier.bias",
    }  # fmt: skip


@pytest.mark.parametrize("compact", [True, False])
def test_a_sparse_model_has_them_too(folder, tmp_path, compact):
    pytest.importorskip("accelerate")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"w{12 + i} w13 w14 w15"}) + "\n" for i in range(8)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("version: 1\nmode: one-shot\nstages:\n- prune: {sparsity: 0.5}\n")
    out = fewbit.sparsify(
        folder, rows, recipe=recipe, samples=4, seqlen=8, compact=compact, validation=False, output=tmp_path / "out"
    )
    found = _all_tensors(out / "deployment")
    assert all(torch.equal(found[name], each) for name, each in EXTRA.items()) and _noted(out) == sorted(EXTRA)
