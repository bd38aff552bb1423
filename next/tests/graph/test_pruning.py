# SPDX-License-Identifier: Apache-2.0
"""Channels that are removed together, and removal against zeroed weights of the readers."""

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.graph.check import check_removable
from fewbit.graph.ir import Graph, Node, Value
from fewbit.graph.pruning import PruneAnalysis, prune_families
from neutral_graphs import Maker, apply, removed, run


def sizes(families):
    return {tuple(use.constant for use in family.uses if use.role == "out"): family.size for family in families}


def test_a_residual_sum_couples_what_it_adds():
    maker = Maker(x=(2, 3, 6, 6))
    x = maker.node("relu", maker.conv("stem", "x", 8, 3, 1, 1))
    inner = maker.node("relu", maker.conv("a", x, 6, 8, 1, 1))
    x = maker.node("relu", maker.node("add", x, maker.conv("b", inner, 8, 6, 1, 1)))
    y = maker.linear("head", maker.node("reduce", x, fn="mean", axes=(2, 3), keepdims=False), 5)
    edit, families = removed(maker.graph(y), maker.sample())
    assert sizes(families) == {("stem.weight", "b.weight"): 8, ("a.weight",): 6}
    assert (
        len(edit.keep["stem.weight", 0]) == 4
        and edit.keep["head.weight", 1].tolist() == edit.keep["b.weight", 0].tolist()
    )
    assert edit.shapes["n0"] == (2, 4, 6, 6)


