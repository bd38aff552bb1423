# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit import cli
from fewbit.data.dataset import open_dataset

OWN = """\
import torch
from torch import nn

filled = [torch.ones(2, 4) * i for i in range(3)]


def rows():
    return filled


def build():
    return nn.Linear(4, 2)
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)

    def run(*arguments):
        code = cli.run(["capture", "own.py:build", "-o", "out", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("name", ["filled", "rows"])
def test_data_is_what_a_file_holds_or_a_function_returns(run, name):
    code, out, err = run("--data", f"own.py:{name}")
    assert code == 0 and "6 samples" in out, err
    assert [sample["input"][0] for sample in open_dataset("out")] == [0, 0, 1, 1, 2, 2]


def test_a_batch_size_for_batches_is_refused(run, tmp_path):
    code, _, err = run("--data", "own.py:rows", "--batch-size", "2")
    assert code == 2 and "--batch-size 2" in err and not (tmp_path / "out").exists()


def test_a_policy_goes_on_past_a_broken_row(run, tmp_path):
    (tmp_path / "b.jsonl").write_text('{"input": [1.5, 2, 3, 4]}\n{"input":\n{"input": [5.5, 6, 7, 8]}\n')
    code, _, err = run("--data", "b.jsonl")
    assert code == 1 and "--policy bad-json=drop" in err
    code, out, err = run("--data", "b.jsonl", "--format", "rows", "--policy", "bad-json=drop", "--overwrite")
    assert code == 0 and "2 samples" in out, err
