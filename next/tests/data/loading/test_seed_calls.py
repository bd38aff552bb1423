# SPDX-License-Identifier: Apache-2.0
"""The three calls of the guide on fine-tuning data, word for word; and what a user may rely on (claims 3.1 to 3.3)."""

import json

import pytest
import torch

from fewbit.data.loading import device_aware_data_loading, generate_dataset_config, get_custom_data_collator
from fewbit.errors import FewbitWarning, UsageError

no_gpu = pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(data, steps=("tokenization", "masking"), split="train", **custom):
    config = generate_dataset_config(data, list(steps), {"tokenizer": "bytes", "batch_size": 4, **custom})
    return device_aware_data_loading(config, target_device="cpu", split=split)


@no_gpu
def test_the_printed_example_runs():
    with pytest.warns(FewbitWarning) as warned:
        # Generate dataset configuration
        dataset_config = generate_dataset_config(
            dataset_name="custom_dataset",
            preprocessing_steps=["tokenization", "padding"],
            custom_config={"batch_size": 32},
        )

        # Define custom data collator
        custom_data_collator = get_custom_data_collator(dataset_config, batch_size=32, padding=True)

        # Load preprocessed dataset onto target device
        loader = device_aware_data_loading(
            dataset_config,
            custom_data_collator,
            target_device="gpu"
        )  # fmt: skip
    assert {each.message.code for each in warned} == {"example-rows", "byte-tokenizer", "device-missing"}
    assert all(each.filename == __file__ for each in warned)
    (batch,) = list(loader)
    assert len(batch["input_ids"]) == 10 == len(loader.dataset) == loader.report.samples
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert (batch["input_ids"][batch["attention_mask"] == 0] == dataset_config.tokenizer.pad_token_id).all()


@no_gpu
@pytest.mark.filterwarnings("ignore::fewbit.errors.FewbitWarning")
def test_a_device_can_be_required():
    config = generate_dataset_config("custom_dataset", ["tokenization"], {"require_device": True})
    with pytest.raises(UsageError, match="not available"):
        device_aware_data_loading(config, target_device="gpu")


def test_every_row_arrives_unless_a_validation_share_is_asked_for(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"prompt": f"{n}?", "completion": str(n)} for n in range(100)])
    loader = load(path)
    assert loader.report.rows == loader.report.samples == 100
    assert sum(len(batch["input_ids"]) for batch in loader) == 100
    with pytest.raises(UsageError, match="no validation split"):
        load(path, split="validation")
    train, held_out = load(path, validation_ratio=0.1), load(path, split="validation", validation_ratio=0.1)
    assert (train.report.samples, held_out.report.samples) == (90, 10)
    assert any("10 rows of 100 cut off" in note for note in train.report.notes)


def test_repeated_rows_stay_together_and_classes_in_proportion(tmp_path):
    rows = [{"text": f"row {n % 20}", "label": n % 2} for n in range(100)]
    path = write(tmp_path / "rows.jsonl", rows)
    config = generate_dataset_config(path, [], {"validation_ratio": 0.1})
    train, held_out = config.open("train"), config.open("validation")
    texts = [{sample["text"] for sample in part} for part in (train, held_out)]
    assert not texts[0] & texts[1] and len(texts[0] | texts[1]) == 20
    assert sorted({sample["label"] for sample in held_out}) == [0, 1]
    moved = generate_dataset_config(write(tmp_path / "moved.jsonl", rows[::-1]), [], {"validation_ratio": 0.1})
    assert {sample["text"] for sample in moved.open("validation")} == texts[1]


def test_40_balanced_rows_give_both_classes_to_validate_on(tmp_path):
    rows = [{"text": f"film number {n}", "label": "pos" if n < 20 else "neg"} for n in range(40)]
    config = generate_dataset_config("imdb", [], {"path": write(tmp_path / "r.jsonl", rows), "validation_ratio": 0.1})
    assert sorted(sample["label"] for sample in config.open("validation")) == [0, 0, 1, 1]


def test_unusable_rows_are_counted_in_the_report_and_warned_about(tmp_path):
    rows = [{"prompt": f"{n}?", "completion": str(n)} for n in range(17)]
    rows += [{"prompt": "a?", "completion": ""}, {"prompt": "b?"}, {"prompt": " ", "completion": "c"}]
    path = write(tmp_path / "rows.jsonl", rows)
    for steps in (("tokenization", "masking"), ()):
        with pytest.warns(FewbitWarning, match="left out") as warned:
            loader = load(path, steps)
        assert loader.report.rows == 20 and loader.report.samples == 17
        assert sum(loader.report.dropped.values()) == 3
        lines = " ".join(str(each.message) for each in warned)
        assert "'completion' is empty" in lines and "'completion' is missing" in lines and "rows.jsonl:18" in lines
        assert "17 samples of 20 rows, 3 rows left out" in str(loader.report)


