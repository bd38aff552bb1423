# SPDX-License-Identifier: Apache-2.0
"""Settings without effect are told, codes of codes refused, and a run that gained nothing says so."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fewbit
from fewbit import registry
from fewbit.errors import UsageError
from fewbit.tuning.finetune import finetune
from fewbit.tuning.idle_options import OF_TEACHERS, idle
from fewbit.tuning.options import Options
from fewbit.tuning.run_facts import nothing_gained

RUN = {"task": "sequence_classification", "device": "cpu", "tensorboard": False, "max_steps": 2}


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))


def loader():
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (32,), generator=draw)
    return DataLoader(TensorDataset(torch.randn(32, 16, generator=draw), labels), batch_size=8)


def notes(model):
    return {line["what"]: line["reason"] for line in model.fewbit_record.lines}


@pytest.mark.parametrize("method", ["qat", "distill"])
def test_a_preset_for_a_model_that_has_codes_is_refused(tmp_path, method):
    small = fewbit.compress_weights(mlp(), mode="int8_sym")
    more = {"teacher": mlp()} if method == "distill" else {}
    with pytest.raises(UsageError, match="preset='w8a8', and the Sequential has codes already") as told:
        finetune(small, loader(), method=method, preset="w8a8", output=tmp_path / "out", **more, **RUN)
    assert "leave preset out" in told.value.try_
    finetune(small, loader(), method=method, output=tmp_path / "out", **more, **RUN)  # nothing was begun there


def test_full_says_that_codes_stay():
    small = fewbit.compress_weights(mlp(), mode="int8_sym")
    weights, rest = 16 * 32 + 32 * 3, 32 + 3
    said = notes(finetune(small, loader(), **RUN))["codes-stay"]
    assert said.startswith(f"{rest} of {weights + rest} parameters learn: {weights} are codes")
    assert "method='qat' or method='lora'" in said
    for method in ("qat", "lora"):
        assert "codes-stay" not in notes(finetune(small, loader(), method=method, **RUN))
    assert "codes-stay" not in notes(finetune(mlp(), loader(), **RUN))


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("full", {"rank": 4}, "rank=4 is for method='dora' or method='lora', and does nothing with method='full'"),
        ("lora", {"preset": "w8a8"}, "preset='w8a8' is for method='distill' or method='qat', and does nothing"),
        ("lora", {"temperature": 3.0}, "temperature is for runs with a teacher"),
    ],
)
def test_settings_without_effect_are_told(method, options, said):
    assert notes(finetune(mlp(), loader(), method=method, **options, **RUN))["no-effect"].startswith(said)


def test_settings_with_effect_are_not():
    for name in registry.names("methods"):
        own = registry.get("methods", name).OPTIONS
        assert set(own) <= {key.name for key in Options.known()}
        assert idle(dict.fromkeys((*own, *OF_TEACHERS, "lr"), "another"), name, mlp()) is None
    assert idle({"rank": 16, "temperature": 2.0}, "full", None) is None  # what they are anyway


def test_a_run_that_gained_nothing_says_which_way_to_go():
    data = loader()
    model = finetune(mlp(), data, **{**RUN, "max_steps": 40}, lr=1e-2)
    lost = notes(finetune(model, data, validation=data, lr=3.0, **RUN))["nothing-gained"]
    assert "no evaluation was better" in lost and lost.endswith("try a lower lr than 3")
    still = notes(finetune(model, data, validation=data, lr=0.0, **RUN))["nothing-gained"]
    assert "hardly moved" in still and still.endswith("try a higher lr than 0")
    for more in ({"lr": 1e-2, "judge_by": "loss"}, {"lr": 3.0, "keep_best": False}):
        assert "nothing-gained" not in notes(finetune(mlp(), data, validation=data, **more, **RUN))


def test_an_evaluation_that_is_no_number_calls_for_a_lower_rate():
    facts = {"best_step": 0, "steps": 2, "evaluations": [{"loss": 1.0}, {"loss": 1.001}, {"loss": float("nan")}]}
    assert "lower" in (nothing_gained(facts, 0.1) or "")
