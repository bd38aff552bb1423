# SPDX-License-Identifier: Apache-2.0
import warnings

import orjson
import pytest

from fewbit import cli
from tuning_runs import language_model
from word_tokenizer import make_tokenizer


@pytest.fixture
def files(tmp_path):
    language_model(vocab_size=96).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"prompt": f"w{10 + i} w{11 + i}", "answer": f"w{12 + i} w{13 + i}"} for i in range(30)]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return tmp_path


def line(files, *more):
    words = ["finetune", str(files / "model"), "--data", str(files / "rows.jsonl"), "-o", str(files / "out")]
    return [*words, "--device", "cpu", "--lr", "0.01", "--option", "tensorboard=false", *more]


def test_a_model_and_rows_in_a_trained_model_out_and_the_same_line_goes_on(files, capsys):
    assert cli.run(line(files, "--max-steps", "6", "--batch-size", "4", "--json")) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert told["facts"]["steps"] == 6 and told["facts"]["task"] == "causal_lm"
    assert told["facts"]["after"]["loss"] < told["facts"]["before"]["loss"]
    assert (files / "out" / "model.safetensors").is_file() and (files / "out" / "tokenizer.json").is_file()
    assert cli.run(line(files, "--max-steps", "6", "--batch-size", "4")) == 0
    told = capsys.readouterr().out
    assert "6 steps" in told and "resumed: from step 6" in told


def test_options_of_the_data_reach_it(files, capsys):
    steps = ["--step", "tokenization", "--step", "truncation", "--data-option", "max_length=3"]
    assert cli.run(line(files, "--max-steps", "2", "--batch-size", "5", *steps, "--json")) == 0
    assert orjson.loads(capsys.readouterr().out)["facts"]["tokens"] == 2 * 5 * 3


def test_faults_are_told_in_the_words_of_the_line(files, capsys):
    assert cli.run(line(files, "--max-steps", "2", "--option", "warmpu=3", "--precision", "fp7")) == 2
    told = capsys.readouterr().err
    assert "'warmup'" in told and "fp7" in told
    assert cli.run(line(files, "--max-steps", "2")) == 0
    assert cli.run(line(files, "--max-steps", "3")) == 2
    assert "max_steps was 2 and is 3" in capsys.readouterr().err
    assert cli.run(line(files, "--max-steps", "3", "--no-resume")) == 0


PYTHON = ("custom_config", "preprocessing_steps", "generate_dataset_config", "dataset_name", "max_steps=", "{'")
"""What nobody types into a line."""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data-option", "max_lenght=3"], ["max_lenght: no such key", "--data, --step and --data-option"]),
        (["--data-option", "columns={prompt: nobody, answer: answer}"], ['--data-option \'columns={"prompt"']),
        (["--step", "padding", "--step", "tokenization"], ["'padding' comes before 'tokenization'"]),
        (["--step", "tokenisation"], ["there is no step 'tokenisation'", "'tokenization'"]),
        (["--data", "nowhere"], ["--data 'nowhere'"]),
        (["--data-option", "validation_ratio=0.000001", "--data", "one.jsonl"], ["--data-option validation_ratio=0"]),
        (["--data-option", "train_split=tarin"], ["train_split='tarin'"]),
        (["--data", "odd.jsonl"], ["--data-option columns", "--data-option 'columns={"]),
        (["--data", "names.jsonl", "--task", "sequence_classification"], ["--task"]),
        (["--method", "distill"], ["--teacher PATH"]),
        (["--epochs", "2", "--max-steps", "3"], ["--epochs 2.0 and --max-steps 3"]),
        (["--precision", "fp7", "--data-option", "max_length=0"], ["--precision fp7", "max_length=0"]),
    ],
)
def test_errors_speak_of_the_lines_own_options(files, capsys, monkeypatch, more, said):
    monkeypatch.chdir(files)
    (files / "one.jsonl").write_text('{"prompt": "w10", "answer": "w11"}\n')
    (files / "odd.jsonl").write_text('{"first_thing": 3, "and": ["x"]}\n' * 3)
    (files / "names.jsonl").write_text('{"text": "w10", "label": "a"}\n{"text": "w11", "label": "b"}\n' * 8)
    assert cli.run(line(files, *more)) != 0
    told = " ".join(capsys.readouterr().err.split())
    assert all(words in told for words in said), told
    assert not [word for word in PYTHON if word in told], told


def test_faults_of_data_and_settings_are_told_at_once(files, capsys):
    more = ["--data-option", "max_lenght=3", "--option", "warmpu=3", "--method", "loar", "--task", "casual_lm"]
    assert cli.run(line(files, *more)) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in ("max_lenght", "warmpu", "loar", "casual_lm"))


def test_warnings_speak_of_the_lines_own_options(files, capsys):
    (files / "model" / "tokenizer.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.run(line(files, "--max-steps", "1"))
    told = " ".join(capsys.readouterr().err.split())
    assert "no tokenizer is named" in told and "--data-option tokenizer=folder" in told and "custom_config" not in told
