# SPDX-License-Identifier: Apache-2.0
"""Whoever judges how zeros are shared out had no say in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper
from torch import nn

from fewbit.data.dataset import Dataset
from fewbit.engine.fisher import Curvatures
from fewbit.sparsity.pruning import sensing, sharing
from fewbit.sparsity.stages.prune import Settings
from onnx_graphs import model, random
from pruned_models import pruned

BUDGET = Settings(0.5, budget="sensitivity")


def graph(batch):
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["b"])]
    nodes += [helper.make_node("MatMul", ["b", "w1"], ["c"], name="second"), helper.make_node("Relu", ["c"], ["d"])]
    nodes += [helper.make_node("MatMul", ["d", "w2"], ["y"], name="last")]
    weights = {"w0": random(8, 16, seed=1), "w1": random(16, 16, seed=2), "w2": random(16, 4, seed=3)}
    return model(nodes, {"x": [batch, 8]}, {"y": [batch, 4]}, weights)


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def told(item):
    """An item by what is in it."""
    args, named = item if isinstance(item, tuple) else ((), item)
    return np.asarray(args[0] if args else next(iter(named.values()))).tobytes()


@pytest.fixture
def heard(monkeypatch):
    """The items that judged, and those that something was found out from."""
    judged, taught = set(), set()
    for place, into in ((sharing, judged), (sensing, taught)):

        def apart(wanted, found, items, into=into, real=place.apart):
            into.update(map(told, items))
            return real(wanted, found, items)

        monkeypatch.setattr(place, "apart", apart)
    collect, gradients = sensing.collect, Curvatures.collect

    def listened(items, of=lambda item: item):
        for item in items:
            taught.add(told(of(item)))
            yield item

    monkeypatch.setattr(sensing, "collect", lambda view, plan, items: collect(view, plan, listened(items)))
    monkeypatch.setattr(
        Curvatures,
        "collect",
        lambda self, view, points, asked: gradients(self, view, points, listened(asked, lambda each: each.item)),
    )
    return judged, taught


@pytest.mark.parametrize(("count", "judges"), [(40, 4), (12, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["module", "graph"])
def test_no_item_judges_what_it_said_itself(heard, kind, count, judges):
    judged, taught = heard
    data = [random(2, 8, seed=number) for number in range(count)]
    if kind == "module":
        _, made = pruned(module(), BUDGET, Dataset([torch.tensor(x) for x in data], batched=True))
    else:
        _, made = pruned(graph("n"), BUDGET, Dataset([{"x": x} for x in data], batched=True))
    assert len(judged) == judges == made.record.facts["prune"]["budget"]["items"]
    assert taught and not judged & taught


def test_one_item_alone_is_no_judge():
    found, made = pruned(module(), BUDGET, [torch.randn(4, 8, generator=torch.Generator().manual_seed(0))])
    assert made.record.facts["prune"]["budget"] == {"items": 0, "used": False}
    assert any("one item" in line["reason"] for line in made.record.lines if line["what"] == "budget")
    assert int((found[2].weight == 0).sum()) == 128


@pytest.mark.parametrize("batched", [False, True])
def test_a_graph_of_a_fixed_batch_is_shown_whole_batches(batched):
    data = [{"x": random(3, 8, seed=n) if batched else random(8, seed=n)} for n in range(50)]
    _, made = pruned(graph(3), BUDGET, Dataset(data, batched=batched), samples=40)
    facts = made.record.facts["prune"]
    assert facts["zeros"] == 192 and facts["budget"]["items"] == 2
