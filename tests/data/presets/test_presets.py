# SPDX-License-Identifier: Apache-2.0
"""The presets: rows of every form of file, and exactly the answer and its end to learn from."""

import csv
import json

import pytest

from fewbit import registry
from fewbit.data.config import generate_dataset_config
from fewbit.errors import DataError, UsageError
from letters_tokenizer import make_tokenizer

ROWS = {
    "gsm8k": {"question": "What is 2 plus 3?", "answer": "It is <<2+3=5>>5.\n#### 5"},
    "alpaca": {"instruction": "Name a colour.", "input": "", "output": "Blue is one."},
    "samsum": {"dialogue": "Amy: coming?\nBen: yes, in an hour", "summary": "Ben comes in an hour."},
    "grammar": {"input": "He go home.", "target": "He goes home."},
    "custom_dataset": {"prompt": "What is 2 plus 3?", "answer": "It is 5."},
    "imdb": {"text": "A dull film.", "label": 0},
}
ANSWERS = {"gsm8k": "answer", "alpaca": "output", "samsum": "summary", "grammar": "target", "custom_dataset": "answer"}


def rows_of(name):
    changed = ("question", "instruction", "dialogue", "input", "prompt", "text")
    column = next(each for each in changed if each in ROWS[name])
    return [{**ROWS[name], column: f"{ROWS[name][column]} ({n})"} for n in range(8)]


def write(path, rows):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def learned(sample):
    return [token for token, label in zip(sample["input_ids"], sample["labels"]) if label != -100]


def test_all_presets_of_the_seed_are_there():
    assert set(registry.names("presets")) == set(ROWS)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("name", ROWS)
def test_files_of_every_form(name, suffix, tmp_path):
    path = write(tmp_path / f"rows{suffix}", rows_of(name))
    made = generate_dataset_config(name, [], {"path": path})
    samples = list(made.open(None))
    assert len(samples) == 8
    if name == "imdb":
        assert samples[0] == {"text": "A dull film. (0)", "label": 0} and made.open(None).classes == [
            "negative",
            "positive",
        ]
    else:
        assert samples[0]["answer"] == ROWS[name][ANSWERS[name]]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("pad", ["<pad>", "</s>"])
