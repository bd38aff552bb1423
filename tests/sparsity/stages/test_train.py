# SPDX-License-Identifier: Apache-2.0
"""The stage `train`: accuracy kept, zeros exact, codes with zeros in place, all faults before anything is trained."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from fewbit.errors import DataError, UsageError
from fewbit.modules.quantized import is_quantized
from fewbit.numerics.sparsity import count
from fewbit.sparsity.stages import train
from fewbit.tuning.finetune import finetune
from fewbit.tuning.loop import Loop
from sparse_runs import OPTIONS, job, network, pictures, pruned_layers
from tuning_runs import KillAt, same

pytest.importorskip("accelerate")

RUN = {"batch_size": 32, "lr": 5e-3}


@cache
def dense():
    settings = {"task": "image_classification", "epochs": 12, "lr": 1e-2, "batch_size": 32, **OPTIONS}
    return finetune(network(), pictures(320), validation=pictures(160, 1000), **settings)


def full_job(**changes):
    return job(dense(), **{"data": pictures(320), "validation": pictures(160, 1000), **changes})


def trained(settings, this=None, model=None):
    this, model = this or full_job(), model or dense()
    train.refuse(settings, model, this)
    return train.run(model, settings, this), this.record


def weights(model):
    return {name: model.get_submodule(name.rpartition(".")[0]).weight.detach() for name in pruned_layers(dense())}


def test_four_fifths_of_the_weights_go_and_the_accuracy_stays():
    """At most three points of 160 pictures below the dense model, which was trained longer."""
    before = [parameter.clone() for parameter in dense().parameters()]
    model, record = trained(train.Settings(final=0.8, epochs=8, **RUN))
    facts = record.facts["train"]
    assert facts["before"]["accuracy"] > 0.95
    assert facts["after"]["accuracy"] >= facts["before"]["accuracy"] - 0.03
    for name, weight in weights(model).items():
        assert int((weight == 0).sum()) == count(0.8, weight.numel()), name
    lines = {line["where"]: line for line in record.lines if line["what"] in ("sparse", "dense")}
    assert set(lines) == {"0", "3", "6", "7", "10", "14"}
    assert lines["3"]["zeros"] == 922 and "first" in lines["0"]["reason"]
    assert facts["sparsity"][0] == [0, 0.0] and facts["sparsity"][-1][1] == pytest.approx(0.8, abs=1e-3)
    assert facts["loss"][-1][1] < 0.5
    assert all(torch.equal(now, then) for now, then in zip(dense().parameters(), before, strict=True))


def test_codes_come_after_and_every_zero_stays():
    this = full_job()
    model, record = trained(train.Settings(final=0.8, epochs=8, quantize="w8a8", **RUN), this)
    facts = record.facts["train"]
    assert facts["after"]["accuracy"] >= facts["before"]["accuracy"] - 0.03
    assert [run["name"] for run in facts["runs"]] == ["sparse", "codes"]
    assert [run["steps"] for run in facts["runs"]] == [60, 20]
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert all(is_quantized(layer) and layer.input_quantizer.scale is not None for layer in layers)
    for name, weight in weights(model).items():
        assert int((weight == 0).sum()) >= count(0.8, weight.numel()), name


def test_a_layer_that_lost_everything_is_told():
    model = network()
    model[10].weight.data *= 1e-6
    this = full_job(dense=model)
    settings = train.Settings(final=0.9, scope="global", schedule="constant", max_steps=1, lr=0.0, distill=False)
    tuned = train.run(model, settings, this)
    assert not bool(tuned[10].weight.any())
    assert [line["where"] for line in this.record.lines if line["what"] == "empty"] == ["10"]


def test_without_a_dense_model_to_learn_from_it_learns_another_thing(monkeypatch):
    seen = []
    monkeypatch.setattr("fewbit.sparsity.stages.train.finetune", lambda *a, **k: seen.append(k["teacher"]) or a[0])
    model = network()
    model.fewbit_record = dense().fewbit_record
    for distill, teacher in ((True, None), (False, None), (True, nn.Identity())):
        this = full_job(teacher=teacher)
        train.run(model, train.Settings(final=0.5, distill=distill), this)
    assert seen[0] is dense() and seen[1] is None and isinstance(seen[2], nn.Identity)


def test_what_the_user_says_goes_before_the_recipe(monkeypatch):
    seen = []
    monkeypatch.setattr("fewbit.sparsity.stages.train.finetune", lambda *a, **k: seen.append(k) or a[0])
    model = network()
    model.fewbit_record = dense().fewbit_record
    this = full_job(options={**OPTIONS, "batch_size": 5, "seqlen": 7})
    train.run(model, train.Settings(final=0.5, max_steps=12, quantize="w8a8", batch_size=9), this)
    assert [(each["max_steps"], each["batch_size"], each["method"]) for each in seen] == [(9, 5, "full"), (3, 5, "qat")]
    assert seen[1]["lr"] == pytest.approx(seen[0]["lr"] / 10) and "epochs" not in seen[0] and "seqlen" not in seen[0]


def test_a_stage_that_was_stopped_goes_on_where_it_was(tmp_path):
    settings = train.Settings(final=0.6, max_steps=16, quantize="w8a8", options={"save_every": 3}, **RUN)
    whole, _ = trained(settings)
    with pytest.raises(KeyboardInterrupt):
        trained(settings, full_job(work=tmp_path, progress=KillAt(7)))
    resumed, _ = trained(settings, full_job(work=tmp_path))
    assert same(whole, resumed)
    again, _ = trained(settings, full_job(work=tmp_path, progress=KillAt(0)))
    assert same(whole, again), "what is done is not done again"


@pytest.mark.parametrize("model", ["onnx", "codes"])
def test_what_cannot_be_trained_is_refused_with_what_can(model):
    if model == "onnx":
        onnx = pytest.importorskip("onnx")
        given, said = onnx.ModelProto(), "a ModelProto cannot be trained.*mode one-shot"
    else:
        import fewbit

        given, said = fewbit.quantize(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), preset="w8a16"), "codes already"
    with pytest.raises(UsageError, match=f"(?s){said}"):
        train.refuse(train.Settings(final=0.5), given, full_job())


def test_faults_are_told_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(Loop, "run", lambda loop: pytest.fail("training began"))
    with pytest.raises(UsageError) as error:
        train.Settings(final=0.5, structure="2:3", schedule="cubik", scope="globe", quantize="w9", options={"lrr": 1})
    for part in ("2:3 with a share", "cubik", "globe", "w9", "lrr"):
        assert part in str(error.value), part
    with pytest.raises(UsageError, match="names no layer"):
        train.refuse(train.Settings(final=0.5, targets=("conv9",)), dense(), full_job())
    with pytest.raises(UsageError, match="data is None"):
        train.refuse(train.Settings(final=0.5), dense(), full_job(data=None))
    with pytest.raises(DataError, match="to have 4 channels"):
        train.refuse(train.Settings(final=0.5), nn.Sequential(nn.Conv2d(4, 4, 1), *dense()), full_job())
    with pytest.raises(UsageError, match=r"logits are \[\d+, 3\] of the model and \[\d+, 5\] of the teacher"):
        train.refuse(train.Settings(final=0.5), dense(), full_job(teacher=network(5)))
    train.refuse(train.Settings(final=0.5, distill=False), dense(), full_job(teacher=network(5)))


def test_layers_that_do_not_take_the_pattern_are_told_and_can_be_left_out():
    model = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(UsageError, match=r"2:4 does not divide the inputs of 1 layer(?s:.*)2 \(10 inputs\)"):
        train.refuse(train.Settings(structure="2:4"), model, full_job())
    found = train.choose(model, train.Settings(structure="2:4", ignore=("2",)))
    assert [point.layer for point in found.points] == ["0"]


def test_zeros_cannot_be_let_go():
    with pytest.raises(UsageError, match="hold_zeros"):
        train.Settings(options={"hold_zeros": False})
