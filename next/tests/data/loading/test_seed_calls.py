# SPDX-License-Identifier: Apache-2.0
"""The three calls of the guide on fine-tuning data, word for word; and what a user may rely on (claims 3.1 to 3.3)."""

import sqlite3

import pytest
import torch

from fewbit.data.loading import device_aware_data_loading, generate_dataset_config, get_custom_data_collator
from fewbit.errors import FewbitWarning, UsageError

UNEVEN = [{"text": "word " * (1 + n * 7 % 30)} for n in range(64)]


def load(data, steps=("tokenization", "masking"), split="train", **custom):
    config = generate_dataset_config(data, list(steps), {"tokenizer": "bytes", "batch_size": 4, **custom})
    return device_aware_data_loading(config, target_device="cpu", split=split)


def tokens(loader):
    return [batch["input_ids"].tolist() for batch in loader]


def test_the_printed_example_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
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
    padding = batch["attention_mask"] == 0
    assert len(batch["input_ids"]) == 10 == len(loader.dataset) == loader.report.samples
    assert (batch["labels"][padding] == -100).all() and padding.any()
    assert (batch["input_ids"][padding] == dataset_config.tokenizer.pad_token_id).all()
    with pytest.raises(UsageError, match="not available"):
        device_aware_data_loading(dataset_config.replace(require_device=True), target_device="gpu")


def test_every_row_arrives_unless_a_validation_share_is_asked_for(write):
    path = write([{"prompt": f"{n}?", "completion": str(n)} for n in range(100)])
    loader = load(path)
    assert loader.report.rows == loader.report.samples == 100 == sum(map(len, tokens(loader)))
    with pytest.raises(UsageError, match="no validation split"):
        load(path, split="validation")
    train, validation = (load(path, split=split, validation_ratio=0.1) for split in ("train", "validation"))
    assert (train.report.samples, validation.report.samples) == (90, 10)
    assert any("10 rows of 100 cut off" in note for note in train.report.notes)


def test_repeated_rows_stay_together_in_any_order_and_classes_in_proportion(write):
    rows = [{"text": f"row {n % 20}", "label": n % 2} for n in range(100)]
    config = generate_dataset_config(write(rows), [], {"validation_ratio": 0.1})
    train, validation = ({sample["text"] for sample in config.open(split)} for split in ("train", "validation"))
    assert not train & validation and len(train | validation) == 20
    assert [sample["label"] for sample in config.open("validation")].count(0) == 5 == len(config.open("validation")) / 2
    reverse = generate_dataset_config(write(rows[::-1], "reverse.jsonl"), [], {"validation_ratio": 0.1})
    assert {sample["text"] for sample in reverse.open("validation")} == validation


def test_few_rows_of_many_classes_can_be_cut_and_equal_rows_cannot(write):
    rows = [{"text": f"film number {n}", "label": "pos" if n < 20 else "neg"} for n in range(40)]
    config = generate_dataset_config("imdb", [], {"path": write(rows), "validation_ratio": 0.1})
    assert sorted(sample["label"] for sample in config.open("validation")) == [0, 0, 1, 1]
    classes = [{"text": f"text {n}", "label": n} for n in range(10)]
    assert len(generate_dataset_config(classes, [], {"validation_ratio": 0.1}).open("validation")) == 1
    with pytest.raises(Exception, match="cannot be cut in two"):
        generate_dataset_config([{"text": "same"}] * 9, [], {"validation_ratio": 0.1}).open()


@pytest.mark.parametrize("steps", [("tokenization", "masking"), ()])
def test_unusable_rows_are_warned_about_and_counted_from_the_cache_too(write, steps):
    rows = [{"prompt": f"{n}?", "completion": str(n)} for n in range(17)]
    rows += [{"prompt": "a?", "completion": ""}, {"prompt": "b?"}, {"prompt": " ", "completion": "c"}]
    path = write(rows)
    for _ in range(2):
        with pytest.warns(FewbitWarning, match="left out") as warned:
            loader = load(path, steps)
        lines = " ".join(str(each.message) for each in warned)
        assert "'completion' is empty" in lines and "'completion' is missing" in lines and "rows.jsonl:18" in lines
        assert loader.report.rows == 20 and loader.report.samples == 17 and sum(loader.report.dropped.values()) == 3
        assert "17 samples of 20 rows, 3 rows left out" in str(loader.report)


