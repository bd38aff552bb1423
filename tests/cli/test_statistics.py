# SPDX-License-Identifier: Apache-2.0
"""`fewbit statistics`: what is in a store, stores added up, and what is wrong with a line."""

import json

import pytest
import torch

import fewbit
from fewbit.cli import run


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("stores"), torch.nn.Sequential(torch.nn.Linear(32, 16))
    for name, count in (("a", 5), ("b", 10)):
        draw = torch.Generator().manual_seed(count)
        items = [torch.randn(3, 32, generator=draw) for _ in range(count)]
        fewbit.compress_weights(
            model, mode="int4_sym", group_size=32, algorithm="gptq", all_layers=True, dataset=items,
            statistics=folder / name,
        )  # fmt: skip
    return folder


def test_show_and_merge(stores, tmp_path, capsys):
    assert run(["statistics", "show", str(stores / "a"), str(stores / "b"), "--json"]) == 0
    a, b = json.loads(capsys.readouterr().out)
    assert (a["items"], a["tokens"], b["items"], b["tokens"], a["stages"]) == (5, 15, 10, 30, 1)
    assert run(["statistics", "merge", str(stores / "a"), str(stores / "b"), "-o", str(tmp_path / "c"), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert (both["items"], both["tokens"], both["model"]) == (15, 45, a["model"])
    assert run(["statistics", "show", str(tmp_path / "c")]) == 0
    assert f"model   {a['model']}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["show", "a", "-o", "c"], "show and --out"),
        (["merge", "a", "b"], "merge and no --out"),
        (["merge", "a", "a", "-o", "c"], "has the data of"),
        (["merge", "a", "-o", "c"], "nothing to merge"),
        (["show", "nowhere"], "holds no statistics"),
        (["add", "a", "b"], "'add' is not one of"),
    ],
)
def test_a_wrong_line_is_told(stores, monkeypatch, capsys, line, told):
    monkeypatch.chdir(stores)
    assert run(["statistics", *line]) == 2
    assert told in capsys.readouterr().err
    assert not (stores / "c").exists()
