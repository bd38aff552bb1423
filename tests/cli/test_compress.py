# SPDX-License-Identifier: Apache-2.0
"""`fewbit compress` of a Hugging Face folder without data: file to file, as the verb does it."""

import json

import pytest

import fewbit
from fewbit import cli
from tiny_models import transformer


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    transformer("llama", hidden_size=32, intermediate_size=64, head_dim=8).save_pretrained(tmp_path / "llama")

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def unopened(monkeypatch):
    """The model may not be opened."""
    monkeypatch.setattr("fewbit.cli._choice.network", lambda *_: pytest.fail("the model was opened"))


W4 = ("--mode", "int4_sym", "--group-size", "32", "--format", "compressed-tensors")


def test_the_model_is_not_opened(run, unopened, tmp_path):
    code, out, err = run("compress", "llama", *W4, "-o", "out")
    assert code == 0, err
    assert "weights quantized" in out and "as compressed-tensors" in out
    mine = fewbit.compress_weights(
        "llama", mode="int4_sym", group_size=32, format="compressed-tensors", output=tmp_path / "mine"
    )
    names = {path.name for path in mine.iterdir()}
    assert names == {path.name for path in (tmp_path / "out").iterdir()} and "model.safetensors" in names
    for name in names - {"record.json", "fewbit.json"}:  # which hold the time
        assert (mine / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name


def test_json_ignored_layers_and_overwriting(run, unopened):
    more = ("--ignore", "*.down_proj", "--ignore", "lm_head", "-o", "out", "--json")
    code, out, err = run("compress", "llama", *W4, *more)
    assert code == 0, err
    said = json.loads(out)
    kept = {line["where"] for line in said["lines"] if line["what"] == "float"}
    assert said["output"] == "out" and {"lm_head.weight", "model.layers.1.mlp.down_proj.weight"} <= kept
    code, out, _ = run("compress", "llama", *W4, *more)
    assert code == 2 and "not empty" in out
    code, _, err = run("compress", "llama", *W4, *more, "--overwrite")
    assert code == 0, err


def test_refusals_are_the_same(run, unopened):
    code, _, err = run("compress", "llama", "--mode", "nf4", "--format", "compressed-tensors", "-o", "out")
    assert code == 2 and "nf4" in err and "q_proj" in err
    code, _, err = run("compress", "llama", *W4, "--ignore", "*.qq_proj", "-o", "out")
    assert code == 2 and "*.qq_proj" in err


def test_what_needs_the_model_opens_it(run, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    path = tmp_path / "llama" / "model.safetensors"
    held = load_file(path)
    held["model.norm.weight"] = held["model.norm.weight"].to(torch.bfloat16)
    save_file(held, path, metadata={"format": "pt"})
    code, out, err = run("compress", "llama", *W4, "-o", "out")
    assert code == 0, err
    assert "model-opened: not compressed file to file" in out
