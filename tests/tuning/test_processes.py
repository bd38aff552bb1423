# SPDX-License-Identifier: Apache-2.0
"""Two processes learn what one does, to rounding; together they go on where both were killed."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from safetensors.torch import load_file

from fewbit.tuning.finetune import finetune
from tuning_runs import SETTINGS, language_model, texts

TESTS = Path(__file__).parents[1]


def shared(output, sharding="ddp", step=0, *, fails=False):
    """A run in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    script = [str(TESTS / "tuning_shared_run.py"), str(output), sharding, str(step)]
    done = subprocess.run([*command, *script], capture_output=True, env=environment, timeout=120, check=False)
    assert (done.returncode != 0) == fails, done.stderr.decode()[-3000:]
    return None if fails else orjson.loads((output / "record.json").read_bytes())["facts"]


@pytest.fixture(scope="module")
def alone():
    return finetune(language_model(), texts(19), validation=texts(7, 1), **SETTINGS)


def compare(facts, output, alone):
    wanted = alone.fewbit_record.facts
    assert facts["processes"] == 2
    assert [loss for _, loss in facts["loss"]] == pytest.approx([loss for _, loss in wanted["loss"]], rel=1e-5)
    assert facts["tokens"] == wanted["tokens"]
    for mine, other in zip(facts["evaluations"], wanted["evaluations"], strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    weights = load_file(output / "model.safetensors")
    for name, weight in alone.state_dict().items():
        if name in weights:
            # AdamW divides by the size of a gradient: one that is nearly nothing may differ in its sign.
            assert (weights[name] - weight).abs().mean() < 1e-5, name


@pytest.mark.slow
def test_two_processes_give_the_curve_of_one(tmp_path, alone):
    compare(shared(tmp_path / "run"), tmp_path / "run", alone)


@pytest.mark.slow
def test_two_processes_that_were_stopped_go_on_together(tmp_path, alone):
    shared(tmp_path / "run", step=5, fails=True)
    compare(shared(tmp_path / "run"), tmp_path / "run", alone)


@pytest.mark.slow
def test_two_processes_that_share_the_parameters_give_the_curve_of_one_stopped_in_between(tmp_path, alone):
    shared(tmp_path / "run", "fsdp", step=5, fails=True)
    facts = shared(tmp_path / "run", "fsdp")
    assert facts["sharding"] == "fsdp"
    compare(facts, tmp_path / "run", alone)
