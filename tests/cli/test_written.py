# SPDX-License-Identifier: Apache-2.0
"""What a format has no codes for is said, since the record speaks of the model and not of the files."""

import pytest
from rich.filesize import decimal

from fewbit import cli
from fewbit.cli import _written
from tiny_models import transformer


@pytest.fixture
def model(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, "tie_word_embeddings": True}
    transformer("llama", **sizes).save_pretrained("llama")
    return ["compress", "llama", "--mode", "int4_sym", "--group-size", "32", "-o", "out"]


@pytest.mark.parametrize("formats", [["compressed-tensors"], ["compressed-tensors", "gptq"]], ids=["file", "model"])
def test_tables_in_float_and_the_size_of_the_files(model, formats, capsys, tmp_path):
    assert cli.run([*model, *(part for name in formats for part in ("--format", name))]) == 0
    said = capsys.readouterr().out
    for name in formats:
        file = tmp_path / "out" / (name.replace("-", "_") if len(formats) > 1 else "") / "model.safetensors"
        size = decimal(file.stat().st_size)
        assert f"{name}: no codes for model.embed_tokens.weight, written as floats: {size} in all" in said


def test_what_readers_should_know_is_said(model, capsys):
    model[model.index("int4_sym")] = "mxfp4"
    assert cli.run([*model, "--format", "compressed-tensors"]) == 0
    said = capsys.readouterr().out
    assert "load with dtype=torch.bfloat16" in said and "is written as the floats" not in said


def test_of_lossless_files_and_of_other_places_nothing_is_said(model, tmp_path):
    assert cli.run(model) == 0
    assert [*_written.lines(tmp_path / "out"), *_written.lines(tmp_path / "llama" / "config.json")] == []
