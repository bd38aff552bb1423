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
    "\n\nclass Rows(list):\n    def __init__(self):\n        super().__init__(rows())\n"
    "\n\nfilled = rows()\n\n\ndef takes(path):\n    return path\n\n\nnumber = 1\n"
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


def test_what_holds_for_many_layers_is_said_once(run, tmp_path):
    deep = "from torch import nn\n\n\ndef make():\n    return nn.Sequential(*(nn.Linear(40, 40) for _ in range(30)))\n"
    (tmp_path / "deep.py").write_text(deep)
    (tmp_path / "c.yaml").write_text(
        "global_quant_config: {weight: {dtype: int8}, input_tensors: {dtype: int8, is_dynamic: true}}\n"
        "exclude: ['2*']\n"
    )
    code, out, err = run("quantize", "deep.py:make", "--config", "c.yaml", "-o", "out")
    assert code == 0 and "19 weights quantized, 11 left in float" in out, err
    assert len(out.splitlines()) < 8 and "and 8 more" in out


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


@pytest.mark.parametrize("name", ["filled", "Rows"])
def test_data_is_what_a_file_holds_or_what_a_class_makes(run, tmp_path, name):
    for out, data in (("a", f"build.py:{name}"), ("b", "build.py:rows")):
        code, _, err = run("quantize", "build.py:make", "--data", data, "-o", out)
        assert code == 0, err
    assert (tmp_path / "a" / "fewbit.safetensors").read_bytes() == (tmp_path / "b" / "fewbit.safetensors").read_bytes()


def test_batches_of_samples(run, tmp_path):
    """Six samples, four at a time: two items."""
    code, _, err = run("quantize", "build.py:make", "--data", "samples", "-o", "out", "--batch-size", 4)
    assert code == 0, err
    assert json.loads((tmp_path / "out" / "record.json").read_text())["facts"]["items"] == 2


def test_a_hugging_face_folder_with_texts(run, folder, tmp_path):
    code, out, err = run("quantize", "opt", "--data", "texts.jsonl", "--preset", "w8a8", "-o", "out", "--seqlen", 32)
    assert code == 0 and err == "" and "fewbit.load('out')" in out, err
    assert "the text of a row is in text; " in out and "cut at 32 tokens" in out and "1 rows had no text" in out
    made, ids = load(tmp_path / "out"), token_ids()
    with torch.no_grad():
        ours, theirs = made(ids).logits, opt()(ids).logits
    assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.99
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.parametrize("data", ["long.jsonl", "long.py:rows"])
def test_a_row_counts_once_however_often_it_is_read(run, folder, tmp_path, data):
    rows = [{"text": text} for text in (" ".join(["w5"] * 80), "w6 w7", "", "", "w8", " ".join(["w5"] * 80))]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "long.py").write_text(f"rows = {rows}\n")
    code, out, err = run("quantize", "opt", "--data", data, "-o", "out", "--seqlen", 32, "--json")
    assert code == 0, err
    counts = {line["what"]: line["rows"] for line in json.loads(out)["lines"] if "rows" in line}
    assert counts == {"tokenized": 6, "empty-text": 2, "repeated-text": 1}


def test_one_column_of_text_is_taken_and_of_several_none(run, folder, tmp_path):
    (tmp_path / "one.csv").write_text("words\nw5 w6\nw7 w8\n")
    code, out, err = run("quantize", "opt", "--data", "one.csv", "-o", "one")
    assert code == 0 and "the text of a row is in words; " in out, err
    (tmp_path / "two.csv").write_text("key,words\n1,w5 w6\n2,w7 w8\n")  # of a .csv every value is a text
    code, _, err = run("quantize", "opt", "--data", "two.csv", "-o", "two")
    assert code == 2 and "which column" in err and "key, words" in err and "--text-column" in err
    code, out, err = run("quantize", "opt", "--data", "two.csv", "-o", "two", "--text-column", "words")
    assert code == 0 and "is in words" in out, err


def test_a_generator_is_said_to_be_kept_and_warns_of_nothing(run, tmp_path):
    (tmp_path / "g.py").write_text("import torch\n\n\ndef rows():\n    yield from torch.ones(6, 2, 40)\n")
    code, out, err = run("quantize", "build.py:make", "--data", "g.py:rows", "-o", "out")
    assert code == 0 and err == "" and "spooled" in out