@pytest.mark.parametrize(("groups", "free"), [(6, 6), (3, 3)])
def test_grouped_convolutions_lose_whole_groups(groups, free):
    maker = Maker(x=(2, 3, 6, 6))
    x = maker.conv("a", "x", 6, 3, 1, 1)
    x = maker.conv("d", x, 6, 6 // groups, 3, 3, groups=groups)
    edit, families = removed(maker.graph(maker.conv("b", x, 2, 6, 1, 1)), maker.sample())
    assert sizes(families) == {("a.weight", "d.weight"): free}
    assert edit.attrs == {"n1": {"groups": groups - groups // 2}}


def test_transposed_convolutions_and_group_norms():
    maker = Maker(x=(2, 3, 4, 4))
    up = maker.node("conv_transpose", "x", maker.weight("up", 3, 8, 2, 2), data="NCHW", weight="IOHW", groups=1)
    grouped = maker.node("conv_transpose", up, maker.weight("g", 8, 2, 1, 1), data="NCHW", weight="IOHW", groups=4)
    norm = maker.node("group_norm", grouped, maker.weight("w", 8), maker.weight("b", 8), axis=1, groups=4, eps=1e-5)
    edit, families = removed(maker.graph(maker.conv("last", norm, 2, 8, 1, 1)), maker.sample())
    assert [family.size for family in families] == [4]
    assert edit.attrs == {"n1": {"groups": 2}, "n2": {"groups": 2}}


def test_concatenated_sliced_and_reordered_channels():
    maker = Maker(x=(2, 3, 6, 6))
    a, b = maker.conv("a", "x", 4, 3, 1, 1), maker.conv("b", "x", 6, 3, 1, 1)
    joined = maker.node("concat", a, b, axis=1)
    part = maker.node("slice", joined, axis=1, start=1, stop=9, step=1)
    turned = maker.node("gather", part, axis=1, indices=(7, 6, 5, 4, 3, 2, 1, 0))
    one, two = maker.node("split", turned, outputs=2, axis=1, sizes=(3, 5))
    edit, _ = removed(
        maker.graph(maker.conv("c", one, 2, 3, 1, 1), maker.conv("d", two, 2, 5, 1, 1)), maker.sample(), 0.4
    )
    assert {"n3", "n4", "n5"} >= edit.attrs.keys() and edit.attrs["n5"]["sizes"] != (3, 5)


def heads(maker, value, count, size=3):
    return maker.node("transpose", maker.node("reshape", value, shape=(2, 5, count, size)), perm=(0, 2, 1, 3))


@pytest.mark.parametrize("spelled", [True, False])
def test_heads_of_grouped_queries(spelled):
    maker = Maker(x=(2, 5, 8))
    q, k, v = (heads(maker, maker.linear(name, "x", 3 * n), n) for name, n in (("q", 4), ("k", 2), ("v", 2)))
    if spelled:
        k, v = (maker.node("repeat", value, axis=1, times=2, interleave=True) for value in (k, v))
        probabilities = maker.node("softmax", maker.node("matmul", q, k, transpose_b=True), axis=3)
        mixed = maker.node("matmul", probabilities, v)
    else:
        mixed = maker.node("attention", q, k, v, scale=None, causal=False)
    flat = maker.node("reshape", maker.node("transpose", mixed, perm=(0, 2, 1, 3)), shape=(2, 5, 12))
    _, families = removed(maker.graph(maker.linear("o", flat, 8)), maker.sample())
    (family,) = families
    assert family.size == 2
    counts = {use.constant: int((use.index == 0).sum()) for use in family.uses if use.role != "vector"}
    assert counts == {"q.weight": 6, "k.weight": 3, "v.weight": 3, "o.weight": 6}


def test_fused_projections_fall_into_three_before_heads_are_coupled():
    maker = Maker(x=(2, 5, 8))
    five = maker.node("reshape", maker.linear("qkv", "x", 36), shape=(2, 5, 3, 4, 3))
    turned = maker.node("transpose", five, perm=(2, 0, 3, 1, 4))
    q, k, v = maker.node("split", turned, outputs=3, axis=0, sizes=(1, 1, 1), drop=True)
    mixed = maker.node("attention", q, k, v, scale=None, causal=False)
    flat = maker.node("reshape", maker.node("transpose", mixed, perm=(0, 2, 1, 3)), shape=(2, 5, 12))
    _, families = removed(maker.graph(maker.linear("o", flat, 8)), maker.sample())
    assert [family.size for family in families] == [4]


def test_only_the_values_of_a_fused_projection_are_free():
    """[2, 6] channels, of which the first half has to stay: without a part of the second they are no rectangle."""
    maker = Maker(x=(2, 5, 8))
    both = maker.node("reshape", maker.linear("both", "x", 12), shape=(2, 5, 2, 6))
    one, two = maker.node("split", both, outputs=2, axis=2, sizes=(1, 1), drop=True)
    y = maker.linear("o", two, 3)
    assert PruneAnalysis(maker.graph(y, one)).families == ()


def test_norms_over_channels_are_named():
    maker = Maker(x=(2, 5, 8))
    hidden = maker.linear("a", "x", 6)
    norm = maker.node("layer_norm", hidden, maker.weight("g", 6), maker.weight("s", 6), axes=(2,), eps=1e-5)
    (family,) = prune_families(maker.graph(maker.linear("b", norm, 3)))
    assert family.inexact == ("n1",) and family.size == 6
    maker = Maker(x=(2, 5, 8))
    mean = maker.node("reduce", maker.linear("c", "x", 6), fn="mean", axes=(2,), keepdims=True)
    (family,) = prune_families(maker.graph(mean))
    assert family.inexact == (mean,)


def test_scores_over_channels_are_named():
    maker = Maker(x=(2, 5, 8))
    q, k = maker.linear("q", "x", 6), maker.linear("k", "x", 6)
    (family,) = prune_families(maker.graph(maker.node("matmul", q, k, transpose_b=True)))
    assert family.inexact == ("n2",)


def test_tied_weights_lose_the_same_channels():
    maker = Maker(ids=(2, 3))
    maker.values["ids"] = np.array([[0, 1, 2], [3, 4, 5]])
    table = maker.weight("table", 7, 8)
    x = maker.node("gather", table, "ids", axis=0)
    y = maker.node("matmul", maker.node("add", x, maker.linear("mlp", x, 8)), table, transpose_b=True)
    (family,) = prune_families(maker.graph(y))
    assert [use.constant for use in family.uses] == ["table", "mlp.weight", "mlp.weight", "mlp.bias"]


def test_weights_over_positions_pass_channels():
    maker = Maker(x=(2, 5, 3))
    come = maker.linear("come", "x", 6)
    over = maker.linear("over", maker.node("transpose", come, perm=(0, 2, 1)), 5)
    both = maker.node("add", come, maker.node("transpose", over, perm=(0, 2, 1)))
    _, families = removed(maker.graph(maker.linear("go", both, 2)), maker.sample())
    assert sizes(families) == {("come.weight",): 6}


def test_a_token_in_front_follows_the_stream():
    maker = Maker(x=(2, 5, 3))
    token = maker.node("expand", maker.weight("token", 1, 1, 6), shape=(2, 1, 6))
    joined = maker.node("concat", token, maker.linear("patches", "x", 6), axis=1)
    y = maker.linear("head", maker.node("slice", joined, axis=1, start=0, stop=1, step=1, drop=True), 2)
    edit, _ = removed(maker.graph(y), maker.sample())
    assert len(edit.keep["token", 2]) == 3


def test_what_an_opaque_node_reads_is_kept():
    maker = Maker(x=(2, 8))
    hidden = maker.linear("a", "x", 6)
    graph = maker.graph(maker.linear("b", hidden, 3))
    node = Node("loop", "opaque", ("n1",), ("z",), captures=(hidden,))
    values = {**graph.values, "z": Value("z", (2, 3))}
    assert prune_families(Graph(("x",), ("z",), (*graph.nodes, node), values, graph.constants)) == ()


def test_indices_beside_values_are_kept():
    maker = Maker(x=(2, 5, 8))
    hidden = maker.linear("a", "x", 6)
    graph = maker.graph(maker.linear("b", maker.node("reduce", hidden, fn="max", axes=(1,), keepdims=True), 3))
    nodes = [Node(n.name, n.op, n.inputs, (*n.outputs, "at"), n.attrs) if n.op == "reduce" else n for n in graph.nodes]
    values = {**graph.values, "at": Value("at", (2, 1, 6), "int64")}
    assert len(prune_families(Graph(("x",), graph.outputs, tuple(nodes), values, graph.constants))) == 1
    assert prune_families(Graph(("x",), (*graph.outputs, "at"), tuple(nodes), values, graph.constants)) == ()


def test_a_layer_never_loses_all_channels():
    maker = Maker(x=(2, 8))
    analysis = PruneAnalysis(maker.graph(maker.linear("b", maker.linear("a", "x", 6), 3)))
    with pytest.raises(UsageError, match=r"a\.bias, a\.weight, b\.weight would lose all"):
        analysis.removal({0: range(6)})
    single = Maker(x=(2, 8))
    assert prune_families(single.graph(single.linear("b", single.linear("a", "x", 1), 3))) == ()


def test_a_family_that_is_not_closed_is_rejected():
    maker = Maker(x=(2, 8))
    graph = maker.graph(maker.linear("b", maker.linear("a", "x", 6), 3))
    (family,) = prune_families(graph)
    leaking = type(family)(family.size, tuple(use for use in family.uses if use.role != "in"))
    accepted, rejected = check_removable(
        [leaking, family], lambda e: run(apply(graph, e), maker.values), tolerance=1e-9
    )
    assert accepted == (family,) and rejected[0].family is leaking and rejected[0].difference > 0.01