def test_what_is_learned_is_exactly_the_answer_and_its_end(name, pad, tmp_path):
    """Also where padding and the end are the same token."""
    path = write(tmp_path / "rows.jsonl", rows_of(name))
    tokenizer = make_tokenizer(pad_token=pad)
    made = generate_dataset_config(name, None, {"path": path, "tokenizer": tokenizer})
    for sample in made.open(None):
        tokens = learned(sample)
        assert tokens[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(tokens[:-1]) == ROWS[name][ANSWERS[name]]
        assert tokenizer.eos_token_id not in tokens[:-1]
        assert [n for n, label in zip(sample["input_ids"], sample["labels"]) if label not in (n, -100)] == []


@pytest.mark.parametrize("longest", [24, 40, 64])
def test_alpaca_with_a_length_learns_more_than_its_end(longest, tmp_path):
    """Defect 1: only the end was learned, rows were N + 1 long or not cut at all, and padding was attended to."""
    path = write(tmp_path / "rows.jsonl", rows_of("alpaca"))
    tokenizer = make_tokenizer()
    made = generate_dataset_config("alpaca", None, {"path": path, "tokenizer": tokenizer, "max_length": longest})
    for sample in made.open(None):
        assert len(sample["input_ids"]) == len(sample["labels"]) <= longest
        assert tokenizer.pad_token_id not in sample["input_ids"]
        assert (
            tokenizer.decode(learned(sample)[:-1]) == "Blue is one." and learned(sample)[-1] == tokenizer.eos_token_id
        )


def test_grammar_with_a_length_learns_no_padding(tmp_path):
    """Defect 2: prompt and target were padded one by one, to twice the length, and the padding learned."""
    path = write(tmp_path / "rows.csv", rows_of("grammar"))
    made = generate_dataset_config("grammar", None, {"path": path, "tokenizer": make_tokenizer(), "max_length": 30})
    for sample in made.open(None):
        assert len(sample["input_ids"]) <= 30 and 0 not in sample["input_ids"] and 0 not in sample["labels"]


def test_gsm8k_with_a_length_works(tmp_path):
    """Defect 3: it looked for a column that nobody made."""
    path = write(tmp_path / "rows.jsonl", rows_of("gsm8k"))
    made = generate_dataset_config("gsm8k", None, {"path": path, "tokenizer": make_tokenizer(), "max_length": 30})
    assert all(len(sample["input_ids"]) <= 30 for sample in made.open(None))


def test_gsm8k_without_what_the_calculator_writes(tmp_path):
    path = write(tmp_path / "rows.jsonl", rows_of("gsm8k"))
    tokenizer = make_tokenizer()
    made = generate_dataset_config("gsm8k", None, {"path": path, "tokenizer": tokenizer, "mask_calculator": True})
    text = tokenizer.decode(learned(made.open(None)[0])[:-1])
    assert text == "It is <<2+3=5.\n#### 5"


def test_gsm8k_judges_by_its_test_split(tmp_path):
    write(tmp_path / "train.jsonl", rows_of("gsm8k"))
    write(tmp_path / "test.jsonl", rows_of("gsm8k")[:2])
    made = generate_dataset_config("gsm8k", [], {"path": str(tmp_path)})
    assert len(made.open("train")) == 8 and len(made.open("validation")) == 2


def test_imdb_has_a_class_and_no_token_to_learn(tmp_path):
    rows = [{"text": "dull", "label": "neg"}, {"text": "fine", "label": "positive"}, {"text": "?", "label": -1}]
    path = write(tmp_path / "rows.jsonl", rows)
    found = generate_dataset_config("imdb", None, {"path": path, "tokenizer": make_tokenizer()}).open(None)
    assert [sample["labels"] for sample in found] == [0, 1]
    assert any(line["what"] == "left-out" and "-1" in line["reason"] for line in found.record.lines)


def test_a_preset_without_files_and_without_a_network_says_how(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fewbit.data.formats.huggingface._hub_answers", lambda: False)
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="no network") as caught:
        generate_dataset_config("gsm8k", []).open()
    assert "custom_config={'path'" in caught.value.try_
    with pytest.raises(UsageError, match="with the columns input, target"):
        generate_dataset_config("grammar", [])


def test_a_folder_of_its_name_is_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "samsum.jsonl", rows_of("samsum"))
    assert len(generate_dataset_config("samsum", []).open(None)) == 8


CUSTOM = {
    "chat": ({"messages": [{"role": "user", "content": "hi"}]}, {"messages": [{"role": "user", "content": "hi"}]}),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "hi"}]}, {"messages": [{"role": "user", "content": "hi"}]},
    ),
    "pair": ({"question": "a?", "answer": "b"}, {"prompt": "a?\n", "answer": "b"}),
    "spaced": ({"prompt": "a? ", "completion": "b"}, {"prompt": "a? ", "answer": "b"}),
    "class": ({"review": "fine", "stars": 3}, {"text": "fine", "label": 3}),
    "text": ({"text": "only"}, {"text": "only"}),
    "two": ({"sentence1": "a", "sentence2": "b", "label": 1}, {"text": "a\nb", "label": 1}),
}  # fmt: skip


@pytest.mark.parametrize("kind", CUSTOM)
def test_columns_say_what_rows_are(kind, tmp_path):
    row, expected = CUSTOM[kind]
    path = write(tmp_path / "rows.jsonl", [row])
    assert dict(generate_dataset_config(path, []).open(None)[0]) == expected


def test_named_columns_are_all_that_is_read(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a", "meta": {"body": "x"}}])
    assert generate_dataset_config(path, [], {"columns": {"text": "meta.body"}}).open(None)[0] == {"text": "x"}


def test_columns_that_say_nothing(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"a": "x", "b": "y"}])
    with pytest.raises(UsageError, match="do not say which is the text"):
        generate_dataset_config(path, []).open(None)


def test_classes_with_names_get_numbers(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"text": "a", "label": "spam"}, {"text": "b", "label": "ham"}])
    found = generate_dataset_config(path, [], {"task": "sequence_classification"}).open(None)
    assert [sample["label"] for sample in found] == [1, 0] and found.classes == ["ham", "spam"]


def test_plain_text_is_data(tmp_path):
    (tmp_path / "a.txt").write_text("once upon a time\n")
    assert generate_dataset_config(str(tmp_path / "a.txt"), []).open(None).source.__iter__
    assert [dict(each) for each in generate_dataset_config(str(tmp_path / "a.txt"), []).open(None)] == [
        {"text": "once upon a time\n"}
    ]