def test_unusable_rows_are_counted_again_when_tokens_come_from_the_cache(tmp_path):
    rows = [{"prompt": "a?", "completion": "b"}, {"prompt": "b?", "completion": ""}]
    path = write(tmp_path / "rows.jsonl", rows)
    for _ in range(2):
        with pytest.warns(FewbitWarning, match="1 of 2 rows left out"):
            assert load(path).report.dropped


def test_the_configuration_holds_unless_the_call_says_otherwise(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"text": f"word {n}"} for n in range(22)])
    config = generate_dataset_config(
        path, ["tokenization"], {"tokenizer": "bytes", "batch_size": 4, "shuffle": False, "drop_last": True}
    )
    loader = device_aware_data_loading(config)
    batches = list(loader)
    assert [len(batch["input_ids"]) for batch in batches] == [4] * 5 and loader.report.workers == 0
    assert bytes(batches[0]["input_ids"][0, :6].tolist()) == b"word 0"
    with pytest.warns(FewbitWarning, match="batch_size=5 of the call") as warned:
        every = device_aware_data_loading(config, drop_last=False, batch_size=5)
    assert warned[0].filename == __file__ and sum(len(batch["input_ids"]) for batch in every) == 22


def test_validation_is_in_order_and_train_is_not(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"text": f"word {n}"} for n in range(64)])
    train, held_out = (load(path, split=split, validation_ratio=0.25) for split in ("train", "validation"))
    epochs = [[batch["input_ids"].tolist() for batch in train] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert [b["input_ids"].tolist() for b in held_out] == [b["input_ids"].tolist() for b in held_out]


def test_grouped_lengths_pad_less_and_resume(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"text": "word " * (1 + n * 7 % 30)} for n in range(64)])
    plain, grouped = load(path, ["tokenization"]), load(path, ["tokenization", "length_grouping"])
    list(plain)
    whole = [batch["input_ids"].tolist() for batch in grouped]
    assert grouped.report.padding_share < 0.5 * plain.report.padding_share
    reading, again = load(path, ["tokenization", "length_grouping"]), load(path, ["tokenization", "length_grouping"])
    batches = iter(reading)
    next(batches), next(batches)
    again.load_state_dict(reading.state_dict())
    assert [batch["input_ids"].tolist() for batch in again] == whole[2:]


def test_packed_rows_reach_the_loader(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"text": "word " * (1 + n * 7 % 30)} for n in range(64)])
    loader = load(path, ["tokenization", "packing"], max_length=200)
    batch = next(iter(loader))
    rows, width = batch["input_ids"].shape
    assert batch["attention_mask"].shape == (rows, 1, width, width)
    assert (batch["position_ids"] == 0).sum() > rows and loader.report.padding_share < 0.1


def test_own_splits_60_20_20(tmp_path):
    for name, count in (("train", 60), ("valid", 20), ("test", 20)):
        write(tmp_path / f"{name}.jsonl", [{"text": f"{name} {n}"} for n in range(count)])
    sizes = [load(str(tmp_path), split=split).report.samples for split in ("train", "validation", "test", None)]
    assert sizes == [60, 20, 20, 100]
    with pytest.raises(UsageError, match="no split 'holdout'"):
        load(str(tmp_path), split="holdout")


def test_a_test_split_is_nobodys_validation(tmp_path):
    write(tmp_path / "train.jsonl", [{"text": f"t {n}"} for n in range(20)])
    write(tmp_path / "test.jsonl", [{"text": f"x {n}"} for n in range(20)])
    with pytest.raises(UsageError, match="no validation split"):
        load(str(tmp_path), split="validation")
    held_out = generate_dataset_config(str(tmp_path), [], {"validation_ratio": 0.1}).open("validation")
    assert len(held_out) == 2 and all(sample["text"].startswith("t") for sample in held_out)
    named = generate_dataset_config(str(tmp_path), [], {"validation_split": "test"}).open("validation")
    assert len(named) == 20


def test_a_database(tmp_path):
    import sqlite3

    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE chats (prompt TEXT, completion TEXT)")
        database.executemany("INSERT INTO chats VALUES (?, ?)", [(f"{n}?", str(n)) for n in range(12)])
    database.close()
    for data in (str(tmp_path / "rows.db"), f"sqlite:///{tmp_path}/rows.db"):
        assert load(data).report.samples == 12


def test_a_function_that_yields_rows():
    assert load(lambda: ({"text": f"row {n}"} for n in range(7))).report.samples == 7


def test_objects_and_folders_of_the_datasets_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": f"{n}?", "completion": str(n)} for n in range(20)])
    assert load(rows).report.samples == 20
    parts = datasets.DatasetDict({"train": rows.select(range(15)), "validation": rows.select(range(15, 20))})
    parts.save_to_disk(tmp_path / "saved")
    for data in (parts, str(tmp_path / "saved")):
        assert [load(data, split=split).report.samples for split in ("train", "validation")] == [15, 5]
