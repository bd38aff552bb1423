# SPDX-License-Identifier: Apache-2.0
"""`generate_dataset_config`: what it takes, what it refuses, and that what it gives stays as it is."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from importlib.metadata import EntryPoint

import pytest

from fewbit import registry
from fewbit.data.config import DatasetConfig, generate_dataset_config
from fewbit.errors import UsageError

ROWS = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def config(path, steps=("tokenization", "padding"), **custom):
    return generate_dataset_config(str(path), list(steps), {"tokenizer": "bytes", **custom})


def test_the_call_of_the_seed_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning) as told:
        made = generate_dataset_config(
            dataset_name="custom_dataset",
            preprocessing_steps=["tokenization", "padding"],
            custom_config={"batch_size": 32},
        )
    assert any("custom_config={'path'" in str(each.message) for each in told)
    assert any("every byte is a token" in str(each.message) for each in told)
    assert made.options["batch_size"] == 32
    assert len(made.open("train")) == 9
    assert "input_ids" in made.open("validation")[0]


def test_a_file_beside_the_caller_is_the_custom_dataset(tmp_path, monkeypatch, rows, recwarn):
    monkeypatch.chdir(tmp_path)
    rows.rename(tmp_path / "custom_dataset.jsonl")
    made = config("custom_dataset", steps=[])
    assert len(made.open(None)) == 20
    assert not recwarn.list


def test_it_cannot_be_changed(rows):
    made = config(rows, columns={"prompt": "prompt", "answer": "answer"})
    with pytest.raises(FrozenInstanceError):
        made.name = "other"
    with pytest.raises(TypeError):
        made.options["seed"] = 3
    with pytest.raises(TypeError):
        made.options["columns"]["prompt"] = "x"
    given = {"columns": {"prompt": "prompt", "answer": "answer"}, "tokenizer": "bytes"}
    made = generate_dataset_config(str(rows), [], given)
    given["columns"]["prompt"] = "other"
    assert made.options["columns"]["prompt"] == "prompt"


@pytest.mark.parametrize("way", ["yaml", "json", "dict"])
def test_it_goes_out_and_comes_back(rows, way):
    made = config(rows, max_length=64, columns={"prompt": "prompt", "answer": "answer"}, padding={"multiple_of": 8})
    out = getattr(made, f"to_{way}")()
    back = getattr(DatasetConfig, f"from_{way}")(out)
    assert back == made and hash(back) == hash(made) and back.fingerprint == made.fingerprint
    assert pickle.loads(pickle.dumps(made)) == made


def test_the_fingerprint_is_of_content(rows, tmp_path):
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_bytes(rows.read_bytes())
    assert config(rows).fingerprint == config(moved).fingerprint
    assert config(rows).fingerprint != config(rows, seed=1).fingerprint
    assert config(rows).fingerprint != config(rows, steps=["tokenization"]).fingerprint
    before = config(rows).fingerprint
    rows.write_text(rows.read_text().replace("19", "91"))
    assert config(rows).fingerprint != before


def test_the_fingerprint_is_the_same_in_another_process(rows):
    code = (
        "from fewbit.data.config import generate_dataset_config as g\n"
        f"print(g({str(rows)!r}, ['tokenization'], {{'tokenizer': 'bytes', 'max_length': 9}}).fingerprint)"
    )
    found = subprocess.check_output(
        [sys.executable, "-c", code], text=True, env=os.environ | {"PYTHONHASHSEED": "7"}
    ).strip()
    assert found == config(rows, steps=["tokenization"], max_length=9).fingerprint


def test_the_fingerprint_of_rows_in_memory_is_their_content():
    one, other = ([{"text": "a"}, {"text": "b"}], [{"text": "a"}, {"text": "c"}])
    made = [generate_dataset_config(rows, []).fingerprint for rows in (one, other, list(map(dict, one)))]
    assert made[0] == made[2] != made[1]


def test_the_users_own_code_is_part_of_the_fingerprint(rows, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def clean(sample):\n    return sample\n")
    before = config(rows, steps=[f"{own}:clean"]).fingerprint
    own.write_text("def clean(sample):\n    return dict(sample)\n")
    assert config(rows, steps=[f"{own}:clean"]).fingerprint != before


def test_all_faults_come_at_once_with_what_was_meant():
    with pytest.raises(UsageError) as caught:
        generate_dataset_config("gsm8", ["padding", "tokenisation", "tokenization"], {"max_lenght": 5, "seed": "x"})
    told = str(caught.value)
    assert "5 faults" in told
    for part in (
        "'gsm8k'",
        "'padding' comes before 'tokenization'",
        "'max_length'",
        "seed='x'",
        "did you mean 'tokenization'",
    ):
        assert part in told, part


def test_nothing_that_is_given_is_passed_over_in_silence(rows):
    """Defect 9: `data_path` and other unknown keys were dropped without a word."""
    with pytest.raises(UsageError, match="data_path: no such key"):
        config(rows, data_path="x")
    with pytest.raises(UsageError, match="mask_prompt: only 'masking' reads it, which is not among the steps"):
        config(rows, mask_prompt=True)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (["padding", "tokenization"], "comes before 'tokenization'"),
        (["masking"], "'masking' needs 'tokenization'"),
        (["tokenization", "tokenization"], "is there twice"),
        ("tokenization", "expected a list"),
        ([3], "is no text"),
    ],
)
def test_steps_that_cannot_be(rows, steps, told):
    with pytest.raises(UsageError, match=told):
        generate_dataset_config(str(rows), steps, {"tokenizer": "bytes"})


def test_columns_that_nobody_reads(rows):
    with pytest.raises(UsageError, match="did you mean 'answer'"):
        config(rows, columns={"anser": "answer"})


def test_max_length_padding_needs_a_length(rows):
    with pytest.raises(UsageError, match="expected max_length"):
        config(rows, padding="max_length")


def test_options_from_a_file(rows, tmp_path):
    (tmp_path / "options.yaml").write_text("tokenizer: bytes\nmax_length: 7\n")
    made = generate_dataset_config(str(rows), ["tokenization"], tmp_path / "options.yaml")
    assert made.options["max_length"] == 7


def test_it_can_be_read(rows):
    made = config(rows, max_length=64)
    assert "max_length=64" in repr(made) and "seed" not in repr(made)
    assert "tokenization" in made.describe() and "seed=0" in made.describe()
    assert made.replace(max_length=9).options["max_length"] == 9 and made.options["max_length"] == 64


def test_a_plug_in_is_a_preset(monkeypatch, rows):
    class Preset:
        __name__ = "their.sums"
        HUB, SPLITS, TASK, STEPS, KEYS, COLUMNS = None, {}, "causal_lm", (), (), ("prompt",)

        @staticmethod
        def example(row, options):
            return {"text": row["prompt"].upper()}

    point = EntryPoint("sums", "x:y", "fewbit.presets")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Preset())
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fewbit.presets" else [])
    made = generate_dataset_config("sums", None, {"path": str(rows)})
    assert made.open(None)[0] == {"text": "0 + 1?"}


def test_objects_of_the_datasets_library():
    datasets = pytest.importorskip("datasets")
    made = generate_dataset_config(datasets.Dataset.from_list(ROWS), ["tokenization"], {"tokenizer": "bytes"})
    assert len(made.open(None)) == 20 and made.open(None)[0]["input_ids"].tolist()[-1] == 256
    with pytest.raises(UsageError, match="save_to_disk"):
        made.to_yaml()
    same = generate_dataset_config(datasets.Dataset.from_list(ROWS), ["tokenization"], {"tokenizer": "bytes"})
    assert same.fingerprint == made.fingerprint


def test_a_folder_of_the_datasets_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list(ROWS[:15]), "validation": datasets.Dataset.from_list(ROWS[15:])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    made = generate_dataset_config(tmp_path / "saved", [], {})
    assert len(made.open("train")) == 15 and len(made.open("validation")) == 5


def test_the_users_own_reader_stands_for_a_dataset(tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def rows(path):\n    for n in range(5):\n        yield {'text': f'row {n}'}\n")
    made = generate_dataset_config(f"{own}:rows", [], {"validation_ratio": 0})
    assert [sample["text"] for sample in made.open("train")] == [f"row {n}" for n in range(5)]


def test_two_sets_of_rows_are_not_the_same_data():
    first, second = [{"text": "a"}], [{"text": "b"}]
    config = generate_dataset_config(first, [])
    assert config == generate_dataset_config(first, []) != generate_dataset_config(second, [])
    assert hash(config) == hash(generate_dataset_config(first, []))
