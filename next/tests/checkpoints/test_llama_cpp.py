# SPDX-License-Identifier: Apache-2.0
"""llama.cpp itself loads the files and computes what transformers does."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fewbit.checkpoints._base import CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._open import open_weights
from fewbit.checkpoints._verification import write_verified
from fewbit.checkpoints.gguf import CHECKPOINT
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.scales import ScaleType
from tiny_checkpoints import write_quantized
from tiny_language_models import LLAMA3_PATTERN, MODELS, TEKKEN_PATTERN, TEXTS, byte_level, save, sentencepiece, tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
IDS = [7 * number % 320 for number in range(1, 49)]
PRESETS = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_k_s", "q4_0", "q4_1", "q3_k_m", "q2_k", "fp16", "bf16")


def write(source, folder, preset=""):
    folder.mkdir()
    weights = open_weights(source)
    tensors = (NamedTensor(name, weights.read(name)) for name in weights)
    files, _ = write_verified(CHECKPOINT, folder, tensors, CheckpointJob(source, {}, preset=preset))
    return {"path": str(folder / files[0]), "ids": IDS, "vocabulary": 320}


def run(folder, jobs):
    (folder / "job.json").write_text(json.dumps(jobs))
    script = Path(__file__).parents[1] / "llama_cpp_run.py"
    command = [sys.executable, str(script), str(folder / "job.json"), str(folder / "result.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


def log_probabilities(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].float().log_softmax(-1)[[23, 47]]


def test_every_architecture_in_float(tmp_path):
    """All numbers in float32: what is left is the order of sums and a table of GELU in float16."""
    jobs, wanted = [], []
    for name in MODELS:
        model = tiny(name)
        jobs.append(write(save(model, tmp_path / name), tmp_path / f"{name}-out"))
        wanted.append(log_probabilities(model))
    for name, result, expected in zip(MODELS, run(tmp_path, jobs), wanted):
        assert float((torch.tensor(result["logprobs"]) - expected).abs().max()) < 4e-3, name


def test_every_type(tmp_path):
    """llama.cpp rounds activations to eight bits: it agrees with the decoded weights as far as that goes."""
    model = tiny("llama", hidden_size=256, intermediate_size=512, initializer_range=0.06)
    source = save(model, tmp_path / "model")
    jobs = [write(source, tmp_path / preset, preset) for preset in PRESETS]
    floats = log_probabilities(model)
    for preset, result in zip(PRESETS, run(tmp_path, jobs)):
        model.load_state_dict({k: v.float() for k, v in CHECKPOINT.read(tmp_path / preset)}, strict=False)
        model.tie_weights()
        decoded = log_probabilities(model)
        difference = (torch.tensor(result["logprobs"]) - decoded).square().mean().sqrt() / floats.std()
        assert float(difference) < 0.05, preset


def test_integers_of_fewbit(tmp_path):
    source = save(tiny("llama"), tmp_path / "model")
    grid = QuantizationGrid(
        Dtype.int4, QSchemeType.per_group, group_size=32, full_range=True, scale_type=ScaleType.bfloat16
    )
    values = write_quantized(source, tmp_path / "out", CHECKPOINT, LayerFormat(grid))
    model = tiny("llama")
    model.load_state_dict(values, strict=False)
    job = {"path": str(next((tmp_path / "out").glob("*.gguf"))), "ids": IDS, "vocabulary": 320}
    difference = torch.tensor(run(tmp_path, [job])[0]["logprobs"]) - log_probabilities(model)
    assert float(difference.square().mean().sqrt()) < 0.06


def test_texts_become_the_same_tokens(tmp_path):
    tokenizers = {
        "gpt-2": byte_level(tmp_path / "gpt-2"),
        "smollm": byte_level(tmp_path / "smollm", digits=True),
        "dbrx": byte_level(tmp_path / "dbrx", pattern=LLAMA3_PATTERN),
        "qwen2": byte_level(tmp_path / "qwen2", pattern=LLAMA3_PATTERN.replace("{1,3}", "")),
        "llama-bpe": byte_level(tmp_path / "llama-bpe", pattern=LLAMA3_PATTERN, ignore_merges=True),
        "tekken": byte_level(tmp_path / "tekken", pattern=TEKKEN_PATTERN, ignore_merges=True),
        "prefix": sentencepiece(tmp_path / "prefix", size=320),
        "pieces": sentencepiece(tmp_path / "pieces", size=320, prefix=False),
    }
    jobs = []
    for name in tokenizers:
        tiny("llama").save_pretrained(tmp_path / name)
        jobs.append(write(tmp_path / name, tmp_path / f"{name}-out") | {"texts": TEXTS})
    for (name, tokenizer), result in zip(tokenizers.items(), run(tmp_path, jobs)):
        assert result["tokens"] == [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS], name
