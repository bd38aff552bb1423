# SPDX-License-Identifier: Apache-2.0
"""Statistics computed in the graph, held against those of the values themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from fewbit.backends.graph.running import Sight, run
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, VALUES, Watch, reductions
from onnx_graphs import model, random

ALL = frozenset({VALUES, LOW, HIGH, SUM, SQUARE, COUNT, SAMPLE})


def doubled(rank, opset=13):
    """A model whose one value is twice its input."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    proto = model([node], {"x": [None] * rank}, {"y": None}, {}, opset)
    return ir.from_proto(proto)


def seen_of(graph, items, features, needs=ALL, sample=20, value="y"):
    """What one sight is shown, item by item."""
    seen = []
    watch = Watch(needs, lambda found, item: seen.append(found), sample)
    run(graph, [{"x": item} for item in items], [Sight(value, features, watch)])
    return seen


@st.composite
def shapes(draw):
    rank = draw(st.integers(1, 5))
    long = draw(st.integers(0, rank - 1))
    sides = [[draw(st.integers(1, 4)) for _ in range(rank)] for _ in range(2)]
    for shape in sides:
        shape[long] *= draw(st.sampled_from([1, 1, 300]))
    features = draw(st.integers(-rank, rank - 1))
    sides[1][features] = sides[0][features]
    return sides, features


@settings(max_examples=40, deadline=None, derandomize=True)
@given(shapes(), st.sampled_from([10, 12, 13, 18, 21]))
def test_by_feature(case, opset):
    sides, features = case
    items = [random(*shape, seed=seed) for seed, shape in enumerate(sides)]
    for found, item in zip(seen_of(doubled(len(sides[0]), opset), items, features), items):
        wanted = reductions(torch.from_numpy(2 * item), ALL, 20, features)
        for need in ALL - {SAMPLE}:
            torch.testing.assert_close(found[need], wanted[need], rtol=1e-5, atol=1e-4, msg=need)
        assert len(found[SAMPLE]) >= min(20, item.size)
        assert set(found[SAMPLE].tolist()) <= set((2 * item).flatten().tolist())


@settings(max_examples=25, deadline=None, derandomize=True)
@given(shapes())
def test_whole(case):
    sides, _ = case
    items = [random(*shape, seed=seed) for seed, shape in enumerate(sides)]
    for found, item in zip(seen_of(doubled(len(sides[0])), items, None), items):
        wanted = reductions(torch.from_numpy(2 * item).reshape(-1, 1), ALL, 20)
        for need in ALL - {SAMPLE}:
            torch.testing.assert_close(found[need], wanted[need], rtol=1e-5, atol=1e-4, msg=need)


def test_scalar():
    [found] = seen_of(doubled(0), [np.array(1.5, np.float32)], None)
    assert [float(found[need]) for need in (LOW, HIGH, SUM, SQUARE, COUNT)] == [3, 3, 3, 9, 1]
    assert found[VALUES].tolist() == [[3.0]]


def test_sample_of_equal_shapes_is_that_of_the_values():
    items = [random(2, 3, 40, seed=seed) for seed in range(3)]
    for found, item in zip(seen_of(doubled(3), items, 1, frozenset({SAMPLE}), 50), items):
        assert torch.equal(found[SAMPLE], reductions(torch.from_numpy(2 * item), frozenset({SAMPLE}), 50, 1)[SAMPLE])


@pytest.mark.parametrize("order", [1, -1])
def test_sample_where_lengths_vary(order):
    items = [random(1, 2, length, seed=length) for length in (5, 50, 5000, 70, 900)][::order]
    for found, item in zip(seen_of(doubled(3), items, 1, frozenset({SAMPLE}), 100), items):
        assert len(found[SAMPLE]) >= min(100, item.size)


def test_half_precision():
    node = helper.make_node("Add", ["x", "x"], ["y"])
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 4])]
    graph = helper.make_graph([node], "half", info, [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, 4])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    item = np.full((2, 4), 20000, np.float16)  # twice that and summed it is more than half precision holds
    [found] = seen_of(ir.from_proto(proto), [item], -1)
    assert found[SUM].tolist() == [80000.0] * 4
    assert found[SUM].dtype == torch.float64


@pytest.mark.parametrize("features", [1, -1, None])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "needs", [{LOW}, {HIGH}, {LOW, HIGH}, {SAMPLE}, {LOW, HIGH, SAMPLE}, {SUM}, {SQUARE}, {VALUES}]
)
@pytest.mark.parametrize("shape", [(1, 3, 50), (2, 3, 700)])
def test_what_is_not_finite_is_not_lost(features, bad, needs, shape):
    added = np.zeros(shape, np.float32)
    added[-1, 1, 7] = bad
    proto = model([helper.make_node("Add", ["x", "c"], ["y"])], {"x": shape}, {"y": shape}, {"c": added})
    [found] = seen_of(ir.from_proto(proto), [random(*shape)], features, frozenset(needs))
    assert any(not found[need].isfinite().all() for need in needs)


def test_large_numbers_are_not_taken_for_infinite():
    item = np.full((1, 4, 8), -3e38, np.float32)
    [found] = seen_of(doubled(3), [item], 1, frozenset({LOW, HIGH, SAMPLE}), value="x")
    assert all(found[need].isfinite().all() for need in (LOW, HIGH, SAMPLE))
