# SPDX-License-Identifier: Apache-2.0
"""What merging adapters into codes cost: in the numbers of the model that is delivered, and of this run alone."""

import pytest
import torch

import fewbit
from fewbit.cli.finetune import _of_merging
from fewbit.tuning.finetune import finetune
from tuning_runs import SETTINGS, language_model, texts

RUN = {**SETTINGS, "max_steps": 2, "rank": 4}


@pytest.fixture(scope="module")
def coded():
    return fewbit.compress_weights(language_model(), mode="int4_sym", group_size=8)


def test_the_numbers_are_those_of_the_model_that_is_delivered(coded):
    judged = texts(6, 1)
    tuned = finetune(coded, texts(), validation=judged, method="lora", **RUN)
    merge = tuned.fewbit_record.facts["merge"]
    again = finetune(tuned, texts(), validation=judged, **{**RUN, "max_steps": 1, "lr": 0.0})
    assert merge["after"]["loss"] == pytest.approx(again.fewbit_record.facts["before"]["loss"], rel=1e-4)
    assert merge["output_error"] > 0 and merge["after"]["loss"] != tuned.fewbit_record.facts["after"]["loss"]
    assert "merge" not in again.fewbit_record.facts  # which merged nothing
    first, second = _of_merging(merge)
    assert first.startswith("merging changed the answers by") and "loss" in second


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_few_bits_are_judged_as_they_are_delivered(dtype):
    """In fp32 the merged weights have digits that the delivered ones have lost."""
    judged = texts(6, 1)
    tuned = finetune(language_model().to(dtype), texts(), validation=judged, method="lora", **RUN)
    assert {each.dtype for each in tuned.parameters()} == {dtype}
    again = finetune(tuned, texts(), validation=judged, **{**RUN, "max_steps": 1, "lr": 0.0})
    facts = tuned.fewbit_record.facts
    assert facts["merge"]["after"]["loss"] == pytest.approx(again.fewbit_record.facts["before"]["loss"], rel=1e-7)
    assert facts["merge"]["after"]["loss"] != pytest.approx(facts["after"]["loss"], rel=1e-6)


def test_nothing_to_judge_by_and_nothing_merged(coded):
    tuned = finetune(coded, texts(), validation=False, method="lora", **RUN)
    assert tuned.fewbit_record.facts["merge"]["after"] is None
    assert list(_of_merging(None)) == []
    assert all(torch.isfinite(each).all() for each in tuned.state_dict().values() if each.is_floating_point())
