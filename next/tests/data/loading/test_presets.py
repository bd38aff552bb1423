# SPDX-License-Identifier: Apache-2.0
"""Six presets from files of every form: exactly the answer and its end are learned (claims 3.6 and 3.12)."""

import csv
import json

import pytest

from fewbit.data.loading import generate_dataset_config
from fewbit.data.loading.prepare import prepare
from fewbit.data.loading.presets import PRESETS
from fewbit.errors import DataError, UsageError
from tiny_tokenizers import piece_tokenizer

ROWS = {
    "gsm8k": {"question": "What is 2 plus 3?", "answer": "It is <<2+3=5>>5.\n#### 5"},
    "alpaca": {"instruction": "Name a colour.", "input": "", "output": "Blue is one."},
    "samsum": {"dialogue": "Amy: coming?\nBen: yes, in an hour", "summary": "Ben comes in an hour."},
    "grammar": {"input": "He go home.", "target": "He goes home."},
    "custom_dataset": {"prompt": "What is 2 plus 3?", "answer": "It is 5."},
    "imdb": {"text": "A dull film.", "label": 0},
}
ANSWERS = {"gsm8k": "answer", "alpaca": "output", "samsum": "summary", "grammar": "target", "custom_dataset": "answer"}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def rows_of(name, count=8):
    column = next(
        each for each in ("question", "instruction", "dialogue", "input", "prompt", "text") if each in ROWS[name]
    )
    label = {"label": 1} if name == "imdb" else {}
    return [{**ROWS[name], column: f"{ROWS[name][column]} ({n})", **(label if n % 2 else {})} for n in range(count)]


def write(path, rows):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def learned(sample):
    return [token for token, label in zip(sample["input_ids"], sample["labels"]) if label != -100]


def test_the_presets_of_the_guide_are_there():
    assert set(PRESETS) == set(ROWS)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("name", ROWS)
def test_files_of_every_form(name, suffix, tmp_path):
    path = write(tmp_path / f"rows{suffix}", rows_of(name))
    dataset = generate_dataset_config(name, [], {"path": path}).open(None)
    samples = list(dataset)
    assert len(samples) == 8
    if name == "imdb":
        assert samples[0] == {"text": "A dull film. (0)", "label": 0} and samples[1]["label"] == 1
        assert list(dataset.classes) == ["negative", "positive"]
    else:
        assert samples[0]["completion"] == ROWS[name][ANSWERS[name]]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("pad", ["<pad>", "</s>"])
def test_exactly_the_answer_and_its_end_are_learned(name, pad, tmp_path):
    """Also if padding and end of text are the same token."""
    path = write(tmp_path / "rows.jsonl", rows_of(name))
    tokenizer = piece_tokenizer(pad_token=pad)
    for sample in generate_dataset_config(name, None, {"path": path, "tokenizer": tokenizer}).open(None):
        tokens = learned(sample)
        assert tokens[-1] == tokenizer.eos_token_id and tokenizer.eos_token_id not in tokens[:-1]
        assert tokenizer.decode(tokens[:-1]) == ROWS[name][ANSWERS[name]]


@pytest.mark.parametrize("longest", [24, 40, 64])
def test_alpaca_with_a_length_still_learns_the_answer(longest, tmp_path):
    path = write(tmp_path / "rows.jsonl", rows_of("alpaca"))
    tokenizer = piece_tokenizer()
    config = generate_dataset_config("alpaca", None, {"path": path, "tokenizer": tokenizer, "max_length": longest})
    for sample in config.open(None):
        assert len(sample["input_ids"]) == len(sample["labels"]) <= longest
        assert tokenizer.decode(learned(sample)[:-1]) == "Blue is one."


def test_alpaca_with_an_input(tmp_path):
    rows = [{"instruction": "Add.", "input": "2 and 2", "output": "4"}] * 2
    sample = generate_dataset_config("alpaca", [], {"path": write(tmp_path / "r.jsonl", rows)}).open(None)[0]
    assert sample["prompt"].splitlines()[4:] == ["", "### Input:", "2 and 2", "", "### Response:"]


def test_gsm8k_without_what_the_calculator_writes(tmp_path):
    path = write(tmp_path / "rows.jsonl", rows_of("gsm8k"))
    tokenizer = piece_tokenizer()
    config = generate_dataset_config(
        "gsm8k", ["tokenization", "masking"], {"path": path, "tokenizer": tokenizer, "mask_calculator": True}
    )
    assert tokenizer.decode(learned(config.open(None)[0])[:-1]) == "It is <<2+3=5.\n#### 5"


