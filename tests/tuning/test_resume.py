# SPDX-License-Identifier: Apache-2.0
"""A run that was killed ends with the weights of one that was not, bit by bit."""

import os
import shutil
import signal
import subprocess
import sys

import orjson
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fewbit.errors import UsageError
from fewbit.tuning import checkpoints
from fewbit.tuning.finetune import finetune
from fewbit.tuning.loop import Loop
from tuning_runs import SETTINGS, KillAt, language_model, same, texts


def tuned(output=None, **changes):
    model = changes.pop("model", None) or language_model(attention_dropout=0.1)
    data = changes.pop("data", None) or texts()
    return finetune(model, data, validation=texts(6, 1), output=output, **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def whole():
    return tuned()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that `kill -9` ended after step 5, with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    script = os.path.join(os.path.dirname(__file__), "..", "tuning_runs.py")
    done = subprocess.run([sys.executable, script, str(folder), "5"], capture_output=True, env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return folder


def test_dropout_is_drawn_in_this_test():
    assert not same(tuned(max_steps=2), tuned(max_steps=2, model=language_model()))


def test_a_run_that_was_killed_ends_with_the_same_weights_bit_by_bit(killed, tmp_path, whole):
    shutil.copytree(killed, tmp_path / "run")
    resumed = tuned(tmp_path / "run")
    assert any(line["what"] == "resumed" and "step 4" in line["reason"] for line in resumed.fewbit_record.lines)
    assert same(resumed, whole)
    mine, other = resumed.fewbit_record.facts, whole.fewbit_record.facts
    for name in ("loss", "evaluations", "before", "after", "best_step", "tokens", "steps"):
        assert mine[name] == other[name], name


def test_the_optimizer_and_the_random_state_are_those_of_a_run_that_was_not_killed(killed, tmp_path):
    shutil.copytree(killed, tmp_path / "run")
    tuned(tmp_path / "run")
    tuned(tmp_path / "other")
    ends = [checkpoints.Checkpoints(tmp_path / name / "checkpoints").last() for name in ("run", "other")]
    (tensors, state), (others, other) = map(checkpoints.read, ends)
    assert [place.name for place in ends] == ["step-00000009"] * 2
    assert any(name.startswith("optimizer/") for name in tensors)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert state["random"] == other["random"]


@pytest.mark.parametrize("step", [1, 2, 3, 6, 8])
def test_wherever_it_is_interrupted(tmp_path, whole, step):
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "run", progress=KillAt(step))
    assert same(tuned(tmp_path / "run"), whole)


def test_epochs_of_a_shuffled_loader_of_pytorch_go_on_where_they_were(tmp_path):
    def run(output, **more):
        x, y = torch.arange(80.0).reshape(20, 4) / 80, torch.arange(20) % 3
        loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        settings = {"task": "sequence_classification", "epochs": 3, "save_every": 4, "log_every": 1, "lr": 0.1}
        return finetune(model, loader, output=output, device="cpu", tensorboard=False, **settings, **more)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", progress=KillAt(11))
    whole, resumed = run(None), run(tmp_path / "run")
    assert same(resumed, whole)
    losses = [loss for _, loss in whole.fewbit_record.facts["loss"]]
    assert len(losses) == 21 and losses == [loss for _, loss in resumed.fewbit_record.facts["loss"]]


def test_a_run_that_is_done_is_not_trained_again(tmp_path, whole):
    tuned(tmp_path / "run")
    again = tuned(tmp_path / "run", progress=KillAt(0))  # which would raise in the first step
    assert same(again, whole)


def test_what_changed_is_said_all_of_it(tmp_path):
    tuned(tmp_path / "run", max_steps=2)
    with pytest.raises(
        UsageError, match=r"lr was 0\.01 and is 0\.02; batch_size × accumulation was 6 and is 8"
    ) as error:
        tuned(tmp_path / "run", max_steps=2, lr=0.02, batch_size=4)
    assert "resume=False" in str(error.value)
    with pytest.raises(UsageError, match="data was"):
        tuned(tmp_path / "run", max_steps=2, data=texts(seed=3))
    other = language_model(attention_dropout=0.1)
    other.lm_head.weight.data += 1
    with pytest.raises(UsageError, match="model was"):
        tuned(tmp_path / "run", max_steps=2, model=other)


def test_what_changes_nothing_may_change(tmp_path, whole):
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "run", progress=KillAt(5))
    assert same(tuned(tmp_path / "run", log_every=3, save_every=5, keep=2), whole)


def test_starting_anew_is_asked_for(tmp_path):
    tuned(tmp_path / "run", max_steps=2)
    tuned(tmp_path / "run", max_steps=2, lr=0.02, resume=False)
    assert orjson.loads((tmp_path / "run" / "run.json").read_bytes())["options"]["lr"] == 0.02


@pytest.mark.parametrize("old", [False, True])
def test_a_run_that_is_stopped_while_its_last_step_is_evaluated(tmp_path, monkeypatch, old):
    """With checkpoints every few steps and an evaluation at the end of each epoch; `old` ones lack the evaluation."""
    settings = {"eval_every": None, "save_every": 3, "max_steps": 9, "lr": 1e-3, "schedule": "constant"}
    whole, judge = tuned(**settings), Loop._judge

    def stop(loop):
        if loop.place.step == 9:
            if old:
                loop._save()
            raise KeyboardInterrupt
        judge(loop)

    monkeypatch.setattr(Loop, "_judge", stop)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "run", **settings)
    monkeypatch.undo()
    resumed = tuned(tmp_path / "run", **settings)
    assert whole.fewbit_record.facts["best_step"] == 9  # the last one counts
    assert same(resumed, whole)
    for name in ("evaluations", "after", "best_step"):
        assert resumed.fewbit_record.facts[name] == whole.fewbit_record.facts[name], name