def test_joined_texts_can_be_put_into_batches(run, folder, tmp_path):
    arguments = ["quantize", "opt", "--data", "texts.jsonl", "-o", "out", "--seqlen", 10, "--batch-size", 4, "--json"]
    code, out, err = run(*arguments)
    assert code == 0, err
    answer = json.loads(out)
    samples = next(line["samples"] for line in answer["lines"] if line["what"] == "tokenized")
    assert samples == (token_ids().numel() + 80 + 7) // 10  # seven rows that say something, each with its end
    assert answer["facts"]["items"] == -(-samples // 4)


def test_token_ids_as_rows_give_the_same_as_their_texts(run, folder, tmp_path):
    texts = (tmp_path / "texts.jsonl").read_text().splitlines()[:6]
    (tmp_path / "some.jsonl").write_text("\n".join(texts))
    rows = [[*row, 2] for row in token_ids().tolist()]  # a sample each, so that both are drawn in the same order
    rows = [json.dumps({"input_ids": row, "attention_mask": [1] * len(row)}) for row in rows]
    (tmp_path / "ids.jsonl").write_text("\n".join(rows))
    for name, data in (("a", "some.jsonl"), ("b", "ids.jsonl")):
        code, _, err = run("quantize", "opt", "--data", data, "-o", name, "--seqlen", 10)
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
        (["build.py:make", "-o", "build.py/out", "--preset", "w4a16"], 2, "is a file"),
        (["build.py:make", "-o", "out", "--data", "build.py:rows", "--batch-size", "2"], 2, "--batch-size 2"),
        (["build.py:make", "-o", "out", "--data", "build.py:takes"], 2, "missing a required argument: 'path'"),
        (["build.py:make", "-o", "out", "--data", "build.py:number"], 2, "number is a int"),
        (["build.py:make", "-o", "out", "--data", "samples", "--transform", "build.py:make"], 2, "a function of a row"),
        (["build.py:make", "-o", "out", "--data", "samples", "--text-column", "text"], 2, "nothing is tokenized"),
        (["build.py:make", "-o", "out", "--preset", "w4a16", "--transform", "build.py:takes"], 2, "and no data"),
        (["build.py:make", "-o", "out", "--preset", "w4a16", "--factory", "build.py:make"], 2, "--factory for"),
    ],
)
def test_faults_come_before_the_work_and_leave_nothing(run, tmp_path, monkeypatch, arguments, code, what):
    monkeypatch.setattr(ModelQuantizer, "quantize_view", lambda *_, **__: pytest.fail("the work started"))
    found, out, err = run("quantize", *arguments)
    assert found == code and what in err and not out and not (tmp_path / "out").exists()


def test_data_that_does_not_fit_the_model(run, tmp_path):
    np.savez(tmp_path / "samples" / "0.npz", other=np.zeros(40, np.float32), more=np.zeros(3, np.float32))
    code, _, err = run("quantize", "build.py:make", "--data", "samples", "-o", "out")
    assert code == 1 and "input" in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["fewbit.engine.quantizer.execute", "fewbit.exporters.safetensors.check"])
def test_an_interrupted_run_leaves_nothing_and_says_so(run, tmp_path, monkeypatch, place):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(place, interrupted)
    answer = run("quantize", "build.py:make", "--preset", "w4a16", "-o", "out")
    assert answer == (130, "", "interrupted\n")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == before


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


@pytest.fixture
def broken(tmp_path):
    """Six rows, the third of which is cut off."""
    rows = [json.dumps({"input": row}) for row in numbers(6, 40).tolist()]
    rows[2] = rows[2][:50]
    (tmp_path / "b.jsonl").write_text("\n".join(rows))
    return "b.jsonl"


def test_a_broken_row_is_told_with_the_option_that_goes_on(run, broken, tmp_path):
    code, _, err = run("quantize", "build.py:make", "--data", broken, "-o", "out")
    assert code == 1 and "b.jsonl:3" in err and "--policy bad-json=drop" in err and "policy={" not in err
    code, out, _ = run("quantize", "build.py:make", "--data", broken, "-o", "out", "--json")
    assert code == 1 and "--policy bad-json=drop" in json.loads(out)["error"]["try"] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("policy", ["drop", "bad-json=drop"])
def test_a_policy_goes_on(run, broken, tmp_path, policy):
    code, out, err = run("quantize", "build.py:make", "--data", broken, "-o", "out", "--policy", policy)
    assert code == 0 and "bad-json" in out, err
    assert json.loads((tmp_path / "out" / "record.json").read_text())["facts"]["items"] == 5


def test_a_format_and_its_options(run, tmp_path):
    (tmp_path / "rows.txt").write_text(";".join(f"c{i}" for i in range(40)) + "\n" + ";".join(["1.5"] * 40) + "\n")
    (tmp_path / "read.py").write_text(
        "import csv\n\n\ndef rows(path, delimiter=','):\n    with open(path) as file:\n"
        "        next(file)\n        for row in csv.reader(file, delimiter=delimiter):\n"
        "            yield {'input': [float(value) for value in row]}\n"
    )
    arguments = ["quantize", "build.py:make", "--data", "rows.txt", "--data-format", "read.py:rows", "-o", "out"]
    assert run(*arguments)[0] == 1  # one cell with semicolons in it
    code, _, err = run(*arguments, "--option", "delimiter=;")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--data", "b.jsonl", "--policy", "dorp"], "did you mean 'drop'"),
        (["--data", "b.jsonl", "--policy", "bad-jsno=drop"], "did you mean 'bad-json'"),
        (["--data", "b.jsonl", "--policy", "drop", "--policy", "bad-json=drop"], "once for each code"),
        (["--data", "b.jsonl", "--option", "delimitr=;"], "did you mean 'delimiter'"),
        (["--data", "b.jsonl", "--option", "policy=drop"], "expected: --policy drop"),
        (["--data", "b.jsonl", "--data-format", "rowz"], "did you mean 'rows'"),
        (["--preset", "w4a16", "--policy", "drop"], "--policy and no data"),
        (["--preset", "w4a16", "--data-format", "rows"], "--data-format and no data"),
        (["--preset", "w4a16", "--option", "delimiter=;"], "--option and no data"),
    ],
)
def test_wrong_options_of_data_come_before_the_work(run, broken, tmp_path, monkeypatch, arguments, what):
    monkeypatch.setattr(ModelQuantizer, "quantize_view", lambda *_, **__: pytest.fail("the work started"))
    code, out, err = run("quantize", "build.py:make", "-o", "out", *arguments)
    assert code == 2 and what in err and not out and not (tmp_path / "out").exists()
