# SPDX-License-Identifier: Apache-2.0
"""Processes that train together have the same masks, those of one process alone, and go on together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fewbit.numerics.sparsity import count
from sparse_runs import pruned_layers
from sparse_shared_run import shared_run
from tuning_runs import language_model

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def shared(folder, sharding, step=0, quantize="", *, fails=False):
    """A run in two processes; the model of each."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    script = [str(TESTS / "sparse_shared_run.py"), str(folder), sharding, str(step), quantize]
    done = subprocess.run([*command, *script], capture_output=True, env=environment, timeout=300, check=False)
    assert (done.returncode != 0) == fails, done.stderr.decode()[-3000:]
    return [] if fails else [load_file(folder / f"rank-{rank}.safetensors") for rank in (0, 1)]


def compare(first, second, alone):
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    different = []
    for name in pruned_layers(language_model()):
        zeros = first[name] == 0
        assert int(zeros.sum()) == count(0.6, zeros.numel()), name
        different.append(float((zeros != (alone.get_parameter(name) == 0)).float().mean()))
    assert max(different) < 0.03, "sums of two processes are rounded otherwise, which may turn a choice or two"


@pytest.fixture(scope="module")
def alone():
    return shared_run(None, "ddp")


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_that_were_stopped_find_the_masks_of_one(tmp_path, alone, sharding):
    shared(tmp_path / "run", sharding, step=5, fails=True)
    compare(*shared(tmp_path / "run", sharding), alone)


def test_two_processes_learn_codes_as_well(tmp_path):
    first, second = shared(tmp_path / "run", "ddp", quantize="w8a8")
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert any(name.endswith("weight_packed") for name in first)
