# SPDX-License-Identifier: Apache-2.0
"""What goes is chosen by what readers lose, and made up for: exactly where the rest can say what was there."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from linked_graphs import PICTURE, TOKENS, between, conv, linear, node, random, several, weights
from onnx_graphs import model, run
from shrinking_graphs import arrays, close, gone, left, shrunk

PICTURES = [{"x": random(2, 4, 8, 8, seed=seed)} for seed in range(11)]
ROWS = [{"x": random(2, 5, 8, seed=seed)} for seed in range(11)]


def test_the_channels_that_readers_lose_least_by_go():
    constants = weights(a=(8, 6), b=(6, 3))
    constants["a.w"][:, [1, 4]] *= 30  # loud, and hardly read
    constants["b.w"][[1, 4]] *= 1e-4
    constants["a.w"][:, 2] *= 1e-4  # quiet
    proto = model(
        [linear("a", "x", "c"), node("Tanh", ["c"], ["d"]), linear("b", "d", "y")], TOKENS, {"y": None}, constants
    )
    for data in (None, ROWS):
        small, _, _ = shrunk(proto, data)
        kept = arrays(small)["a.w"].shape[1]
        assert kept == 3
        assert left(constants["a.w"], arrays(small)["a.w"], 1) == [0, 3, 5]


def test_a_channel_that_never_changes_moves_into_the_bias_exactly():
    constants = weights(a=(4, 4, 1, 1), b=(5, 4, 3, 3))
    constants["a.w"][1] = 0
    constants["a.b"][:] = [1, 3, 1, 1]  # after the ReLU the second is always 3
    proto = several(conv("a", "x", "c"), node("Relu", ["c"], ["d"]), conv("b", "d", "y"), **constants)
    small, facts, _ = shrunk(proto, PICTURES, channels=0.25)
    assert gone(left(constants["a.w"], arrays(small)["a.w"]), 4) == [1]
    assert facts["made_up_by"] in ("means", "refit") and facts["off"]["means"] < 1e-9 < facts["off"]["nothing"]
    close(run(small, x=PICTURES[0]["x"]), run(proto, x=PICTURES[0]["x"]))


@pytest.mark.parametrize("kind", ["convolution", "linear", "gemm", "groups", "transposed"])
def test_a_channel_that_others_say_moves_into_their_weights(kind):
    proto, data = _with_sums(kind)
    _, facts, _ = shrunk(proto, data, channels=0.34)
    assert facts["groups"][0]["after"] < facts["groups"][0]["before"]
    assert facts["made_up_by"] == "refit" and facts["off"]["refit"] < 0.02 * facts["off"]["nothing"]


def _with_sums(kind):
    """A layer of six channels of which two are sums of others, and read little; and data."""
    if kind in ("linear", "gemm"):
        constants = weights(a=(8, 6), b=(6, 3))
        constants["a.w"][:, [2, 5]] = constants["a.w"][:, [0, 3]] + constants["a.w"][:, [1, 4]]
        constants["b.w"][[2, 5]] *= 0.1
        if kind == "linear":
            return model([linear("a", "x", "c"), linear("b", "c", "y")], TOKENS, {"y": None}, constants), ROWS
        nodes = [node("Gemm", ["x", "a.w"], ["c"], name="a"), node("Gemm", ["c", "b.w"], ["y"], name="b", alpha=0.5)]
        flat = [{"x": item["x"].reshape(10, 8)} for item in ROWS]
        return model(nodes, {"x": ["n", 8]}, {"y": None}, constants), flat
    shape = {"groups": (4, 3, 3, 3), "transposed": (6, 4, 3, 3)}.get(kind, (5, 6, 3, 3))
    constants = weights(a=(6, 4, 1, 1), b=shape)
    constants["a.w"][[2, 5]] = constants["a.w"][[0, 3]] + constants["a.w"][[1, 4]]
    constants["a.b"][[2, 5]] = constants["a.b"][[0, 3]] + constants["a.b"][[1, 4]]
    axis = 0 if kind == "transposed" else 1
    np.moveaxis(constants["b.w"], axis, 0)[[2] if kind == "groups" else [2, 5]] *= 0.1
    constants["b.b"] = random(5 if kind == "convolution" else 4)
    reader = conv("b", "c", "y", group=2 if kind == "groups" else 1)
    if kind == "transposed":
        reader = node("ConvTranspose", ["c", "b.w", "b.b"], ["y"], name="b")
    return model([conv("a", "x", "c"), reader], PICTURE, {"y": None}, constants), PICTURES


def test_a_rewrite_that_does_not_help_is_not_kept():
    proto = between(node("Relu", ["c"], ["d"]))
    _, facts, _ = shrunk(proto, PICTURES)
    assert facts["off"][facts["made_up_by"]] == min(facts["off"].values())


def test_data_decide_the_same_way_in_every_run():
    proto = between(node("Relu", ["c"], ["d"]))
    assert shrunk(proto, PICTURES)[0].SerializeToString() == shrunk(proto, PICTURES)[0].SerializeToString()


def test_a_tied_weight_stays_tied():
    constants = {"a.w": random(8, 6), "w": random(6, 3, seed=1)}
    nodes = [linear("a", "x", "c"), node("Relu", ["c"], ["p"]), node("Tanh", ["c"], ["q"]),
             node("MatMul", ["p", "w"], ["u"], name="one"), node("MatMul", ["q", "w"], ["v"], name="two"),
             node("Add", ["u", "v"], ["y"])]  # fmt: skip
    proto = model(nodes, TOKENS, {"y": None}, constants)
    small, facts, _ = shrunk(proto, ROWS)
    assert arrays(small)["w"].shape == (3, 3)
    assert sum(array.size for array in arrays(small).values() if array.shape == (3, 3)) == 9
    assert facts["off"]["means"] == facts["off"]["refit"] and facts["made_up_by"] == "means"


@pytest.mark.parametrize("least", [0.0, -1.5])  # half of it, or a few in a hundred: one in a thousand is on purpose
def test_a_pruned_weight_keeps_its_zeros(least):
    proto, data = _with_sums("convolution")
    b = next(tensor for tensor in proto.graph.initializer if tensor.name == "b.w")
    pruned = arrays(proto)["b.w"] * (random(5, 6, 3, 3, seed=8) > least)
    b.CopyFrom(numpy_helper.from_array(pruned, "b.w"))
    small, facts, lines = shrunk(proto, data, channels=0.34)
    some = next(array for array in arrays(small).values() if array.shape == (5, 4, 3, 3))
    assert np.isin(some, pruned).all() and (some == 0).any()
    assert facts["made_up_by"] == "means"
    assert [line["where"] for line in lines if line["what"] == "bias-only"] == ["b"]


def test_without_making_up_data_decide_what_goes_and_nothing_else():
    proto = between(node("Relu", ["c"], ["d"]))
    small, facts, _ = shrunk(proto, PICTURES, compensate=False)
    whole, some = arrays(proto), arrays(small)
    kept = left(whole["a.w"], some["a.w"])
    assert np.array_equal(some["b.w"], whole["b.w"][:, kept]) and np.array_equal(some["b.b"], whole["b.b"])
    assert "made_up_by" not in facts
    by_weights, by_size = shrunk(proto, PICTURES, score="magnitude", compensate=False)[0], shrunk(proto)[0]
    assert by_weights.SerializeToString() == by_size.SerializeToString()
