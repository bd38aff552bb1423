# SPDX-License-Identifier: Apache-2.0
"""Zeros that grow while a model learns: exact, for good, through the optimizer's memory, and across a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fewbit.errors import UsageError
from fewbit.numerics.sparsity import Pattern, count
from fewbit.tuning import checkpoints
from fewbit.tuning.finetune import finetune
from fewbit.tuning.loop import Loop
from fewbit.tuning.stepping import Stepper
from sparse_runs import SETTINGS, gradual, network, pictures, pruned_layers
from tuning_runs import KillAt, same

pytest.importorskip("accelerate")

SCRIPT = Path(__file__).parents[1] / "sparse_runs.py"


def run(output=None, pruning=None, **changes):
    model = changes.pop("model", None) or network()
    pruning = pruning or gradual(model, updates=4, end=0.8)
    settings = {**SETTINGS, **changes}
    return finetune(model, pictures(48), validation=pictures(24, 1000), output=output, pruning=pruning, **settings)


@pytest.fixture(scope="module")
def whole():
    return run()


def zeros(model):
    return {name: model.get_parameter(name).detach() == 0 for name in pruned_layers(model)}


STRUCTURES = {
    "unstructured": {},
    "2:4": {"pattern": Pattern.read("2:4")},
    "1x4": {"pattern": Pattern.read("1x4", 0.8)},
    "together": {"together": True},
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_share_at_the_end_is_exact(name):
    model, more = network(), STRUCTURES[name]
    final = more["pattern"].share if "pattern" in more else 0.8
    tuned = run(model=model, pruning=gradual(model, final, updates=4, end=0.5, **more))
    found = zeros(tuned)
    if name == "together":
        every = torch.cat([each.flatten() for each in found.values()])
        assert int(every.sum()) == count(final, every.numel())
        assert len({round(float(each.float().mean()), 3) for each in found.values()}) > 1
    for each in found.values():
        if name == "unstructured":
            assert int(each.sum()) == count(final, each.numel())
        elif name == "2:4":
            assert bool((each.movedim(1, -1).reshape(-1, 4).sum(1) == 2).all())
        elif name == "1x4":
            blocks = each.movedim(1, -1).reshape(-1, 4).sum(1)
            assert set(blocks.tolist()) == {0, 4} and int((blocks == 4).sum()) == count(final, len(blocks))
    dense = [n for n, p in tuned.named_parameters() if p.ndim > 1 and n not in found]
    assert dense and not any(bool((tuned.get_parameter(n) == 0).any()) for n in dense)
    curve = tuned.fewbit_record.facts["sparsity"]
    assert [step for step, _ in curve] == [0, 2, 3, 5]
    assert [share for _, share in curve] == sorted(share for _, share in curve)
    assert curve[-1][1] == pytest.approx(final, abs=2e-3)


def test_what_was_pruned_never_comes_back_and_the_optimizer_forgets_it(monkeypatch):
    seen, prune = [], Loop._prune

    def watched(loop):
        prune(loop)
        masks = {name: loop.masks.pruned(name).clone() for name in pruned_layers(loop._inner)}
        for name, pruned in masks.items():
            weight = loop._inner.get_parameter(name)
            assert bool((weight[pruned] == 0).all()) and bool((weight[~pruned] != 0).all())
            moments = [m for m in loop.optimizer.state[weight].values() if m.shape == weight.shape]
            assert loop.place.step == 0 or len(moments) == 2
            for moment in moments:
                assert bool((moment[pruned] == 0).all())
                assert loop.place.step in (0, 8) or bool((moment[~pruned] != 0).any())
        seen.append(masks)

    monkeypatch.setattr(Loop, "_prune", watched)
    run(weight_decay=0.1)
    assert len(seen) == 11
    for before, after in pairwise(seen):
        assert all(not bool((before[name] & ~after[name]).any()) for name in after)
    totals = [sum(int(mask.sum()) for mask in masks.values()) for masks in seen]
    assert len(set(totals)) == 4 and totals[0] == 0


def test_with_regrow_some_come_back_and_the_count_stays_exact(monkeypatch, tmp_path):
    seen, prune = [], Loop._prune

    def watched(loop):
        prune(loop)
        seen.append({name: loop.masks.pruned(name).clone() for name in pruned_layers(loop._inner)})

    model = network()
    plan = {"model": model, "pruning": gradual(model, updates=4, end=0.8, regrow=0.3)}
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_prune", watched)
        tuned = run(**plan)
    back = [sum(int((b[n] & ~a[n]).sum()) for n in a) for b, a in pairwise(seen)]
    assert back[2] == 0 and back[4] > 0 and back[7] == 0, (
        "there are zeros from step 3 on, and at the end none comes back"
    )
    assert all(int(each.sum()) == count(0.8, each.numel()) for each in zeros(tuned).values())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", progress=KillAt(4), **plan)
    assert same(run(tmp_path / "run", **plan), tuned)


def test_the_norm_that_clips_is_that_of_the_weights_that_are_there(monkeypatch):
    finish, norms, dense = Stepper.finish, [], []

    def watched(stepper, rate):
        share = stepper._unit / stepper._sums[1]
        grads = dict(stepper._inner.named_parameters())
        dense.append(float(torch.cat([p.grad.flatten() for p in grads.values()]).norm() * share))
        kept = [
            p.grad.masked_fill(pruned, 0).flatten()
            if (pruned := stepper._masks.pruned(name)) is not None
            else p.grad.flatten()
            for name, p in grads.items()
        ]
        wanted = float(torch.cat(kept).norm() * share)
        told = finish(stepper, rate)
        norms.append((float(told.norm), wanted))
        return told

    monkeypatch.setattr(Stepper, "finish", watched)
    run(clip=0.01)
    assert len(norms) == 10
    assert [norm for norm, _ in norms] == pytest.approx([wanted for _, wanted in norms], rel=1e-5)
    assert dense[-1] > 1.01 * norms[-1][0], "the gradients of pruned weights would have counted"


@pytest.mark.parametrize("step", [2, 3, 6, 9])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, whole, step):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", progress=KillAt(step))
    resumed = run(tmp_path / "run")
    assert same(resumed, whole)
    for name in ("loss", "evaluations", "sparsity", "before", "after", "best_step"):
        assert resumed.fewbit_record.facts[name] == whole.fewbit_record.facts[name], name


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_its_masks(tmp_path, whole):
    command = [sys.executable, str(SCRIPT), str(tmp_path / "run"), "7"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    last = checkpoints.Checkpoints(tmp_path / "run" / "checkpoints").last()
    tensors, _ = checkpoints.read(last)
    assert last.name == "step-00000006"
    held = [tensor for name, tensor in tensors.items() if name.startswith("mask/")]
    assert len(held) == 3 and all(0.7 < float(mask.float().mean()) < 0.8 for mask in held)
    resumed = run(tmp_path / "run")
    assert any(line["what"] == "resumed" and "step 6" in line["reason"] for line in resumed.fewbit_record.lines)
    assert same(resumed, whole)


def test_another_schedule_is_another_run(tmp_path):
    run(tmp_path / "run", max_steps=2)
    model = network()
    with pytest.raises(UsageError, match=r"final was 0\.8 and is 0\.9"):
        run(tmp_path / "run", max_steps=2, model=model, pruning=gradual(model, 0.9, updates=4, end=0.8))


def test_the_best_is_looked_for_among_those_that_are_as_sparse_as_asked():
    """The dense model, or one on the way, may well be better, and is not what was asked for."""
    model = network()
    for place in (1, 4, 8):  # whose running statistics would go on learning
        model[place] = torch.nn.Identity()
    tuned = run(model=model, lr=0.0, eval_every=1, patience=2)
    facts = tuned.fewbit_record.facts
    assert facts["best_step"] == 8 and facts["steps"] == 10 and facts["stopped_early"]
    assert all(int(each.sum()) == count(0.8, each.numel()) for each in zeros(tuned).values())
    wanted = next(line for line in facts["evaluations"] if line["step"] == 8)
    assert facts["after"] == {name: wanted[name] for name in facts["after"]}


def test_the_dense_model_is_not_the_best_where_all_goes_at_once():
    model = network()
    tuned = run(model=model, lr=0.0, max_steps=2, pruning=gradual(model, shape="constant"))
    assert tuned.fewbit_record.facts["sparsity"] == [[0, pytest.approx(0.8, abs=1e-3)]]
    assert all(int(each.sum()) == count(0.8, each.numel()) for each in zeros(tuned).values())


def test_the_model_that_was_given_stays_as_it_is():
    model, other = network(), network()
    run(model=model)
    assert same(model, other)
