# SPDX-License-Identifier: Apache-2.0
"""The verbs of a view that places: sites, place with its reasons, settle in a copy that has changed meanwhile."""

import numpy as np
import onnx
import pytest
import torch
from onnx.helper import make_node as node

from fewbit.backends.graph import view as seen
from fewbit.backends.graph.catalogue import catalogue
from fewbit.backends.graph.executed import executed
from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.placing import NO_CODES, scale_of
from fewbit.backends.graph.saving import to_proto
from fewbit.backends.graph.unable import INSIDE
from fewbit.backends.graph.view import GraphView
from fewbit.model.placing import Rounding
from fewbit.model.points import Role
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from onnx_graphs import model, random
from placed_graphs import answers, codes_of

INF = float("inf")


def view(length=64):
    nodes = [
        node("MatMul", ["x", "a"], ["m"], name="one"), node("Relu", ["m"], ["r"], name="relu"),
        node("MatMul", ["r", "b"], ["n"], name="two"), node("MatMul", ["n", "c"], ["y"], name="three"),
    ]  # fmt: skip
    constants = {"a": random(length, 96) / 8, "b": random(96, 96, seed=1) / 10, "c": random(96, 32, seed=2) / 10}
    made = GraphView.of(model(nodes, {"x": ["n", length]}, {"y": None}, constants))
    made.probe({"x": random(40, length)})
    return made


LAYERS = dict.fromkeys(["one", "two", "three"], 1e-5)


def place(made, rounding=None, weights=LAYERS, price=INF, forbidden=None):
    return made.place(None, rounding=rounding or {}, weights=weights, price=price, forbidden=forbidden or {})


def test_sites_are_what_may_become_codes():
    assert [(point.layer, point.op.name) for point in view().sites(None)] == [
        ("x", "Input"), ("relu", "Relu"), ("two", "MatMul"), ("three", "MatMul"),
    ]  # fmt: skip


def test_reasons():
    made = view()
    assert place(made).layers == {"one", "two", "three"} and not place(made).kept
    assert place(made, forbidden={"two": "asked for"}).kept == {"two": "asked for"}
    assert place(made, weights={"one": 0.0, "three": 0.0}).kept == {"two": NO_CODES}
    (x, *_) = made.sites(None)
    harmful = place(made, {x: Rounding(1e-4, 1.0)}, price=1e-3)
    assert "rounding" in harmful.kept["one"] and harmful.layers == {"two", "three"}


@pytest.mark.parametrize("shifted", [(), ("one", "two", "three")])
def test_settled_in_a_copy_whose_layers_were_given_biases(shifted):
    """A MatMul holds no bias: it gets an Add, and everyone behind it reads another value than was looked at."""
    made = view()
    x = random(40, 64)
    placed = place(made)
    values = {"x": x, "m": x @ np.asarray(made.read(made.points()[0])).T}
    values["r"] = np.maximum(values["m"], 0)
    weights = {
        point.layer: made.read(point)
        for point in made.points()
        if point.layer in LAYERS and point.role.value == "weight"
    }
    values["n"] = values["r"] @ weights["two"].numpy().T
    values["y"] = values["n"] @ weights["three"].numpy().T
    named = dict(zip(made.sites(None), ("x", "r", "n", "y")))
    ranges = {point: (float(values[name].min()), float(values[name].max())) for point, name in named.items()}
    twin = made.copy()
    for layer in shifted:
        twin.shift(layer, torch.full((weights[layer].shape[0],), 0.25))
    wanted = answers(to_proto(twin.model), {"x": x})[0]
    twin.settle(placed, ranges, {layer: codes_of(weight) for layer, weight in weights.items()})
    found = to_proto(twin.model)
    onnx.checker.check_model(found)
    assert sum(executed(twin.model).integer.values()) == 3 and not executed(twin.model).floating
    off = answers(found, {"x": x})[0] - wanted
    assert np.square(off).mean() < 2e-3 * np.square(wanted).mean()
    assert [out.name for out in found.graph.output] == ["y"]
    assert not made.quantized()


def test_what_lies_in_a_branch_is_said_to():
    def branch(nodes, out):
        return onnx.helper.make_graph(nodes, out, [], [onnx.helper.make_tensor_value_info(out, 1, None)])

    nodes = [
        node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        node("Greater", ["most", "n"], ["large"], name="large"),
        node("If", ["large"], ["y"], name="if", then_branch=branch([node("MatMul", ["x", "a"], ["t"], name="in")], "t"),
             else_branch=branch([node("Relu", ["x"], ["o"], name="other")], "o")),
    ]  # fmt: skip
    made = GraphView.of(model(nodes, {"x": [4, 8]}, {"y": None}, {"a": random(8, 8), "n": np.float32(0)}))
    made.probe({"x": random(4, 8)})
    assert place(made, weights={"in": 0.0}).kept["in"] == INSIDE


@pytest.mark.parametrize("dtype", [Dtype.uint8, Dtype.int8])
@pytest.mark.parametrize("ends", [(-1.0, 4.1), (0.0, 5.1), (-5.1, 0.0)])
def test_scales_as_uint8_has_them(dtype, ends):
    grid = Grid(dtype, symmetric=False)
    found = scale_of(from_range(torch.tensor([ends[0]]), torch.tensor([ends[1]]), grid, (1,)))
    assert found.scale == pytest.approx(5.1 / 255) and found.zero == CodeScale(5.1 / 255, 0).code(-ends[0])


@pytest.mark.parametrize("left", [(), ("relu",)])
def test_a_layer_is_placed_without_the_clipping_that_stays_in_float(left):
    made = view()
    made.leave(left)
    assert ("one" in {point.layer for point in made.sites(None)}) == bool(left)
    placed = place(made, forbidden=dict.fromkeys(left, "asked for"))
    assert placed.layers == {"one", "two", "three"} and placed.kept == dict.fromkeys(left, "asked for")
    x = random(40, 64)
    wanted = answers(to_proto(made.model), {"x": x})[0]
    twin = made.copy()
    weights = {p.layer: codes_of(made.read(p)) for p in made.points() if p.role is Role.weight}
    ranges = dict.fromkeys(made.sites(None), (-8.0, 8.0))
    twin.settle(placed, ranges, weights)
    assert sum(executed(twin.model).integer.values()) == 3
    off = answers(to_proto(twin.model), {"x": x})[0] - wanted
    assert np.square(off).mean() < 2e-2 * np.square(wanted).mean()


def test_many_shifts_look_the_graph_through_once(monkeypatch):
    made, looked = view(), []
    before = [point.name for point in made.points()]
    monkeypatch.setattr(seen, "catalogue", lambda model: looked.append(1) or catalogue(model))
    for layer in ("one", "two", "three"):
        made.shift(layer, torch.ones(32 if layer == "three" else 96))
        assert made.types(layer) == ("MatMul",)
    assert not looked and [point.name for point in made.points()] == before
    fresh = GraphView.of(to_proto(made.model))
    assert [point.name for point in fresh.points()] == before and "one.shift" in made.layers()
    assert made.types("one.shift") == ("Add",)
