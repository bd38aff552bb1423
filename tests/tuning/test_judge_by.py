# SPDX-License-Identifier: Apache-2.0
"""The number that says which evaluation is the best."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fewbit.errors import UsageError
from fewbit.tuning.evaluating import judged_by
from fewbit.tuning.finetune import finetune
from fewbit.tuning.tasks import causal_lm, image_classification

pytest.importorskip("accelerate")


def learned(**options):
    torch.manual_seed(0)
    x, y = torch.randn(32, 4), torch.randint(0, 3, (32,))
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    small = {"task": "sequence_classification", "lr": 0.1, "epochs": 3, "device": "cpu", "tensorboard": False}
    return finetune(nn.Linear(4, 3), loader, validation=loader, eval_every=1, **small, **options).fewbit_record.facts


def test_smaller_losses_and_perplexities_are_better_and_larger_shares():
    assert judged_by(causal_lm, "perplexity") == ("perplexity", "min")
    assert judged_by(causal_lm, "token_accuracy") == ("token_accuracy", "max")
    assert judged_by(image_classification, None) == ("accuracy", "max")


@pytest.mark.parametrize(("name", "best"), [("loss", min), ("accuracy", max)])
def test_the_weights_are_those_of_the_evaluation_that_is_best_by_it(tmp_path, name, best):
    import orjson

    facts = learned(judge_by=name, output=tmp_path / "run")
    lines = [orjson.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()]
    seen = {line["step"]: line[name] for line in lines if line["kind"] == "eval"}
    assert seen[facts["best_step"]] == best(seen.values()) and facts["after"][name] == best(seen.values())


def test_a_number_that_there_is_not_is_refused_before_the_first_step():
    with pytest.raises(UsageError) as error:
        learned(judge_by="map")
    assert "accuracy" in error.value.expected
