# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fewbit import cli
from fewbit.engine.delivering import load
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.modules.quantized import is_quantized
from quantized_models import mlp, numbers
from small_models import opt, token_ids

FACTORY = (
    "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8))\n"
    "\n\ndef rows():\n    import torch\n    return [torch.ones(1, 40) * i for i in range(6)]\n"
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
        capsys.readouterr()  # what the test's own preparations said
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def folder(tmp_path):
    """A Hugging Face folder with a tokenizer of its own, and texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    opt().save_pretrained(tmp_path / "opt")
    words = {f"w{i}": i for i in range(4, 96)} | {"<unk>": 0, "<pad>": 1, "</s>": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    fast.save_pretrained(tmp_path / "opt")
    texts = [" ".join(f"w{i}" for i in row) for row in token_ids().tolist()]
    rows = [json.dumps({"text": text, "label": 1}) for text in [*texts, "", " ".join(["w5"] * 80)]]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    return tmp_path / "opt"


def test_a_state_dict_with_data(run, tmp_path):
    arguments = ["w.safetensors", "--factory", "build.py:make", "--data", "samples", "--preset", "w8a8", "-o", "out"]
    code, out, err = run("quantize", *arguments)
    assert (
        code == 0
        and err == ""
        and "2 weights quantized" in out
        and "fewbit.load('out', factory='build.py:make')" in out
    )
    made = load(tmp_path / "out", mlp())
    assert is_quantized(made[0]) and not made[0].input_quantizer.dynamic
    with torch.no_grad():
        error = (made(numbers(6, 40)) - mlp()(numbers(6, 40))).norm() / mlp()(numbers(6, 40)).norm()
    assert error < 0.05
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert record["facts"]["items"] == 6 and record["facts"]["model"] == "w.safetensors"
    manifest = json.loads((tmp_path / "out" / "fewbit.json").read_text())
    assert manifest["factory"] == "build.py:make" and "record.json" in manifest["files"]


def test_weights_alone_need_no_data(run, tmp_path):
    code, out, _ = run("quantize", "build.py:make", "--preset", "w4a16", "-o", "out", "--no-freeze", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["output"] == "out" and answer["verb"] == "quantize"
    assert not any(line["what"] == "kernel" for line in answer["lines"])
    assert load(tmp_path / "out", mlp())[0].coded["weight"].grid.dtype.name == "int4"


def test_frozen_or_not_the_files_are_the_same(run, tmp_path):
    for name, flag in (("a", "--freeze"), ("b", "--no-freeze")):
        arguments = ["w.safetensors", "--factory", "build.py:make", "--preset", "w8a8_dynamic", "-o", name, flag]
        assert run("quantize", *arguments)[0] == 0
    assert (tmp_path / "a" / "fewbit.safetensors").read_bytes() == (tmp_path / "b" / "fewbit.safetensors").read_bytes()


def test_data_from_a_function_and_a_transform(run, tmp_path):
    (tmp_path / "change.py").write_text("def double(x):\n    return x * 2\n")
    code, _, err = run(
        "quantize", "build.py:make", "--data", "build.py:rows", "--transform", "change.py:double", "-o", "out"
    )
    assert code == 0, err
    made = load(tmp_path / "out", mlp())
    # Six rows, the last one of fives, doubled: an unsigned byte for 0 to 10.
    assert float(made[0].input_quantizer.scale) == pytest.approx(10 / 255, rel=1e-6)


def test_a_hugging_face_folder_with_texts(run, folder, tmp_path):
    code, out, err = run(
        "quantize", "opt", "--data", "texts.jsonl", "--preset", "w8a8", "-o", "out", "--max-length", 32
    )
    assert code == 0 and err == "" and "fewbit.load('out')" in out, err
    assert "text" in out and "1 rows had more than 32 tokens" in out and "1 rows had no tokens" in out
    made, ids = load(tmp_path / "out"), token_ids()
    with torch.no_grad():
        ours, theirs = made(ids).logits, opt()(ids).logits
    assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.99
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_token_ids_as_rows_give_the_same_as_their_texts(run, folder, tmp_path):
    texts = (tmp_path / "texts.jsonl").read_text().splitlines()[:6]
    (tmp_path / "some.jsonl").write_text("\n".join(texts))
    rows = [json.dumps({"input_ids": row, "attention_mask": [1] * len(row)}) for row in token_ids().tolist()]
    (tmp_path / "ids.jsonl").write_text("\n".join(rows))
    for name, data in (("a", "some.jsonl"), ("b", "ids.jsonl")):
        code, _, err = run("quantize", "opt", "--data", data, "-o", name)
        assert code == 0, err
    assert (tmp_path / "a" / "fewbit.safetensors").read_bytes() == (tmp_path / "b" / "fewbit.safetensors").read_bytes()


def test_chats_and_a_named_column(run, folder, tmp_path):
    chat = {"messages": [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w7"}]}
    (tmp_path / "chat.jsonl").write_text("\n".join([json.dumps(chat)] * 3))
    code, _, err = run("quantize", "opt", "--data", "chat.jsonl", "-o", "a", "--samples", 2)
    assert code == 0, err
    arguments = ["quantize", "opt", "--data", "texts.jsonl", "-o", "b", "--samples", 2, "--text-column"]
    code, _, err = run(*arguments, "txt")
    assert code == 2 and "no column 'txt'" in err and "did you mean 'text'" in err
    assert run(*arguments, "text")[0] == 0


def test_texts_without_a_tokenizer(run, folder, tmp_path):
    for path in folder.glob("*token*"):
        path.unlink()
    code, _, err = run("quantize", "opt", "--data", "texts.jsonl", "-o", "out")
    assert code == 1 and "no tokenizer" in err and "input_ids" in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["build.py:make", "-o", "samples"], 2, "is not empty"),
        (["build.py:make", "-o", "out"], 2, "need calibration data"),
        (["build.py:make", "-o", "out", "--data", "nowhere"], 2, "nowhere"),
        (["build.py:make", "-o", "out", "--preset", "w9"], 2, "no preset"),
        (["nowhere", "-o", "out", "--preset", "w4a16"], 2, "no file or folder"),
        (["build.py:make"], 2, "--out"),
        (["build.py:make", "-o", "out", "--samples", "0"], 2, "--samples"),
    ],
)
def test_faults_come_before_the_work_and_leave_nothing(run, tmp_path, monkeypatch, arguments, code, what):
    monkeypatch.setattr(ModelQuantizer, "quantize_model", lambda *_, **__: pytest.fail("the work started"))
    found, out, err = run("quantize", *arguments)
    assert found == code and what in err and not out and not (tmp_path / "out").exists()


def test_data_that_does_not_fit_the_model(run, tmp_path):
    np.savez(tmp_path / "samples" / "0.npz", other=np.zeros(40, np.float32), more=np.zeros(3, np.float32))
    code, _, err = run("quantize", "build.py:make", "--data", "samples", "-o", "out")
    assert code == 1 and "input" in err and not (tmp_path / "out").exists()


def test_an_interrupted_run_leaves_nothing(run, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelQuantizer, "quantize_model", interrupted)
    assert run("quantize", "build.py:make", "--preset", "w4a16", "-o", "out")[0] == 130
    assert not (tmp_path / "out").exists()


def test_overwriting(run, tmp_path):
    arguments = ["quantize", "build.py:make", "--preset", "w4a16", "-o", "out"]
    assert run(*arguments)[0] == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert run(*arguments)[0] == 2
    assert run(*arguments, "--overwrite")[0] == 0
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_model_that_is_quantized_already(run, folder):
    assert run("quantize", "opt", "--preset", "w4a16", "-o", "out")[0] == 0
    for command in (["plan", "out"], ["quantize", "out", "--preset", "w4a16", "-o", "again"]):
        code, _, err = run(*command)
        assert code == 2 and "quantized already" in err


def test_a_program(run, tmp_path):
    torch.export.save(torch.export.export(mlp(), (numbers(2, 40),)), tmp_path / "m.pt2")
    code, out, err = run("quantize", "m.pt2", "--preset", "w4a16", "-o", "out")
    assert code == 0 and "2 weights quantized" in out and "fewbit.load('out', 'm.pt2')" in out, err
    made, direct = load("out", "m.pt2"), ModelQuantizer("w4a16").quantize_model(mlp())
    assert is_quantized(made.get_submodule("0")) and torch.equal(made(numbers(3, 40)), direct(numbers(3, 40)))
