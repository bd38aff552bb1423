# SPDX-License-Identifier: Apache-2.0
"""`plan` and `compare` of Hugging Face folders."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM, LlamaConfig

import fewbit
from tiny_tokenizers import word_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny Llama."""
    path = tmp_path_factory.mktemp("llama")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=96, max_position_embeddings=64, bos_token_id=3, eos_token_id=2, pad_token_id=1,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path)
    word_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    rows = [" ".join(f"w{10 + (start * 7 + step) % 80}" for step in range(30)) for start in range(60)]
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("preset", ["w4a16g32", "w8a8_dynamic"])
def test_folders_are_compared_token_by_token(folder, texts, tmp_path, preset):
    result = fewbit.quantize(folder, preset=preset, output=tmp_path / "small", progress=False)
    record = fewbit.compare(folder, result, texts, samples=20, max_length=16, runs=1, progress=False)
    quality = record.quality
    assert record.verdict in ("ok", "degraded") and quality["samples"] >= 20 and quality["tokens"] >= 300
    before, after = quality["perplexity"]
    assert quality["perplexity_ratio"] == pytest.approx(after / before)
    assert 0 < quality["divergence"] < 0.5 and 0.5 < quality["agreement"] <= 1
    assert record.size["original"] > record.size["result"]
    from fewbit.record.screen import screen

    assert "perplexity" in screen(record) and "KL divergence" in screen(record)


def test_a_model_equals_itself(folder, texts):
    record = fewbit.compare(folder, folder, texts, samples=10, max_length=16, runs=1, progress=False)
    assert record.quality["perplexity_ratio"] == 1 and record.quality["divergence"] == 0 and record.verdict == "ok"


def test_encoders_have_no_perplexity(texts):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=96,
            max_position_embeddings=32, initializer_range=0.5,
        )  # fmt: skip
        model = BertForMaskedLM(config).eval()
    draw = torch.Generator().manual_seed(0)
    data = [{"input_ids": torch.randint(0, 96, (12,), generator=draw).numpy()} for _ in range(10)]
    record = fewbit.compare(model, model, data, runs=1, progress=False)
    assert "perplexity" not in record.quality and record.quality["agreement"] == 1


def test_the_callers_state_stays_as_it_was(folder, texts):
    enabled, threads = torch.is_grad_enabled(), torch.get_num_threads()
    fewbit.compare(folder, folder, texts, samples=8, max_length=16, runs=1, threads=1, progress=False)
    assert torch.is_grad_enabled() == enabled and torch.get_num_threads() == threads


def test_the_plan_of_a_folder(folder, texts, tmp_path):
    plan = fewbit.plan(folder, preset="int4", output=tmp_path / "plan.yaml", config={"samples": 32, "max_length": 40})
    assert plan.preset.name == "w4a16g64"  # 128 does not divide 64
    text = str(plan)
    assert "model.layers.{0-2}.mlp.up_proj" in text and "x3" in text and "int4 per_group 64" in text
    assert plan.facts["activations_bytes"] in (2 * 64 * 40 * 64 * size for size in (2, 4))
    assert "64 sequences of 40 tokens" in text and "roughly" in text
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 100
    assert plan.settings == {"samples": 32, "max_length": 40, "preset": "w4a16g64", "target": "vllm"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fewbit.FewbitWarning)
        fewbit.quantize(folder, texts, config=tmp_path / "plan.yaml", output=tmp_path / "out", progress=False)
    rows = fewbit.Record.read(tmp_path / "out").layers
    assert [row["quantized"] for row in rows] == [entry.quantized for entry in plan.layers]
