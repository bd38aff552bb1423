# SPDX-License-Identifier: Apache-2.0
"""Folding batch norms and the like into the layers in front of them."""

import numpy as np
import pytest

from fewbit.graph.check import relative_difference
from fewbit.graph.edits import AddBias, SetConstant
from fewbit.graph.fold import fold_channelwise
from neutral_graphs import Maker, apply, run


def batch_norm(maker, x, name="bn"):
    channels, random = maker.values[x].shape[1], np.random.default_rng(7)
    arrays = [maker.constant(f"{name}.{i}", random.uniform(0.2, 2, channels) - (i in (1, 2))) for i in range(4)]
    return maker.node("batch_norm", x, *arrays, axis=1, eps=1e-5)


def folded(maker, *outputs, **options):
    """Fold, prove that the function stays, and return the graph before, after and what was folded."""
    graph, sample = maker.graph(*outputs), maker.sample()
    results = fold_channelwise(graph, **options)
    after = apply(graph, [edit for result in results for edit in result.edits])
    assert relative_difference(run(after, sample), run(graph, sample)) < 1e-13
    return results, after


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_behind_a_convolution(groups, bias):
    maker = Maker(x=(2, 4, 6, 6))
    y = maker.node("relu", batch_norm(maker, maker.conv("a", "x", 8, 4 // groups, 3, 3, groups=groups, bias=bias)))
    (result,), after = folded(maker, y)
    assert result.nodes == ("n1",) and [node.op for node in after.nodes] == ["conv", "identity", "relu"]
    assert [type(edit) for edit in result.edits[:2]] == [SetConstant, SetConstant if bias else AddBias]


def test_batch_norm_behind_a_transposed_convolution_in_groups():
    maker = Maker(x=(2, 4, 5, 5))
    x = maker.node("conv_transpose", "x", maker.weight("a", 4, 3, 2, 2), data="NCHW", weight="IOHW", groups=2)
    (result,), _ = folded(maker, batch_norm(maker, x))
    assert result.layer == "n0"


def test_factors_and_shifts_behind_a_product():
    maker = Maker(x=(2, 5, 8))
    x = maker.node("add", maker.node("matmul", "x", maker.weight("w", 8, 4)), maker.weight("b", 4))
    x = maker.node("div", maker.node("mul", x, maker.weight("g", 4)), 0.5)
    x = maker.node("sub", 2.0, x)
    (result,), after = folded(maker, maker.node("unary", x, fn="tanh"))
    assert result.nodes == ("n2", "n3", "n4")
    assert np.abs(after.constants["b"].read() - maker.constants["b"].read()).max() > 0.1


def test_only_some_operators():
    maker = Maker(x=(2, 4, 6, 6))
    x = maker.node("mul", batch_norm(maker, maker.conv("a", "x", 8, 4, 1, 1)), 0.5)
    (result,), _ = folded(maker, x, operators=("batch_norm",))
    assert result.nodes == ("n1",)


def test_what_cannot_be_folded():
    maker = Maker(x=(2, 4, 6, 6))
    conv = maker.conv("a", "x", 8, 4, 1, 1)
    norm = batch_norm(maker, conv)
    assert fold_channelwise(maker.graph(norm, conv)) == ()  # the value between is an output
    assert fold_channelwise(maker.graph(maker.node("add", norm, conv))) == ()  # and here another node reads it
    maker = Maker(x=(2, 4, 6, 6))
    relu = batch_norm(maker, maker.node("relu", maker.conv("a", "x", 8, 4, 1, 1)))
    assert fold_channelwise(maker.graph(relu)) == ()
    maker = Maker(x=(2, 5, 8))  # a table of positions is not one number per channel
    x = maker.node("add", maker.linear("a", "x", 4), maker.weight("p", 5, 4))
    assert fold_channelwise(maker.graph(x)) == ()
    maker = Maker(x=(2, 4, 6, 6))  # a division by zero stays where it is
    zeros = maker.constant("zeros", np.zeros((8, 1, 1)))
    with np.errstate(all="ignore"):
        assert fold_channelwise(maker.graph(maker.node("div", maker.conv("a", "x", 8, 4, 1, 1), zeros))) == ()


def test_shared_weights_are_left_alone():
    maker = Maker(x=(2, 4, 6, 6), z=(2, 4, 6, 6))
    weight = maker.weight("w", 8, 4, 1, 1)
    attrs = {"data": "NCHW", "weight": "OIHW", "groups": 1}
    one, two = (maker.node("conv", name, weight, **attrs) for name in ("x", "z"))
    assert fold_channelwise(maker.graph(batch_norm(maker, one), two)) == ()


def test_small_variances_keep_their_digits():
    """In float32, 1 / sqrt(1e-12 + 1e-12) times a weight would lose half of them."""
    maker = Maker(x=(2, 4, 3, 3))
    conv = maker.conv("a", "x", 2, 4, 1, 1)
    arrays = [maker.constant(f"c{i}", value) for i, value in enumerate(([1, 1], [0, 0], [1e3, -1e3], [1e-12, 1e-9]))]
    (result,), _ = folded(maker, maker.node("batch_norm", conv, *arrays, axis=1, eps=1e-12))
    assert all(edit.value.dtype == np.float64 for edit in result.edits if isinstance(edit, SetConstant))
