# SPDX-License-Identifier: Apache-2.0
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fewbit
from fewbit import cli
from fewbit.cli._comparison import lines
from fewbit.engine.comparing import compare
from quantized_models import mlp, numbers
from small_models import opt, token_ids

FACTORY = (
    "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8))\n"
)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "build.py").write_text(FACTORY)
    save_file(mlp().state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "samples").mkdir()
    for i in range(6):
        np.savez(tmp_path / "samples" / f"{i}.npz", input=numbers(6, 40)[i].numpy())

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def folder(tmp_path):
    """A Hugging Face folder with a tokenizer, a quantized one, and texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(4, 96)} | {"<unk>": 0, "<pad>": 1, "</s>": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    opt().save_pretrained(tmp_path / "opt")
    fast.save_pretrained(tmp_path / "opt")
    made = fewbit.compress_weights(opt(), mode="int4_sym", group_size=16)
    fewbit.export(made, tmp_path / "small")
    texts = [" ".join(f"w{i}" for i in row) for row in token_ids(8, 30).tolist()]
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return made


def test_language_models_and_texts(run, folder):
    arguments = ("compare", "opt", "small", "--data", "texts.jsonl", "--pack", "pad")
    code, out, err = run(*arguments)
    assert code == 0 and err == "", err
    assert "perplexity" in out and "KL, 99 %" in out and "same choice" in out and "smaller" in out
    assert re.search(r"the worst 10 of \d+ layers", out) and "scale_search" in out and "int4" in out
    code, out, _ = run(*arguments, "--json")
    record = json.loads(out)
    assert code == 0 and record["verb"] == "compare" and record["facts"]["compressed"] == "small"
    facts = compare(opt(), folder, [{"input_ids": torch.tensor([row])} for row in token_ids(8, 30).tolist()]).facts
    assert record["facts"]["kl"]["mean"] == pytest.approx(facts["kl"]["mean"], rel=1e-2)
    assert record["facts"]["samples"] == 8 and record["facts"]["positions"] == 240


def test_a_state_dict_beside_an_export_without_code(run, tmp_path):
    fewbit.export(fewbit.compress_weights(mlp(), mode="int4_sym", group_size=8), tmp_path / "small")
    code, out, err = run(
        "compare", "w.safetensors", "small", "--factory", "build.py:make", "--data", "samples", "--samples", 5
    )
    assert code == 0 and err == "" and "on 5 samples" in out and "2 layers by what" in out, err
    code, out, err = run("compare", "w.safetensors", "small", "--factory", "build.py:make", "--data", "samples",
                         "--kind", "values")  # fmt: skip
    assert code == 0 and "cosine" in out and "of their energy" in out


def test_wrong_use(run):
    code, _, err = run("compare", "build.py:make", "build.py:make", "--data", "samples", "--factory", "build.py:make")
    assert code == 2 and "--factory" in err
    code, _, err = run("compare", "build.py:make", "nowhere", "--data", "samples")
    assert code == 2 and "nowhere" in err
    assert run("compare", "build.py:make", "build.py:make")[0] == 2
    code, _, err = run("compare", "build.py:make", "build.py:make", "--data", "samples", "--kind", "words")
    assert code == 2 and "language, classes, values" in err


def test_remarks_of_one_reason_are_one_line():
    record = fewbit.Record("compare", facts={
        "samples": 3, "verdict": "nothing", "bytes": {"original": 4, "compressed": 4}})  # fmt: skip
    for name in "abcde":
        record.note("layer-not-measured", "it fails", where=name)
    assert list(lines(record))[-1] == "  layer-not-measured: it fails (a, b, c and 2 more)"