def test_the_configuration_holds_unless_the_call_says_otherwise(write):
    custom = {"tokenizer": "bytes", "batch_size": 4, "shuffle": False, "drop_last": True}
    config = generate_dataset_config(write([{"text": f"word {n}"} for n in range(22)]), ["tokenization"], custom)
    loader = device_aware_data_loading(config)
    batches = tokens(loader)
    assert list(map(len, batches)) == [4] * 5 and loader.report.workers == 0
    assert bytes(batches[0][0][:6]) == b"word 0"
    with pytest.warns(FewbitWarning, match="batch_size=5 of the call") as warned:
        every = device_aware_data_loading(config, drop_last=False, batch_size=5)
    assert warned[0].filename == __file__ and list(map(len, tokens(every))) == [5, 5, 5, 5, 2]


def test_train_is_shuffled_and_validation_is_not(write):
    path = write([{"text": f"word {n}"} for n in range(64)])
    train, validation = (load(path, split=split, validation_ratio=0.25) for split in ("train", "validation"))
    assert tokens(train) != tokens(train) and tokens(validation) == tokens(validation)


def test_length_grouping_pads_less_and_resumes(write):
    path = write(UNEVEN)
    plain, grouped, resumed, reading = (
        load(path, steps) for steps in (["tokenization"], *[["tokenization", "length_grouping"]] * 3)
    )
    tokens(plain)
    expected = tokens(grouped)
    assert grouped.report.padding_share < 0.5 * plain.report.padding_share
    batches = iter(reading)
    next(batches), next(batches)
    resumed.load_state_dict(reading.state_dict())
    assert tokens(resumed) == expected[2:]


def test_packed_rows_reach_the_loader(write):
    loader = load(write(UNEVEN), ["tokenization", "packing"], max_length=200)
    batch = next(iter(loader))
    rows, width = batch["input_ids"].shape
    assert batch["attention_mask"].shape == (rows, 1, width, width)
    assert (batch["position_ids"] == 0).sum() > rows and loader.report.padding_share < 0.1


def test_the_datas_own_splits(write, tmp_path):
    for name, count in (("train", 60), ("valid", 20), ("test", 20)):
        write([{"text": f"{name} {n}"} for n in range(count)], f"{name}.jsonl")
    sizes = [load(str(tmp_path), split=split).report.samples for split in ("train", "validation", "test", None)]
    assert sizes == [60, 20, 20, 100]
    with pytest.raises(UsageError, match="no split 'holdout'"):
        load(str(tmp_path), split="holdout")
    (tmp_path / "valid.jsonl").unlink()  # a test split is not validated on unless the user says so
    with pytest.raises(UsageError, match="no validation split"):
        load(str(tmp_path), split="validation")
    cut = generate_dataset_config(str(tmp_path), [], {"validation_ratio": 0.1}).open("validation")
    assert len(cut) == 6 and all(sample["text"].startswith("train") for sample in cut)
    assert len(generate_dataset_config(str(tmp_path), [], {"validation_split": "test"}).open("validation")) == 20


def test_databases_functions_and_objects_of_the_datasets_library(tmp_path):
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE chats (prompt TEXT, completion TEXT)")
        database.executemany("INSERT INTO chats VALUES (?, ?)", [(f"{n}?", str(n)) for n in range(12)])
    database.close()
    for data in (str(tmp_path / "rows.db"), f"sqlite:///{tmp_path}/rows.db"):
        assert load(data).report.samples == 12
    assert load(lambda: ({"text": f"row {n}"} for n in range(7))).report.samples == 7
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": f"{n}?", "completion": str(n)} for n in range(20)])
    assert load(rows).report.samples == 20
    splits = datasets.DatasetDict({"train": rows.select(range(15)), "validation": rows.select(range(15, 20))})
    splits.save_to_disk(tmp_path / "saved")
    for data in (splits, str(tmp_path / "saved")):
        assert [load(data, split=split).report.samples for split in ("train", "validation")] == [15, 5]
