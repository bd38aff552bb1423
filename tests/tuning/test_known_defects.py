# SPDX-License-Identifier: Apache-2.0
"""Where a trainer that went before breaks, by the numbers of the guide; the others are tested beside what they are of.

Defects 1 to 3 are in tests/data/presets, 2, 9 and 10 in tests/data/config, 11 in tests/data/steps.
"""

import random
import warnings

import numpy as np
import orjson
import pytest
import torch
from torch.nn import functional

from fewbit.data.config import generate_dataset_config
from fewbit.data.loading import device_aware_data_loading
from fewbit.tuning.finetune import finetune
from tuning_runs import SETTINGS, KillAt, language_model, same, texts
from word_tokenizer import make_tokenizer

RUN = {**SETTINGS, "accumulation": 1, "batch_size": 4, "shuffle": False}


def rows(count, *steps):
    given = [{"text": " ".join(["w10"] * (1 + 7 * n % 31))} for n in range(count)]
    options = {"tokenizer": make_tokenizer(), "validation_ratio": 0, "batch_size": 4}
    return generate_dataset_config(given, ["tokenization", *steps], options)


@pytest.mark.parametrize("count", [16, 17, 19])
def test_4_no_dummy_rows_fill_up_the_processes_and_no_labels_are_changed(count):
    config = rows(count)
    whole = config.open()
    seen = []
    for rank in range(2):
        for batch in device_aware_data_loading(config, None, "cpu", shuffle=False, rank=rank, world=2):
            for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"]):
                assert labels[mask == 1].tolist() == ids[mask == 1].tolist()
                seen.append(ids[mask == 1].tolist())
    assert sorted(seen) == sorted(list(whole[n]["input_ids"]) for n in range(count))


@pytest.mark.parametrize("count", [64, 67])
def test_5_lengths_are_grouped_and_the_callers_random_numbers_are_not_begun_anew(count):
    random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    waste = []
    for steps in ((), ("length_grouping",)):
        masks = [batch["attention_mask"] for batch in device_aware_data_loading(rows(count, *steps), None, "cpu")]
        waste.append(sum(int((mask == 0).sum()) for mask in masks))
    assert waste[1] < waste[0] / 2
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_6_a_step_with_fewer_samples_is_the_mean_over_its_tokens():
    model, data = language_model(), texts(7)
    facts = finetune(model, data, validation=False, **{**RUN, "max_steps": 2, "lr": 0.0}).fewbit_record.facts
    total, count = 0.0, 0
    for sample in list(data)[4:]:  # the three that are left for the second step
        ids, labels = torch.tensor(sample["input_ids"])[None], torch.tensor(sample["labels"])
        logits = model(input_ids=ids).logits[0, :-1]
        total += functional.cross_entropy(logits, labels[1:], reduction="sum", ignore_index=-100).item()
        count += int((labels[1:] != -100).sum())
    assert facts["loss"][1][1] == pytest.approx(total / count, rel=1e-5)


def test_7_a_run_goes_on_where_it_was_whatever_its_folder_is_called(tmp_path):
    folder = tmp_path / "out_node_rank_0" / "complete_epoch_2"
    options = {**RUN, "epochs": 3, "max_steps": None, "save_every": None, "eval_every": None}
    options.pop("max_steps")
    with pytest.raises(KeyboardInterrupt):
        finetune(language_model(), texts(12), validation=False, output=folder, progress=KillAt(8), **options)
    tuned = finetune(language_model(), texts(12), validation=False, output=folder, **options)
    resumed = [line["reason"] for line in tuned.fewbit_record.lines if line["what"] == "resumed"]
    assert resumed == ["from step 6"]  # the end of the second epoch
    assert same(tuned, finetune(language_model(), texts(12), validation=False, **options))


@pytest.mark.parametrize("validation", [False, True])
def test_8_what_is_measured_is_what_is_drawn_with_and_without_evaluations(tmp_path, validation):
    judged = texts(4, 1) if validation else False
    finetune(language_model(), texts(8), validation=judged, output=tmp_path / "run", **{**RUN, "max_steps": 3})
    lines = [orjson.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()]
    measured = {name for line in lines if line["kind"] in ("step", "eval") for name in line}
    drawn = {path.stem for path in (tmp_path / "run" / "plots").iterdir()}
    assert "loss" in drawn and {"perplexity", "token_accuracy"} & drawn == {"perplexity", "token_accuracy"} & measured
    assert ("perplexity" in drawn) == validation


def test_12_half_precision_learns_and_nothing_of_the_process_is_changed(tmp_path):
    filters, threads = list(warnings.filters), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    model = language_model().half()
    facts = finetune(
        model, texts(12), validation=False, precision="fp16", output=tmp_path / "run", **{**RUN, "max_steps": 8}
    ).fewbit_record.facts
    assert facts["loss"][-1][1] < facts["loss"][0][1] and facts["precision"] == "fp16"
    assert list(warnings.filters) == filters and torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    steps = [orjson.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["step"] for line in steps if line["kind"] == "step"] == list(range(1, 9))  # a line a step, not a file
