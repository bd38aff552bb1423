# SPDX-License-Identifier: Apache-2.0
"""llama.cpp itself loads the files and computes what transformers does.

It runs in the environment that has llama-cpp-python: this one, or `.bench/envs/llamacpp`
(`pip install llama-cpp-python==0.3.36`, which compiles for some minutes).
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fewbit
from fewbit.engine.delivering import export
from gguf_models import ARCHITECTURES, LLAMA3_PATTERN, QWEN2_PATTERN, TEXTS, byte_level, sentencepiece, tiny

gguf = pytest.importorskip("gguf")

ROOT = Path(__file__).parents[2]
APART = ROOT / ".bench/envs/llamacpp/bin/python"
PYTHON = sys.executable if importlib.util.find_spec("llama_cpp") else str(APART) if APART.exists() else None
IDS = [7 * number % 320 for number in range(1, 49)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="llama_cpp is neither here nor in .bench/envs/llamacpp"),
]


def run(folder, **job):
    """What llama.cpp makes of a job, by name."""
    (folder / "job.json").write_text(json.dumps(job))
    script = ROOT / "tests/llama_cpp_run.py"
    command = [PYTHON, str(script), str(folder / "job.json"), str(folder / "result.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(folder / "result.npz"))


def in_torch(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].float().numpy()


def apart(ours, theirs):
    """The distance of logits beside their spread."""
    return float(np.abs(ours - theirs).max() / ours.std())


def share(error, logits):
    """The size of an error beside that of the logits."""
    return float(np.sqrt(np.square(error).mean() / logits.var()))


def as_stored(model, path):
    """The model with the values of a file, decoded by transformers."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    model.load_state_dict(found["tensors"], strict=False)
    model.tie_weights()
    return model


def test_every_architecture_in_float(tmp_path):
    """All numbers in float32: what is left is the order of sums, so a wrong row, norm or frequency would show."""
    byte_level(tmp_path / "tokenizer")
    wanted, job = {}, {}
    for name in ARCHITECTURES:
        model = tiny(name)
        wanted[name] = in_torch(model)
        folder = export(model, tmp_path / name, format="gguf", tokenizer=tmp_path / "tokenizer")
        job[name] = {"path": str(folder / "model.gguf"), "ids": IDS}
    found = run(tmp_path, logits=job)
    assert {name: apart(wanted[name], found[name]) for name in wanted} == pytest.approx(
        dict.fromkeys(wanted, 0), abs=3e-3
    )


@pytest.mark.filterwarnings("ignore")
def test_every_type(tmp_path):
    """llama.cpp rounds activations to eight bits, transformers does not: they agree as far as that goes."""
    byte_level(tmp_path / "tokenizer")
    wanted, job = {}, {}
    sizes = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.06}
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"):
        path = export(
            tiny("llama", **sizes), tmp_path / kind, format="gguf", type=kind, tokenizer=tmp_path / "tokenizer"
        )
        job[kind] = {"path": str(path / "model.gguf"), "ids": IDS}
        wanted[kind] = in_torch(as_stored(tiny("llama", **sizes), path / "model.gguf"))
    found = run(tmp_path, logits=job)
    float_logits = in_torch(tiny("llama", **sizes))
    for kind in wanted:
        ran, rounded = share(found[kind] - wanted[kind], float_logits), share(float_logits - wanted[kind], float_logits)
        assert ran < 0.04, kind
        assert not kind.startswith("Q4") or ran < 0.3 * rounded, kind


@pytest.mark.parametrize("mode", ["int4_sym", "int4_asym"])
@pytest.mark.filterwarnings("ignore")
def test_codes_of_fewbit(mode, tmp_path):
    byte_level(tmp_path / "tokenizer")
    model = fewbit.compress_weights(tiny("llama"), mode=mode, group_size=32)
    path = export(model, tmp_path / "out", format="gguf", tokenizer=tmp_path / "tokenizer") / "model.gguf"
    found = run(tmp_path, logits={"codes": {"path": str(path), "ids": IDS}})["codes"]
    for logits in (in_torch(as_stored(tiny("llama"), path)), in_torch(model)):
        assert share(found - logits, logits) < 0.05


def test_a_file_without_a_tokenizer(tmp_path):
    model = tiny("llama")
    path = export(model, tmp_path / "out", format="gguf", tokenizer=False) / "model.gguf"
    found = run(tmp_path, logits={"found": {"path": str(path), "ids": IDS}})["found"]
    assert apart(in_torch(model), found) < 1e-3


def test_texts_become_the_same_tokens(tmp_path):
    from tokenizers import Regex, pre_tokenizers

    def split(pattern):
        parts = [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        return pre_tokenizers.Sequence(parts)

    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    job, wanted = {}, {}
    for name, pre in {
        "gpt-2": None,
        "smollm": digits,
        "dbrx": split(LLAMA3_PATTERN),
        "qwen2": split(QWEN2_PATTERN),
    }.items():
        tokenizer = byte_level(tmp_path / f"{name}-tokenizer", pre=pre)
        folder = export(tiny("llama"), tmp_path / name, format="gguf", tokenizer=tokenizer)
        job[name] = {"path": str(folder / "model.gguf"), "texts": TEXTS}
        wanted[name] = [tokenizer.encode(text) for text in TEXTS]
    for prefixed in (True, False):
        name = f"sentencepiece {prefixed}"
        tokenizer = sentencepiece(tmp_path / f"{name}-tokenizer", prefixed=prefixed)
        folder = export(tiny("llama", vocab_size=420), tmp_path / name, format="gguf", tokenizer=tokenizer)
        job[name] = {"path": str(folder / "model.gguf"), "texts": TEXTS}
        wanted[name] = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    found = run(tmp_path, tokens=job)
    assert {name: json.loads(str(found[name])) for name in job} == wanted


def test_the_search_loses_less_than_ggml(tmp_path):
    from fewbit.exporters import _gguf_kquants, _gguf_mapping
    from fewbit.exporters._gguf_types import BLOCKS

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1024, generator=draw) * (0.01 + 0.05 * torch.rand(64, 1, generator=draw))
    x[::7, ::41] *= 5
    np.save(tmp_path / "x.npy", x.numpy())
    types = {name: gguf.GGMLQuantizationType[name] for name in BLOCKS}
    sizes = {name: [int(kind), *reversed(gguf.GGML_QUANT_SIZES[kind])] for name, kind in types.items()}
    found = run(tmp_path, quantize={"path": str(tmp_path / "x.npy"), "types": sizes})
    for name, kind in BLOCKS.items():
        blocks = (_gguf_mapping if kind.scales is None else _gguf_kquants).search(x, kind, None)
        ours = (blocks.values().reshape(x.shape) - x).square().sum()
        theirs = np.square(gguf.quants.dequantize(found[name], types[name]) - x.numpy()).sum()
        assert ours < theirs, (name, float(ours), float(theirs))