def test_gsm8k_validates_on_its_test_split(tmp_path):
    write(tmp_path / "train.jsonl", rows_of("gsm8k"))
    write(tmp_path / "test.jsonl", rows_of("gsm8k", 2))
    config = generate_dataset_config("gsm8k", [], {"path": str(tmp_path)})
    assert len(config.open("train")) == 8 and len(config.open("validation")) == 2


def test_imdb_leaves_out_rows_without_a_label(tmp_path):
    rows = [{"text": "dull", "label": "neg"}, {"text": "fine", "label": "positive"}, {"text": "?", "label": "unsup"}]
    config = generate_dataset_config("imdb", None, {"path": write(tmp_path / "r.jsonl", rows), "tokenizer": "bytes"})
    prepared = prepare(config, None)
    assert [sample["labels"] for sample in prepared.dataset()] == [0, 1]
    assert "neither negative nor positive" in prepared.preparation.lines()[0]


def test_a_file_of_its_name_is_found(tmp_path):
    write(tmp_path / "samsum.jsonl", rows_of("samsum"))
    assert len(generate_dataset_config("samsum", []).open(None)) == 8


def test_a_preset_without_files_says_where_they_could_be(monkeypatch):
    with pytest.raises(UsageError, match="columns input, target"):
        generate_dataset_config("grammar", [])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    config = generate_dataset_config("gsm8k", [])
    with pytest.raises(DataError) as caught:
        config.open()
    assert "custom_config={'path'" in caught.value.hint and "question, answer" in caught.value.hint


def test_the_cache_of_the_datasets_library_needs_no_network(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    folder = tmp_path / "datasets" / "openai___gsm8k" / "main" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    for name, count in (("train", 8), ("test", 2)):
        table = pyarrow.Table.from_pylist(rows_of("gsm8k", count))
        with pyarrow.ipc.new_stream(str(folder / f"gsm8k-{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    config = generate_dataset_config("gsm8k", [])
    assert len(config.open("train")) == 8 and len(config.open("validation")) == 2


def test_other_column_names_are_asked_for_with_a_guess(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"questions": "q", "solution": "a"}] * 3)
    with pytest.raises(UsageError) as caught:
        generate_dataset_config("gsm8k", [], {"path": path}).open(None)
    assert "'question': 'questions'" in str(caught.value) and "a.jsonl:1" in str(caught.value)
    columns = {"question": "questions", "answer": "solution"}
    assert generate_dataset_config("gsm8k", [], {"path": path, "columns": columns}).open(None)[0]["completion"] == "a"


CUSTOM = {
    "pair": ({"question": "a?", "answer": "b"}, {"prompt": "a?\n", "completion": "b"}),
    "spaced": ({"prompt": "a? ", "completion": "b"}, {"prompt": "a? ", "completion": "b"}),
    "instruction": (
        {"instruction": "Add.", "input": "1 1", "output": "2"}, {"prompt": "Add.\n\n1 1\n", "completion": "2"},
    ),
    "text": ({"text": "only"}, {"text": "only"}),
    "chat": ({"messages": [{"role": "user", "content": "hi"}]}, {"messages": [{"role": "user", "content": "hi"}]}),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "hi"}]}, {"messages": [{"role": "user", "content": "hi"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CUSTOM)
def test_columns_say_what_rows_are(kind, tmp_path):
    row, expected = CUSTOM[kind]
    sample = generate_dataset_config(write(tmp_path / "rows.jsonl", [row] * 2), []).open(None)[0]
    assert {name: sample[name] for name in expected} == expected


def test_named_columns_are_all_that_is_read(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a", "meta": {"body": "x"}}] * 2)
    assert generate_dataset_config(path, [], {"columns": {"text": "meta.body"}}).open(None)[0] == {"text": "x"}
    named = {"prompt": "question", "completion": "answer"}
    assert generate_dataset_config(path, [], {"columns": named}).open(None)[0] == {"prompt": "q\n", "completion": "a"}
    with pytest.raises(UsageError, match="no column 'boddy'"):
        generate_dataset_config(path, [], {"columns": {"text": "boddy"}}).open(None)


def test_class_names_are_numbered_in_one_order(tmp_path):
    path = write(tmp_path / "r.jsonl", [{"text": "a", "label": "spam"}, {"text": "b", "label": "ham"}])
    dataset = generate_dataset_config(path, []).open(None)
    assert [sample["label"] for sample in dataset] == [1, 0] and list(dataset.classes) == ["ham", "spam"]
    rows = [{"text": "a", "label": "spam"}, {"text": "b", "label": "ham"}]
    dataset = generate_dataset_config(rows, [], {"classes": ["spam", "ham"]}).open(None)
    assert [sample["label"] for sample in dataset] == [0, 1]
