# SPDX-License-Identifier: Apache-2.0
"""`fewbit compress --bits`: what it takes, and what it prints of the bits that were reached."""

import json

import numpy as np
import pytest

from fewbit import cli

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layers = [each for _ in range(3) for each in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(64, 8))
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model.py").write_text(MODEL)
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32))

    def run(*options):
        capsys.readouterr()
        code = cli.run(["compress", "model.py:build", "--group-size", "32", "-o", "out", *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_fraction_is_an_average(run):
    code, out, err = run("--bits", "6", "--data", "data.npz")
    assert code == 0, err
    assert "5.83 bits a weight, scales included: 67% int4_sym, 33% int8_sym" in out


def test_modes_to_choose_from_are_named_one_by_one(run):
    _, out, _ = run("--bits", "5.9", "--mode", "nf4", "--mode", "int8_sym", "--json")
    facts = json.loads(out)["facts"]["mix"]
    assert set(facts["shares"]) == {"nf4", "int8_sym"} and facts["bits_asked"] == 5.9 and facts["bits"] <= 5.9


@pytest.mark.parametrize(
    ("options", "says"),
    [((), "--bits 4"), (("--bits", "4", "--mode", "int8_sym"), "which has 8"), (("--bits", "0.1"), "such as 4 or 4.5")],
)
def test_what_cannot_be_is_told_before_anything_is_opened(run, options, says, monkeypatch):
    monkeypatch.setattr("fewbit.cli._choice.network", lambda *_: pytest.fail("the model was opened"))
    code, _, err = run(*options)
    assert code != 0 and says in err
