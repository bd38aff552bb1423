# SPDX-License-Identifier: Apache-2.0
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
