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

ROWS = {  # prompt first, answer last
    "gsm8k": {"question": "What is 2 plus 3?", "answer": "It is <<2+3=5>>5.\n#### 5"},
    "alpaca": {"instruction": "Name a colour.", "input": "", "output": "Blue is one."},
    "samsum": {"dialogue": "Amy: coming?\nBen: yes, in an hour", "summary": "Ben comes in an hour."},
    "grammar": {"input": "He go home.", "target": "He goes home."},
    "custom_dataset": {"prompt": "What is 2 plus 3?", "answer": "It is 5."},
    "imdb": {"text": "A dull film.", "label": 0},
}
GENERATION = [name for name in ROWS if name != "imdb"]


def answer(name):
    return list(ROWS[name].values())[-1]


def rows_of(name, count=8):
    first = next(iter(ROWS[name]))
    rows = [ROWS[name] | {first: f"{ROWS[name][first]} ({n})"} for n in range(count)]
    return [row | ({"label": n % 2} if name == "imdb" else {}) for n, row in enumerate(rows)]


def write_as(path, rows):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])
    elif path.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = [json.dumps(row) for row in rows]
        path.write_text(f"[{','.join(lines)}]" if path.suffix == ".json" else "\n".join(lines))
    return str(path)


def learned(sample):
    return [token for token, label in zip(sample["input_ids"], sample["labels"]) if label != -100]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("name", PRESETS)
def test_files_of_every_form(name, suffix, tmp_path):
    path = write_as(tmp_path / f"rows{suffix}", rows_of(name))
    dataset = generate_dataset_config(name, [], {"path": path}).open(None)
    samples = list(dataset)
    assert len(samples) == 8
    if name == "imdb":
        assert samples[0] == {"text": "A dull film. (0)", "label": 0} and samples[1]["label"] == 1
        assert list(dataset.classes) == ["negative", "positive"]
    else:
        assert samples[0]["completion"] == answer(name)


@pytest.mark.parametrize("name", GENERATION)
@pytest.mark.parametrize("pad", ["<pad>", "</s>"])
def test_exactly_the_answer_and_its_end_are_learned(name, pad, write):
    """Also if padding and end of text are the same token."""
    tokenizer = piece_tokenizer(pad_token=pad)
    config = generate_dataset_config(name, None, {"path": write(rows_of(name)), "tokenizer": tokenizer})
    for sample in config.open(None):
        *tokens, end = learned(sample)
        assert end == tokenizer.eos_token_id and tokenizer.decode(tokens) == answer(name)


@pytest.mark.parametrize("max_length", [24, 40, 64])
def test_a_prompt_is_cut_before_its_answer(max_length, write):
    tokenizer = piece_tokenizer()
    custom = {"path": write(rows_of("alpaca")), "tokenizer": tokenizer, "max_length": max_length}
    for sample in generate_dataset_config("alpaca", None, custom).open(None):
        assert len(sample["input_ids"]) == len(sample["labels"]) <= max_length
        assert tokenizer.decode(learned(sample)[:-1]) == answer("alpaca")


def test_alpaca_with_an_input(write):
    path = write([{"instruction": "Add.", "input": "2 and 2", "output": "4"}] * 2)
    prompt = generate_dataset_config("alpaca", [], {"path": path}).open(None)[0]["prompt"]
    assert prompt.splitlines()[2:] == ["### Instruction:", "Add.", "", "### Input:", "2 and 2", "", "### Response:"]


def test_gsm8k_without_the_results_of_the_calculator(write):
    tokenizer = piece_tokenizer()
    custom = {"path": write(rows_of("gsm8k")), "tokenizer": tokenizer, "mask_calculator": True}
    sample = generate_dataset_config("gsm8k", ["tokenization", "masking"], custom).open(None)[0]
    assert tokenizer.decode(learned(sample)[:-1]) == "It is <<2+3=5.\n#### 5"


def test_imdb_leaves_out_rows_without_a_sentiment(write):
    rows = [{"text": "dull", "label": "neg"}, {"text": "fine", "label": "positive"}, {"text": "?", "label": "unsup"}]
    prepared = prepare(generate_dataset_config("imdb", None, {"path": write(rows), "tokenizer": "bytes"}), None)
    assert [sample["labels"] for sample in prepared.dataset()] == [0, 1]
    assert "neither negative nor positive" in prepared.preparation.lines()[0]


def test_where_a_preset_is_found(write, tmp_path, monkeypatch):
    write(rows_of("samsum"), "samsum.jsonl")
    assert len(generate_dataset_config("samsum", []).open(None)) == 8
    (tmp_path / "splits").mkdir()
    write(rows_of("gsm8k"), "splits/train.jsonl")
    write(rows_of("gsm8k", 2), "splits/test.jsonl")
    config = generate_dataset_config("gsm8k", [], {"path": "splits"})
    assert len(config.open("train")) == 8 and len(config.open("validation")) == 2
    with pytest.raises(UsageError, match="columns input, target"):
        generate_dataset_config("grammar", [])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    with pytest.raises(DataError) as caught:
        generate_dataset_config("gsm8k", []).open()
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


def test_other_column_names_are_answered_with_a_guess(write):
    path = write([{"questions": "q", "solution": "a"}] * 3)
    with pytest.raises(UsageError) as caught:
        generate_dataset_config("gsm8k", [], {"path": path}).open(None)
    assert "'question': 'questions'" in str(caught.value) and "rows.jsonl:1" in str(caught.value)
    columns = {"question": "questions", "answer": "solution"}
    assert generate_dataset_config("gsm8k", [], {"path": path, "columns": columns}).open(None)[0]["completion"] == "a"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "a?", "answer": "b"}, {"prompt": "a?\n", "completion": "b"}),
        ({"prompt": "a? ", "completion": "b"}, {"prompt": "a? ", "completion": "b"}),
        ({"instruction": "Add.", "input": "1 1", "output": "2"}, {"prompt": "Add.\n\n1 1\n", "completion": "2"}),
        ({"text": "only"}, {"text": "only"}),
        ({"conversations": [{"from": "human", "value": "hi"}]}, {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_columns_say_what_rows_are(row, expected, write):
    sample = generate_dataset_config(write([row] * 2), []).open(None)[0]
    assert {name: sample[name] for name in expected} == expected


def test_named_columns_are_all_that_is_read(write):
    path = write([{"question": "q", "answer": "a", "meta": {"body": "x"}}] * 2)

    def first(**columns):
        return generate_dataset_config(path, [], {"columns": columns}).open(None)[0]

    assert first(text="meta.body") == {"text": "x"}
    assert first(prompt="question", completion="answer") == {"prompt": "q\n", "completion": "a"}
    with pytest.raises(UsageError, match="no column 'boddy'"):
        first(text="boddy")


def test_class_names_are_numbered_in_one_order(write):
    rows = [{"text": "a", "label": "spam"}, {"text": "b", "label": "ham"}]
    dataset = generate_dataset_config(write(rows), []).open(None)
    assert [sample["label"] for sample in dataset] == [1, 0] and list(dataset.classes) == ["ham", "spam"]
    dataset = generate_dataset_config(rows, [], {"classes": ["spam", "ham"]}).open(None)
    assert [sample["label"] for sample in dataset] == [0, 1]
