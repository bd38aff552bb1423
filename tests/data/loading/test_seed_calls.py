# SPDX-License-Identifier: Apache-2.0
"""The three calls of the document on fine-tuning data, in our own words; on a machine without a GPU they warn."""

import pytest
import torch

from fewbit import device_aware_data_loading, generate_dataset_config, get_custom_data_collator
from fewbit.errors import UsageError

no_gpu = pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU")


@no_gpu
def test_three_calls_give_batches_to_learn_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning) as told:
        config = generate_dataset_config(
            dataset_name="custom_dataset",
            preprocessing_steps=["tokenization", "padding"],
            custom_config={"batch_size": 32},
        )
        collator = get_custom_data_collator(config, batch_size=32, padding=True)
        loader = device_aware_data_loading(config, collator, target_device="gpu")
    said = " ".join(str(each.message) for each in told)
    assert "names no data" in said and "no tokenizer is named" in said and "there is none" in said
    assert all(each.filename == __file__ for each in told)  # each points at the call
    (batch,) = list(loader)
    assert len(batch["input_ids"]) == len(loader.dataset) <= 32
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert (batch["input_ids"][batch["attention_mask"] == 0] == config.tokenizer().pad_token_id).all()


@no_gpu
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_device_can_be_required():
    config = generate_dataset_config("custom_dataset", ["tokenization"], {"require_device": True})
    with pytest.raises(UsageError, match="there is none"):
        device_aware_data_loading(config, target_device="gpu")


ROWS = [{"text": "word " * (1 + i * 7 % 30)} for i in range(64)]


def config_of(steps=("tokenization",), **options):
    return generate_dataset_config(ROWS, list(steps), {"tokenizer": "bytes", "validation_ratio": 0.25, **options})


def test_validation_is_in_order_and_train_is_not():
    config = config_of(batch_size=5)
    train = device_aware_data_loading(config)
    first, second = ([b["input_ids"].tolist() for b in train] for _ in range(2))
    assert first != second
    judged = device_aware_data_loading(config, split="validation")
    assert [b["input_ids"].tolist() for b in judged] == [b["input_ids"].tolist() for b in judged]
    assert len(train.dataset) + len(judged.dataset) == 64


def test_options_of_the_configuration_hold_unless_the_call_says_otherwise():
    config = config_of(batch_size=4, shuffle=False, drop_last=True, workers=0)
    loader = device_aware_data_loading(config)
    batches = list(loader)
    assert {len(batch["input_ids"]) for batch in batches} == {4} and loader.report.why_workers.startswith("workers=0")
    assert batches[0]["input_ids"][1, :5].tolist() == list(b"word ")
    with pytest.warns(UserWarning, match="batch_size=5 of the call holds, not 4") as told:
        every = device_aware_data_loading(config, drop_last=False, batch_size=5)
    assert told[0].filename == __file__ and every.batch_size == 5
    assert sum(len(batch["input_ids"]) for batch in every) == len(loader.dataset)


def test_grouped_lengths_waste_less_and_go_on_where_they_were():
    plain, grouped = (
        device_aware_data_loading(config_of(steps, batch_size=4, validation_ratio=0))
        for steps in (["tokenization"], ["tokenization", "length_grouping"])
    )
    list(plain)
    whole = [batch["input_ids"] for batch in grouped]
    assert grouped.report.samples == plain.report.samples == 64
    assert grouped.report.padding_waste < 0.5 * plain.report.padding_waste
    again = device_aware_data_loading(config_of(["tokenization", "length_grouping"], batch_size=4, validation_ratio=0))
    reading = iter(again)
    next(reading), next(reading)
    third = device_aware_data_loading(config_of(["tokenization", "length_grouping"], batch_size=4, validation_ratio=0))
    third.load_state_dict(again.state_dict())
    assert [batch["input_ids"].tolist() for batch in third] == [ids.tolist() for ids in whole[2:]]


def test_packed_rows_reach_the_loader():
    config = config_of(["tokenization", "packing"], batch_size=2, max_length=200)
    batch = next(iter(device_aware_data_loading(config)))
    rows, width = batch["input_ids"].shape
    assert batch["attention_mask"].shape == (rows, 1, width, width)
    assert (batch["position_ids"] == 0).sum() > rows
