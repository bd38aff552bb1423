# SPDX-License-Identifier: Apache-2.0
"""The files of a tokenizer and a processor go where their model goes."""

import pytest
import torch

import fewbit
from fewbit.engine.companions import copy_companions
from quantized_models import mlp
from small_models import opt

BESIDE = {
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"a": 1}',
    "spiece.model": b"\0\1",
    "chat_template.jinja": b"{{ x }}",
    "additional_chat_templates/tools.jinja": b"{{ y }}",
    "preprocessor_config.json": b"[]",
}
OTHERS = {"notes.txt": b"mine", "tokenization_own.py": b"1 / 0", "optimizer.pt": b"0"}


@pytest.fixture
def folder(tmp_path):
    """A Hugging Face folder with the files of a tokenizer, and with others."""
    opt().save_pretrained(tmp_path / "opt")
    for name, content in {**BESIDE, **OTHERS}.items():
        (tmp_path / "opt" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "opt" / name).write_bytes(content)
    return tmp_path / "opt"


def beside(folder):
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name in {**BESIDE, **OTHERS}}


def test_every_verb_takes_them_along_as_they_are(folder, tmp_path):
    made = fewbit.quantize(folder, preset="w8a16", output=tmp_path / "a")
    assert beside(made) == BESIDE
    assert beside(fewbit.compress_weights(str(folder), output=tmp_path / "b")) == BESIDE
    again = fewbit.export(fewbit.load(made), tmp_path / "c")  # and from one export to the next
    assert beside(again) == BESIDE
    fewbit.export(fewbit.load(made), made, overwrite=True)
    assert beside(made) == BESIDE


def test_a_tokenizer_that_is_given_stands_alone(folder, tmp_path):
    class Own:
        def save_pretrained(self, folder):
            (folder / "tokenizer.json").write_bytes(b"own")

    model = fewbit.compress_weights(folder)
    assert beside(fewbit.export(model, tmp_path / "out", tokenizer=Own())) == {"tokenizer.json": b"own"}


def test_a_file_that_is_there_is_kept(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.json").write_bytes(b"newer")
    names = copy_companions(type(opt()).from_pretrained(folder), tmp_path / "out")
    assert "tokenizer.json" not in names and sorted(names) == sorted(set(BESIDE) - {"tokenizer.json"})
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == b"newer"


@pytest.mark.parametrize("model", [mlp(), opt(), torch.compile(mlp())], ids=["module", "made from nothing", "compiled"])
def test_a_model_without_a_folder_has_none(model, tmp_path):
    assert copy_companions(model, tmp_path) == [] and not any(tmp_path.iterdir())
