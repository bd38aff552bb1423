# SPDX-License-Identifier: Apache-2.0
"""`quantize` of a Hugging Face folder with texts: from the command to a folder that transformers loads."""

import json
import os
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import fewbit
from fewbit.errors import DataError, FewbitError, ModelError, UsageError
from fewbit.quantization.journal import Journal
from fewbit.record.schema import json_schema
from tiny_tokenizers import word_tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A tiny Llama that has learned to count: w10 w11 w12 …, so that its outputs mean something."""
    folder = tmp_path_factory.mktemp("counting")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=96, max_position_embeddings=64, bos_token_id=3, eos_token_id=2, pad_token_id=1,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(60):
            first = torch.randint(10, 60, (32, 1))
            ids = first + torch.arange(24)
            loss = model(ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss < 1
    model.to(torch.bfloat16).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path) -> Path:
    rows = [" ".join(f"w{10 + (start * 7 + step) % 80}" for step in range(30)) for start in range(120)]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return file


# the texts are few on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fewbit.errors.FewbitWarning")

OPTIONS = {"samples": 64, "max_length": 16, "progress": False}


def test_a_folder_becomes_a_folder_that_transformers_loads(trained, texts, tmp_path):
    before = {file.name: file.read_bytes() for file in trained.iterdir()}
    path, record = fewbit.quantize(
        trained, texts, preset="int4", output=tmp_path / "out", return_record=True, **OPTIONS
    )
    assert path == tmp_path / "out"
    assert {file.name: file.read_bytes() for file in trained.iterdir()} == before
    assert record.verdict in ("ok", "degraded")
    assert record.quality["samples"] >= 8
    assert record.verification["tensors"] == len(load_file(trained / "model.safetensors"))
    assert {row["weight"] for row in record.layers if row["quantized"]} == {"int4 per_group"}
    assert record.size["result"] < 0.6 * record.size["original"]
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    AutoTokenizer.from_pretrained(path)
    answer = loaded(torch.arange(20, 32)[None]).logits[0, -1].argmax()
    assert int(answer) == 32
    names = {file.name for file in path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "record.json", "config.yaml"} <= names
    assert not [name for name in names if "journal" in name or name.endswith(".tmp")]


def test_the_command(fewbit, trained, texts):
    code, out, err = fewbit(
        "quantize", trained, "--data", texts, "--preset", "w4a16g32", "--samples", 64, "--max-length", 16, "-o", "small"
    )
    assert code == 0, err
    assert "perplexity" in out and "smaller" in out
    assert "vLLM" in err and "to calibrate" in err
    code, _, err = fewbit("quantize", trained, "--data", texts, "--preset", "int4", "--group-size", 48, "-o", "other")
    assert code == 3 and "groups of 48 do not divide" in err


@pytest.mark.parametrize("preset", ["w8a16", "int8", "fp8", "w4a16_asym", "mxfp4_a16", "nvfp4_a16", "w2a16"])
def test_presets(trained, texts, tmp_path, preset):
    _, record = fewbit.quantize(trained, texts, preset=preset, output=tmp_path / "out", return_record=True, **OPTIONS)
    assert record.quality["finite"]
    if preset in ("w8a16", "int8", "fp8"):
        assert record.verdict == "ok", record.summary


def test_without_data_it_is_not_measured(trained, tmp_path):
    _, record = fewbit.quantize(trained, preset="w4a16", output=tmp_path / "out", return_record=True, progress=False)
    assert record.verdict == "not-measured"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out") is not None
    with pytest.raises(UsageError, match="gptq needs calibration data"):
        fewbit.quantize(trained, preset="w4a16", algorithm="gptq", output=tmp_path / "more", progress=False)


def test_algorithms_that_do_something_else_are_refused(trained, texts, tmp_path):
    with pytest.raises(UsageError, match="wanda does not round the weights"):
        fewbit.quantize(trained, texts, preset="w4a16", algorithm="wanda", output=tmp_path / "out", **OPTIONS)
    _, record = fewbit.quantize(
        trained, texts, preset="w4a16", algorithm="hqq", output=tmp_path / "out", return_record=True, **OPTIONS
    )
    assert record.verdict in ("ok", "degraded")


def test_every_tensor_of_the_source_is_in_the_result(trained, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    tensors = load_file(source / "model.safetensors")
    tensors["mtp.layers.0.proj.weight"] = torch.randn(4, 4)
    tensors["model.layers.0.self_attn.extra"] = torch.arange(5)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    fewbit.quantize(source, preset="w4a16", output=tmp_path / "out", progress=False)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["mtp.layers.0.proj.weight"], tensors["mtp.layers.0.proj.weight"])
    assert torch.equal(written["model.layers.0.self_attn.extra"], torch.arange(5))


def test_an_interrupted_run_continues(trained, texts, tmp_path, monkeypatch):
    fewbit.quantize(trained, texts, preset="int4", output=tmp_path / "whole", **OPTIONS)
    write = Journal.write

    def killed(self, block, tensors, facts):
        write(self, block, tensors, facts)
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        fewbit.quantize(trained, texts, preset="int4", output=tmp_path / "parts", **OPTIONS)
    monkeypatch.setattr(Journal, "write", write)
    with pytest.raises(UsageError, match="preset"):
        fewbit.quantize(trained, texts, preset="w4a16_asym", output=tmp_path / "parts", **OPTIONS)
    fewbit.quantize(trained, texts, preset="int4", output=tmp_path / "parts", **OPTIONS)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_the_caller_gets_a_model_without_output(trained, texts):
    model = fewbit.quantize(trained, texts, preset="w8a16", **OPTIONS)
    assert int(model(torch.arange(20, 32)[None]).logits[0, -1].argmax()) == 32


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda f: os.truncate(f / "model.safetensors", 5000), ModelError, "cut short"),
        (lambda f: (f / "model.safetensors").unlink(), ModelError, "weight"),
        (lambda f: (f / "tokenizer.json").unlink(), FewbitError, "tokenizer"),
    ],
    ids=["truncated", "no weights", "no tokenizer"],
)  # fmt: skip
def test_damaged_folders_are_errors_before_anything_is_written(trained, texts, tmp_path, damage, error, message):
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    damage(source)
    with pytest.raises(error, match=message):
        fewbit.quantize(source, texts, preset="int4", output=tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_finite_are_named(trained, texts, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises((DataError, ModelError), match=r"model\.layers\.1\.mlp\.(up|down)_proj"):
        fewbit.quantize(source, texts, preset="int4", output=tmp_path / "out", **OPTIONS)


def test_hub_names(trained, tmp_path, monkeypatch):
    """From the cache of huggingface_hub; without it, one clear error."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="neither a local path nor to be had from the hub"):
        fewbit.quantize("someone/counting", preset="w4a16", output=tmp_path / "out", progress=False)
    repository = tmp_path / "models--someone--counting"
    shutil.copytree(trained, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    fewbit.quantize("someone/counting", preset="w4a16", output=tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("formats", [[], ["compressed_tensors", "gptq"]])
def test_the_model_card_of_a_folder_says_how_to_load_it(trained, texts, tmp_path, monkeypatch, formats):
    monkeypatch.chdir(tmp_path)
    path = fewbit.quantize(trained, texts, preset="int4", group_size=32, format=formats, output="out", **OPTIONS)
    card = (path / "README.md").read_text()
    assert card.startswith("# out\n") and str(trained.parent) not in card and str(tmp_path) not in card
    assert "| size |" in card and "| perplexity |" in card
    assert f"$ fewbit quantize {trained.name} --config out/config.yaml --data DATA" in card
    blocks = dict(re.findall(r"## ([^\n]+)\n\n```python\n(.*?)```", card, re.DOTALL))
    assert list(blocks) == ["PyTorch", "transformers", "vLLM"]
    for runtime, code in blocks.items():
        program, names = compile(code, runtime, "exec"), {}
        (place,) = set(re.findall(r"""['"](out.*?)['"]""", code))
        assert (Path(place) / "config.json").is_file() and ("/" in place) == bool(formats)
        if runtime in ("PyTorch", "transformers"):
            exec(program, names)  # noqa: S102 - the blocks of a card must run
            assert int(names["model"](torch.arange(20, 32)[None]).logits[0, -1].argmax()) == 32
    jsonschema.validate(json.loads((path / "record.json").read_bytes()), json_schema())
