# SPDX-License-Identifier: Apache-2.0
"""The verb: what it learns, what it leaves alone, what it writes, what it refuses."""

import random

import numpy as np
import orjson
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fewbit
from fewbit.data.dataset import Dataset
from fewbit.errors import DataError, UsageError
from fewbit.tuning.finetune import finetune
from tuning_runs import SETTINGS, language_model, same, texts
from word_tokenizer import make_tokenizer

CPU = {"device": "cpu", "tensorboard": False, "workers": 0}


def blobs(count=60, batch_size=6, seed=0, **more):
    """Points around three centres."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    points = torch.eye(4)[labels] * 3 + torch.randn(count, 4, generator=draw)
    return DataLoader(TensorDataset(points, labels), batch_size=batch_size, **more)


def classifier(*extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), *extra, nn.Linear(16, 3))


def learned(model=None, data=None, **changes):
    settings = {"task": "sequence_classification", "epochs": 2, "lr": 0.05, **CPU, **changes}
    return finetune(model or classifier(), blobs() if data is None else data, **settings)


def test_a_model_learns_and_the_callers_things_stay_as_they_are():
    model = classifier(nn.Dropout(0.3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    tuned = learned(model, blobs(shuffle=True), validation=blobs(seed=1))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training and not tuned.training
    assert states[0] == random.getstate() and states[1] == np.random.get_state()[1].tolist()
    assert torch.equal(states[2], torch.get_rng_state())
    facts = tuned.fewbit_record.facts
    assert facts["after"]["accuracy"] > 0.85 > facts["before"]["accuracy"]
    assert facts["steps"] == 20 and len(facts["loss"]) == 20 and facts["epochs"] == 2
    assert facts["loss"][-1][1] < facts["loss"][0][1]
    assert facts["parameters"] == facts["learning"] == sum(each.numel() for each in model.parameters())
    assert facts["seconds"] > 0 and facts["tokens_per_second"] > 0


def test_the_same_call_gives_the_same_weights():
    assert same(learned(classifier(nn.Dropout(0.3))), learned(classifier(nn.Dropout(0.3))))
    assert not same(learned(classifier(nn.Dropout(0.3))), learned(classifier(nn.Dropout(0.3)), seed=1))


def test_frozen_parameters_stay():
    model = classifier()
    model[0].requires_grad_(False)
    tuned = learned(model)
    assert torch.equal(tuned[0].weight, model[0].weight)
    assert not torch.equal(tuned[-1].weight, model[-1].weight)
    assert tuned.fewbit_record.facts["learning"] == 16 * 3 + 3


def test_zeros_of_a_pruned_matrix_hold():
    model = classifier()
    model[0].weight.data[::2] = 0
    tuned = learned(model)
    assert (tuned[0].weight[::2] == 0).all() and (tuned[0].weight[1::2] != model[0].weight[1::2]).any()
    assert any(line["what"] == "zeros-held" for line in tuned.fewbit_record.lines)
    assert (learned(model, hold_zeros=False)[0].weight[::2] != 0).any()


def test_it_stops_when_nothing_gets_better_and_keeps_the_best():
    # What is to be judged by has other labels: the better the model gets, the worse it is there.
    wrong = [(x, (y + 1) % 3) for x, y in blobs(seed=1)]
    tuned = learned(validation=Dataset(wrong, batched=True), eval_every=2, patience=3, epochs=10)
    facts = tuned.fewbit_record.facts
    assert facts["stopped_early"] and facts["steps"] < 100
    numbers = {line["step"]: line["accuracy"] for line in facts["evaluations"]}
    assert numbers[facts["best_step"]] == max(numbers.values()) == facts["after"]["accuracy"]
    assert facts["steps"] - facts["best_step"] == 6
    last = learned(validation=Dataset(wrong, batched=True), eval_every=2, patience=3, epochs=10, keep_best=False)
    assert not same(tuned, last)


def test_a_language_model_in_a_folder_that_transformers_opens(tmp_path):
    from transformers import AutoModelForCausalLM

    model = language_model(vocab_size=96)
    model.save_pretrained(tmp_path / "float")
    make_tokenizer().save_pretrained(tmp_path / "float")
    settings = {**SETTINGS, "task": None}
    tuned = finetune(tmp_path / "float", texts(), validation=texts(6, 1), output=tmp_path / "out", **settings)
    facts = tuned.fewbit_record.facts
    assert facts["task"] == "causal_lm" and facts["written_as"] == "huggingface"
    assert facts["after"]["loss"] < facts["before"]["loss"]
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert same(opened, tuned) and opened.config.use_cache
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"metrics.jsonl", "plots", "checkpoints", "record.json", "run.json", "tokenizer.json"} <= names
    assert not any(name.startswith(".") for name in names)
    lines = [orjson.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 10))
    assert {path.name for path in (tmp_path / "out" / "checkpoints").iterdir()} == {"best", "step-00000009"}
    assert (tmp_path / "out" / "plots" / "perplexity.svg").is_file()


def test_any_module_is_written_in_our_own_format(tmp_path):
    tuned = learned(output=tmp_path / "out")
    loaded = fewbit.load(tmp_path / "out", classifier())
    x = torch.randn(5, 4)
    assert torch.equal(loaded(x), tuned(x))


def test_a_folder_of_the_users_is_refused_before_anything_is_done(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        learned(output=tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_are_learned_in_full_precision_and_returned_in_their_own(precision, dtype):
    model = language_model().to(dtype)
    tuned = finetune(model, texts(), **{**SETTINGS, "precision": precision, "lr": 3e-3, "max_steps": 6})
    facts = tuned.fewbit_record.facts
    assert {parameter.dtype for parameter in tuned.parameters()} == {dtype}
    assert facts["precision"] == precision
    reference = finetune(language_model().to(dtype).float(), texts(), **{**SETTINGS, "lr": 3e-3, "max_steps": 6})
    wanted = [loss for _, loss in reference.fewbit_record.facts["loss"]]
    tolerance = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 3e-2}[precision]
    assert [loss for _, loss in facts["loss"]] == pytest.approx(wanted, rel=tolerance)


def test_gradient_checkpointing_changes_nothing_but_memory():
    plain = finetune(language_model(), texts(), **SETTINGS)
    saving = finetune(language_model(), texts(), **SETTINGS, gradient_checkpointing=True)
    assert same(plain, saving) and not saving.is_gradient_checkpointing
    with pytest.raises(UsageError, match="gradient checkpointing"):
        learned(gradient_checkpointing=True)


def test_a_loss_that_is_no_number_names_step_and_items(tmp_path):
    samples = [{"x": torch.ones(4), "labels": 0} for _ in range(24)]
    samples[17]["x"] = torch.full((4,), 1e38)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x * 1e3)

    settings = {"task": "sequence_classification", "batch_size": 4, "shuffle": False, "log_every": 50, "save_every": 1}
    with pytest.raises(DataError, match="nan in step 5") as error:
        finetune(Model(), Dataset(samples, batched=False), output=tmp_path / "out", **settings, **CPU)
    assert "samples 16, 17, 18, 19" in str(error.value)
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["step-00000004"]


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"input_ids": torch.full((2, 3), 41), "labels": torch.ones(2, 3, dtype=torch.long)}, "40 rows"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, "no labels"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long), "labels": torch.full((2, 3), -100)}, "nothing is learned"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long), "labels": torch.ones(2, 2, dtype=torch.long)}, "one shape"),
        ({"tokens": torch.ones(2, 3), "labels": torch.ones(2, 3)}, "nothing in the batch is an input"),
    ],
)
def test_faults_of_data_are_told_before_training(batch, told, tmp_path):
    with pytest.raises(DataError, match=told) as error:
        finetune(language_model(), Dataset([batch], batched=True), task="causal_lm", output=tmp_path / "out", **CPU)
    assert "training data, batch 0" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_is_refused_with_what_can():
    with pytest.raises(UsageError, match="'lora'"):
        learned(method="lroa")
    with pytest.raises(UsageError, match="causal_lm"):
        learned(task=None)
    with pytest.raises(UsageError, match="did you mean 'lr'"):
        learned(lrr=1)
    with pytest.raises(UsageError, match="how many batches"):
        learned(data=DataLoader(_Stream(), batch_size=2))


class _Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ((torch.ones(4), index % 3) for index in range(20))


def test_a_stream_is_read_for_so_many_steps():
    settings = {"task": "sequence_classification", "max_steps": 25, "lr": 0.01, **CPU}
    tuned = finetune(classifier(), DataLoader(_Stream(), batch_size=2), **settings)
    assert tuned.fewbit_record.facts["steps"] == 25 and tuned.fewbit_record.facts["epochs"] == 3


def test_rows_of_text_by_their_path_with_the_tokenizer_of_the_model(tmp_path):
    model = language_model(vocab_size=96)
    model.save_pretrained(tmp_path / "float")
    make_tokenizer().save_pretrained(tmp_path / "float")
    rows = [{"prompt": f"w{10 + i} w{11 + i}", "answer": f"w{12 + i} w{13 + i}"} for i in range(40)]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    tuned = finetune(tmp_path / "float", tmp_path / "rows.jsonl", batch_size=4, lr=1e-2, epochs=3, **CPU)
    facts = tuned.fewbit_record.facts
    assert facts["after"]["loss"] < facts["before"]["loss"]
    assert facts["steps"] == 27  # four of the rows are kept aside


def test_everything_that_is_wrong_with_a_call_is_said_at_once(tmp_path):
    with pytest.raises(UsageError) as told:
        finetune(
            tmp_path / "no-model", tmp_path / "rows.json", method="lorra", task="x", lrr=1, epochs=1, max_steps=1, lr=-1
        )
    for fault in ("'lorra'", "lrr", "lr=-1", "epochs=1", "task 'x'", "rows.json", "no-model"):
        assert fault in str(told.value)


def test_a_batch_that_the_model_cannot_run_is_told_with_its_place_and_shapes(tmp_path):
    wide = DataLoader(TensorDataset(torch.zeros(8, 5), torch.zeros(8, dtype=torch.long)), batch_size=4)
    with pytest.raises(DataError, match="cannot be trained on the first batch: RuntimeError") as told:
        learned(data=wide, output=tmp_path / "out")
    assert "batch 0" in told.value.where and "float32[4, 5]" in told.value.where
    learned(output=tmp_path / "out")  # nothing was learned there: other settings may have the folder


def test_rows_of_numbers_by_their_path_keep_some_aside(tmp_path):
    rows = [{"input": point.tolist(), "label": label} for points, labels in blobs() for point, label in
            zip(points, labels.tolist())]  # fmt: skip
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    facts = learned(data=str(tmp_path / "rows.jsonl")).fewbit_record.facts
    assert facts["before"]["accuracy"] <= facts["after"]["accuracy"]


def test_rows_that_were_left_out_stand_in_the_record(tmp_path):
    rows = [{"prompt": f"w{10 + n}", "answer": f"w{12 + n}"} for n in range(12)] + [{"prompt": "", "answer": "w9"}]
    more = {"tokenizer": make_tokenizer(), "validation_ratio": 0}
    config = fewbit.generate_dataset_config(rows, ["tokenization", "padding"], more)
    lines = finetune(language_model(), config, max_steps=1, **CPU).fewbit_record.lines
    assert any(line["what"] == "left-out" and "'prompt' is empty" in line["reason"] for line in lines)


def test_a_list_of_rows_is_prepared_as_a_file_of_them_is():
    rows = [{"text": f"w{10 + n} w{12 + n}"} for n in range(12)]
    with pytest.warns(UserWarning, match="every byte is a token"), pytest.raises(DataError, match="another tokenizer"):
        finetune(language_model(), rows, max_steps=1, **CPU)
    with pytest.raises(UsageError, match="data is None"):
        finetune(language_model(), None, **CPU)
