# SPDX-License-Identifier: Apache-2.0
"""Texts in the commands and in the verbs: packing, the usual sets, what both make of the same rows."""

import json

import pytest

import fewbit
from fewbit import cli
from small_models import opt
from word_tokenizer import make_tokenizer

LONG = " ".join(["w50"] * 80)
ROWS = [{"text": text} for text in (LONG, "w10 w11", "", "w12", LONG)]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    opt().save_pretrained(tmp_path / "opt")
    make_tokenizer().save_pretrained(tmp_path / "opt")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def counts(record):
    return {line["what"]: line["rows"] for line in record["lines"] if "rows" in line}


def test_one_row_a_sample(run):
    arguments = ["compress", "opt", "--mode", "int4_sym", "--group-size", 32, "--data", "rows.jsonl", "--seqlen", 32]
    code, out, err = run(*arguments, "--pack", "pad", "-o", "out", "--json")
    assert code == 0, err
    assert counts(json.loads(out)) == {"tokenized": 5, "truncated": 2, "empty-text": 1, "repeated-text": 1}
    code, _, err = run(*arguments, "--pack", "pad", "-o", "two", "--batch-size", 4)
    assert code == 2 and "--batch-size 4 for texts that differ in length" in err and "--pack concatenate" in err
    code, _, err = run(*arguments, "--pack", "padd", "-o", "two")
    assert code == 2 and "did you mean 'pad'" in err


def test_the_verbs_read_the_same_rows_as_the_commands(run, tmp_path):
    arguments = ["--mode", "int4_sym", "--group-size", 32, "--data", "rows.jsonl", "--seqlen", 16]
    code, _, err = run("compress", "opt", *arguments, "-o", "out")
    assert code == 0, err
    made = fewbit.compress_weights(
        "opt",
        mode="int4_sym",
        group_size=32,
        dataset="rows.jsonl",
        advanced_parameters={"seqlen": 16},
        output=tmp_path / "mine",
    )
    assert (made / "fewbit.safetensors").read_bytes() == (tmp_path / "out" / "fewbit.safetensors").read_bytes()


@pytest.mark.parametrize("data", [ROWS, [row["text"] for row in ROWS], "wikitext=rows.jsonl", "notes.txt"])
def test_texts_in_python(run, tmp_path, data):
    (tmp_path / "notes.txt").write_text("w10 w11\n" * 40)
    made = fewbit.quantize("opt", data, advanced_parameters={"seqlen": 8})
    told = next(line for line in made.fewbit_record.lines if line["what"] == "tokenized")
    assert (
        told["seqlen"] == 8 and told["pack"] == "concatenate" and told["samples"] == made.fewbit_record.facts["items"]
    )


def test_a_set_that_is_not_here(run, monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("fewbit.data.formats.huggingface._hub_answers", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    code, _, err = run("quantize", "opt", "--data", "wikitext", "-o", "out")
    assert code == 1 and "wikitext=PATH" in err and "FEWBIT_WIKITEXT" in err
    code, out, err = run("quantize", "opt", "--data", "wikitext=rows.jsonl", "-o", "out")
    assert code == 0 and "the text of a row is in text" in out, err
