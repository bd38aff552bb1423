# SPDX-License-Identifier: Apache-2.0
"""What newcomers do with `fewbit finetune`: the advice they are given works as it stands."""

import re
import shlex
import warnings

import orjson
import pytest

from fewbit import cli
from fewbit.tuning.checkpoints import Checkpoints
from tuning_runs import language_model
from word_tokenizer import make_tokenizer


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    language_model(vocab_size=96).save_pretrained("model")
    make_tokenizer().save_pretrained("model")
    rows = [{"prompt": f"w{10 + i} w{11 + i}", "answer": f"w{12 + i} w{13 + i}"} for i in range(30)]
    lines = [*map(orjson.dumps, rows)]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join([*lines[:3], b"{oops", *lines[3:]]))
    (tmp_path / "latin.csv").write_bytes(b"text,label\n" + b"w10 w\xff,a\nw11 w12,b\n" * 10)
    (tmp_path / "asked.csv").write_text("prompt,answer\n" + "w10 w11,a\nw11 w12,b\n" * 10)
    (tmp_path / "missing.csv").write_text("text,label\nw10 w11,a\nw10 w12,\n" + "w12 w13,b\nw10,a\n" * 10)
    return tmp_path


@pytest.fixture
def classifier(files):
    from transformers import AutoConfig, LlamaForSequenceClassification

    config = AutoConfig.from_pretrained("model", num_labels=2, pad_token_id=0)
    LlamaForSequenceClassification(config).save_pretrained("classifier")
    make_tokenizer().save_pretrained("classifier")
    return "classifier"


def line(data, *more, model="model"):
    words = ["finetune", model, "--data", data, "-o", "out", "--device", "cpu", "--batch-size", "4"]
    return [*words, "--option", "tensorboard=false", *([] if "--max-steps" in more else ["--max-steps", "2"]), *more]


def advised(told, flag):
    """The words of an advice that begin with a flag, as a shell reads them."""
    found = re.search(rf"{flag} ('[^']*'|\S+)", told)
    assert found, told
    return shlex.split(found[0].rstrip(";,"))


def test_the_policy_that_is_advised_goes_on(files, capsys):
    assert cli.run(line("bad.jsonl")) == 1
    told = capsys.readouterr().err
    assert told.count("--policy") == 1
    assert cli.run(line("bad.jsonl", *advised(told, "--policy"))) == 0
    assert "bad.jsonl:4" in capsys.readouterr().out


def test_a_policy_reaches_data_to_judge_by(files, capsys):
    assert cli.run(line("rows.jsonl", "--validation", "bad.jsonl")) == 1
    assert cli.run(line("rows.jsonl", "--validation", "bad.jsonl", "--policy", "drop")) == 0


def test_a_policy_is_said_once(files, capsys):
    assert cli.run(line("bad.jsonl", "--policy", "drop", "--data-option", "policy=drop")) == 2
    assert "one of the two" in capsys.readouterr().err


def test_the_encoding_that_is_advised_reads_the_file(classifier, capsys):
    assert cli.run(line("latin.csv", model=classifier)) == 1
    advice = advised(capsys.readouterr().err, "--data-option")
    assert cli.run(line("latin.csv", *advice, model=classifier)) == 0


@pytest.mark.parametrize("option", ["encoding=cp1252", "delimiter=;"])
def test_an_option_of_the_reader_is_no_key_and_its_place_is_told(files, capsys, option):
    assert cli.run(line("latin.csv", "--data-option", option)) == 2
    name, _, value = option.partition("=")
    _, said = advised(capsys.readouterr().err, "--data-option")
    assert said == f'reading={{"{name}": "{value}"}}'


def test_the_columns_that_are_advised_say_where_labels_are(classifier, capsys):
    assert cli.run(line("asked.csv", "--task", "sequence_classification", model=classifier)) == 1
    flag, said = advised(capsys.readouterr().err, "--data-option")
    said = said.replace("your column", "prompt").replace("another", "answer")
    assert cli.run(line("asked.csv", "--task", "sequence_classification", flag, said, model=classifier)) == 0
    capsys.readouterr()
    assert cli.run(line("asked.csv", "--data-option", "label=answer", model=classifier)) == 2
    _, said = advised(capsys.readouterr().err, "--data-option")
    assert said == 'columns={"text": "your column", "label": "answer"}'


@pytest.mark.parametrize(("name", "content"), [("none.jsonl", ""), ("none.csv", "text,label\n")])
def test_data_without_a_row_is_told_as_that(files, capsys, name, content):
    (files / name).write_text(content)
    assert cli.run(line(name)) == 1
    told = capsys.readouterr().err
    assert "there is not one row that can be read" in told and name in told and "column" not in told


def test_rows_that_are_left_out_are_told_with_file_and_line(classifier, capsys):
    assert cli.run(line("missing.csv", model=classifier)) == 0
    told = [each for each in capsys.readouterr().out.splitlines() if each.startswith("left-out")]
    assert len(told) == 1 and "missing.csv:3" in told[0] and "custom_dataset" not in told[0]


def test_a_model_that_is_not_there_is_told_alone(files, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.run(line("rows.jsonl", model="lm_")) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: no file or folder 'lm_'") and "tokenizer" not in told


def stopped(*_, **__):
    raise KeyboardInterrupt


def test_a_line_that_is_stopped_says_how_to_go_on_and_goes_on(files, capsys, monkeypatch):
    def saved(self, *given, whole=Checkpoints.save):
        whole(self, *given)
        raise KeyboardInterrupt

    words = line("rows.jsonl", "--max-steps", "4", "--option", "save_every=2", "--no-resume")
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", saved)
        assert cli.run(words) == 130
    told = capsys.readouterr().err
    assert told.startswith("what is finished lies in out/checkpoints; to go on from there: fewbit finetune model")
    again = shlex.split(told.splitlines()[0].partition(": fewbit ")[2])
    assert again == [word for word in words if word != "--no-resume"]
    assert cli.run(again) == 0
    assert "resumed: from step 2" in capsys.readouterr().out


def test_a_line_that_is_stopped_before_its_first_checkpoint_says_so(files, capsys, monkeypatch):
    monkeypatch.setattr(Checkpoints, "save", stopped)
    words = line("rows.jsonl", "--option", "save_every=1")
    assert cli.run(words) == 130
    told = capsys.readouterr().err
    assert told.startswith("no checkpoint was written yet") and "to start again: fewbit finetune model" in told
