# SPDX-License-Identifier: Apache-2.0
"""Texts in the commands and in the verbs: packing, the usual sets, what both make of the same rows."""

import ast
import json
import re

import pytest

import fewbit
from fewbit import cli
from fewbit.errors import UsageError
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


def test_what_python_is_told_about_columns_works(run):
    rows = [{"prompt": f"w{number} w11", "answer": "w12"} for number in range(10, 30)]
    with pytest.raises(UsageError) as told:
        fewbit.quantize("opt", rows, preset="w4a16")
    said = re.search(r"advanced_parameters=(\{.*\})", told.value.try_)[1].replace("NAME", "prompt")
    made = fewbit.quantize("opt", rows, preset="w4a16", advanced_parameters=ast.literal_eval(said))
    assert any(line["what"] == "tokenized" for line in made.fewbit_record.lines)


def test_a_set_that_is_not_here(run, monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("fewbit.data.formats.huggingface._hub_answers", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    code, _, err = run("quantize", "opt", "--data", "wikitext", "-o", "out")
    assert code == 1 and "wikitext=PATH" in err and "FEWBIT_WIKITEXT" in err
    code, out, err = run("quantize", "opt", "--data", "wikitext=rows.jsonl", "-o", "out")
    assert code == 0 and "the text of a row is in text" in out, err


@pytest.fixture
def classifier(tmp_path):
    """A tiny BERT that says of which of three kinds a text is, and rows whose labels are what it says itself."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = BertConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=len(tokenizer),
        max_position_embeddings=64, num_labels=3, pad_token_id=0,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    texts = [f"w{10 + i} w{20 + i % 7} w{30 + i % 5}" for i in range(12)]
    with torch.no_grad():
        said = [int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts]
    said[0] = (said[0] + 1) % 3
    rows = [{"sentence": text, "label": label} for text, label in zip(texts, said)]
    (tmp_path / "kinds.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return rows


def test_labels_of_texts_are_compared(run, classifier):
    arguments = ["compare", "bert", "bert", "--data", "kinds.jsonl"]
    for more in ((), ("--text-column", "sentence", "--batch-size", 1)):
        code, out, err = run(*arguments, *more, "--json")
        assert code == 0, err
        facts = json.loads(out)["facts"]
        assert facts["kind"] == "classes" and facts["samples"] == 12
        assert facts["accuracy"]["original"]["value"] == pytest.approx(11 / 12)
    code, out, _ = run(*arguments)
    assert code == 0 and "no difference in accuracy could be shown" in out and "labels-left-out" not in out


def test_labels_of_texts_in_python(run, classifier):
    facts = fewbit.compare("bert", "bert", classifier, text_column="sentence", seqlen=16).facts
    assert facts["accuracy"]["compressed"]["value"] == pytest.approx(11 / 12)
    loose = [{"sentence": row["sentence"], "label": "kind"} for row in classifier]  # no whole numbers
    assert "accuracy" not in fewbit.compare("bert", "bert", loose, text_column="sentence").facts


def test_labels_are_no_input_of_a_model_that_is_calibrated(run, classifier):
    made = fewbit.quantize("bert", classifier, preset="w8a8")
    assert made.fewbit_record.facts["items"] == 12


def test_a_cache_by_name(run, tmp_path):
    arguments = ["quantize", "opt", "--preset", "fp8", "--data", "rows.jsonl", "--seqlen", 16]
    code, _, err = run(*arguments, "--kv-cache", "fp8", "--format", "compressed-tensors", "-o", "out")
    assert code == 0, err
    written = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert written["kv_cache_scheme"]["num_bits"] == 8
    code, _, err = run(*arguments, "--kv-cache", "fp9", "-o", "two")
    assert code == 2 and "fp9" in err
