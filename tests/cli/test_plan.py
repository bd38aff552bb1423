# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch
from safetensors.torch import save_file

from fewbit import cli
from quantized_models import mlp

FACTORY = (
    "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8))\n"
)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "build.py").write_text(FACTORY)
    save_file(mlp().state_dict(), tmp_path / "w.safetensors")

    def run(*arguments):
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_what_each_layer_would_become(run):
    code, out, err = run("plan", "w.safetensors", "--factory", "build.py:make", "--preset", "w4a16")
    assert code == 0 and err == "" and "int4" in out and "smaller" in out and "not needed" in out


def test_json(run):
    code, out, _ = run("plan", "build.py:make", "--json")
    plan = json.loads(out)
    assert code == 0 and [layer["layer"] for layer in plan["layers"]] == ["0", "2"] and plan["needs_data"]
    # by hand: 24·40 + 8·24 codes, one float32 scale an output; biases stay
    assert plan["bytes_before"] == 4 * (24 * 40 + 24 + 8 * 24 + 8)
    assert plan["bytes_after"] == (24 * 40 + 8 * 24) + 4 * (24 + 8) + 4 * (24 + 8)


def test_a_configuration_file(run, tmp_path):
    from fewbit.schemes.presets import preset

    preset("w8a16", exclude=["2"]).save(tmp_path / "c.yaml")
    code, out, _ = run("plan", "build.py:make", "--config", "c.yaml", "--json")
    kept = [layer for layer in json.loads(out)["layers"] if "float" in layer]
    assert code == 0 and len(kept) == 1 and "exclude" in kept[0]["float"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nowhere"], "no file or folder"),
        (["w.safetensors"], "tensors and not the code"),
        (["build.py:make", "--preset", "w4a61"], "did you mean 'w4a16'"),
        (["build.py:make", "--preset", "w4a16", "--config", "c.json"], "both --preset and --config"),
        (["build.py:make", "--config", "nowhere.json"], "nowhere.json"),
        (["build.py:nothing"], "defines no 'nothing'"),
    ],
)
def test_wrong_use(run, arguments, what):
    code, out, err = run("plan", *arguments)
    assert code == 2 and what in err and not out
    code, out, _ = run("plan", *arguments, "--json")
    assert code == 2 and "error" in json.loads(out)


def test_a_damaged_model_is_a_fault_of_the_data(run, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"\0" * 20)
    code, _, err = run("plan", "w.safetensors", "--factory", "build.py:make")
    assert code == 1 and "w.safetensors" in err


def test_nothing_is_changed(run, tmp_path):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert run("plan", "w.safetensors", "--factory", "build.py:make")[0] == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert torch.equal(torch.get_rng_state(), state)
