# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from fewbit.errors import UsageError
from fewbit.tuning.options import FREE, Options
from fewbit.tuning.schedules import SCHEDULES, factor


def test_every_fault_is_said_at_once():
    with pytest.raises(UsageError) as error:
        Options.read({"batchsize": 3, "lr": -1, "precision": "fp8", "epochs": 0, "schedule": "linaer", "seed": True})
    text = str(error.value)
    for part in (
        "batchsize: no such key",
        "'batch_size'",
        "lr=-1",
        "precision='fp8'",
        "epochs=0",
        "linaer",
        "seed=True",
    ):
        assert part in text


def test_epochs_and_steps_contradict():
    with pytest.raises(UsageError, match="one of the two"):
        Options.read({"epochs": 2, "max_steps": 5})


def test_every_setting_has_a_sentence_and_fits_itself():
    for key in Options.known():
        assert f"\n        {key.name}: " in Options.__doc__
        assert key.fits(key.default), key.name
    assert set(FREE) < {key.name for key in Options.known()}


def test_settings_are_json_values_and_lists_are_read():
    options = Options.read({"betas": [0.9, 0.95], "targets": ["q_proj"]})
    assert options.betas == (0.9, 0.95)
    assert options.to_dict()["betas"] == [0.9, 0.95]
    assert not set(FREE) & options.what_matters().keys()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_rises_and_then_follows_its_schedule(schedule):
    rates = [factor(schedule, step, 100, 10) for step in range(100)]
    assert rates[:10] == [(step + 1) / 10 for step in range(10)]
    assert rates[10] == 1
    half = {"constant": 1.0, "linear": 0.5, "cosine": 0.5}[schedule]
    assert factor(schedule, 55, 100, 10) == pytest.approx(half)
    later = {"constant": 1, "linear": 1 / 90, "cosine": (1 + math.cos(math.pi * 89 / 90)) / 2}[schedule]
    assert rates[-1] == pytest.approx(later)
    assert factor(schedule, 3, 100, 0.1) == rates[3]
    assert factor(schedule, 0, 1, 0) == 1
