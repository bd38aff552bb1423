# SPDX-License-Identifier: Apache-2.0
"""Detectors compute their own loss: in two processes it is that of one, and nothing is counted twice."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from drawn_shapes import write_yolo
from fewbit.errors import UsageError
from fewbit.tuning.finetune import finetune
from fewbit.tuning.own_loss import computed_alone, refuse_unknown
from fewbit.tuning.tasks import causal_lm, object_detection
from tiny_pictures import conditional_detr, detr
from tuning_shared_detection import SETTINGS, detector

TESTS = Path(__file__).parents[1]


def losses(model):
    """What a model says of pictures with 1 and with 3 objects."""
    torch.manual_seed(0)
    found = []
    for count in (1, 3):
        labels = [{"class_labels": torch.zeros(count, dtype=torch.long), "boxes": torch.rand(count, 4) / 2 + 0.2}]
        found.append(model(pixel_values=torch.rand(1, 3, 32, 32), labels=labels).loss.item())
    return found


@pytest.mark.parametrize("make", [detr, conditional_detr])
def test_a_loss_does_not_ask_other_processes(monkeypatch, make):
    """The other one has nine objects: what is divided by would be five."""
    from accelerate import PartialState

    model = make().eval()
    wanted = losses(model)
    monkeypatch.setattr(PartialState, "_shared_state", {"there": "is one"})
    monkeypatch.setattr(PartialState, "num_processes", 2, raising=False)
    monkeypatch.setattr("transformers.loss.loss_for_object_detection.reduce", lambda boxes: boxes + 9)
    assert losses(model) != wanted
    with computed_alone(model, object_detection, 2):
        assert losses(model) == wanted
        with pytest.raises(TypeError):
            model.loss_function()  # what is raised leaves nothing behind
        assert PartialState._shared_state
    assert losses(model) != wanted and "_loss_function" not in vars(model)


def test_other_tasks_and_one_process_are_left_alone():
    model = detr()
    for task, world in ((causal_lm, 2), (object_detection, 1)):
        with computed_alone(model, task, world):
            assert "_loss_function" not in vars(model)


def test_a_loss_that_nobody_knows_is_refused():
    refuse_unknown(nn.Linear(2, 2), object_detection, 1)
    refuse_unknown(nn.Linear(2, 2), SimpleNamespace(), 2)
    refuse_unknown(detr(), object_detection, 2)
    with pytest.raises(UsageError, match="a Linear in 2 processes"):
        refuse_unknown(nn.Linear(2, 2), object_detection, 2)


class Wrapped(nn.Module):
    """Has a model of transformers' inside, and a loss of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def test_what_is_around_a_model_has_a_loss_that_nobody_knows():
    for model in (Wrapped(detr()), Wrapped(detr().model)):
        with pytest.raises(UsageError, match="a Wrapped in 2 processes"):
            refuse_unknown(model, object_detection, 2)


def test_adapters_leave_the_loss_where_it_is():
    peft = pytest.importorskip("peft")
    model = detr()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    refuse_unknown(adapted, object_detection, 2)
    with computed_alone(adapted, object_detection, 2):
        assert "_loss_function" in vars(model)
    assert "_loss_function" not in vars(model)
    with pytest.raises(UsageError, match="in 2 processes"):
        around = peft.get_peft_model(Wrapped(detr()), peft.LoraConfig(target_modules=["q_proj"]))
        refuse_unknown(around, object_detection, 2)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_give_the_curve_and_the_precision_of_one(tmp_path, sharding):
    data = str(write_yolo(tmp_path / "shapes", train=11, val=7, kinds=2))
    alone = finetune(detector(), data, **SETTINGS)
    output = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    script = [str(TESTS / "tuning_shared_detection.py"), str(output), data, sharding]
    done = subprocess.run([*command, *script], capture_output=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    facts, wanted = orjson.loads((output / "record.json").read_bytes())["facts"], alone.fewbit_record.facts
    assert facts["processes"] == 2 and facts["sharding"] == sharding
    assert [loss for _, loss in facts["loss"]] == pytest.approx([loss for _, loss in wanted["loss"]], rel=1e-4)
    for mine, other in zip(facts["evaluations"], wanted["evaluations"], strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-6)
    assert wanted["after"]["recall"] > 0  # or the numbers say nothing
    weights = load_file(output / "model.safetensors")
    for name, weight in alone.state_dict().items():
        if name in weights and weight.is_floating_point():
            assert (weights[name] - weight).abs().mean() < 1e-4, name
