# SPDX-License-Identifier: Apache-2.0
"""Channels that can be rescaled, for builds whose answer is known; and using every family keeps the function."""

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.graph.check import relative_difference
from fewbit.graph.ir import Graph, Node, Value
from fewbit.graph.scaling import scale_edits, scale_families
from neutral_graphs import Maker, apply, run

SAME = list(range(6))


def families_of(maker, *outputs):
    """Constants, roles and signs of each family, after proving that random factors change nothing."""
    graph = maker.graph(*outputs)
    families, sample = scale_families(graph), maker.sample()
    expected = run(graph, sample)
    random = np.random.default_rng(1)
    for family in families:  # each alone, and each does something
        edits = scale_edits(family, np.exp(random.uniform(-1, 1, family.size)))
        assert relative_difference(run(apply(graph, edits), sample), expected) < 1e-9, str(family)
        assert relative_difference(run(apply(graph, edits[1:]), sample), expected) > 1e-6, str(family)
    everything = [e for f in families for e in scale_edits(f, np.exp(random.uniform(-1, 1, f.size)))]
    assert relative_difference(run(apply(graph, everything), sample), expected) < 1e-9
    return families


def links_of(maker, *outputs):
    """Producer and consumer weights, with the producer's channel behind each input channel of the consumer."""
    links = {}
    for family in families_of(maker, *outputs):
        (producer,) = family.of_role("out")
        number = {int(g): channel for channel, g in reversed(list(enumerate(producer.channels))) if g >= 0}
        for use in family.of_role("in"):
            links[producer.constant, use.constant] = [number.get(int(g), -1) for g in use.channels]
    return links


def two_convs(between, *, channels=6, size=1):
    """A convolution, something, a convolution."""
    maker = Maker(x=(2, 4, 8, 8))
    middle = between(maker, maker.conv("a", "x", 6, 4, 3, 3))
    return maker, maker.conv("b", middle, 5, channels, size, size)


def one(op, *more, **attrs):
    return lambda maker, c: maker.node(op, c, *more, **attrs)


def gate(maker):
    mean = maker.node("reduce", "x", fn="mean", axes=(1, 2, 3), keepdims=True)
    return maker.node("unary", mean, fn="sigmoid")


PASSED = {
    "nothing": (lambda maker, c: c, SAME),
    "relu": (one("relu"), SAME),
    "leaky relu": (one("leaky_relu", slope=0.2), SAME),
    "prelu": (lambda m, c: m.node("prelu", c, m.weight("s", 6, 1, 1)), SAME),
    "abs": (one("abs"), SAME),
    "max pool": (one("max_pool", data="NCHW", kernel=(2, 2)), SAME),
    "average pool": (one("avg_pool", data="NCHW", kernel=(2, 2)), SAME),
    "resize": (one("resize", data="NCHW", shape=(2, 6, 12, 12)), SAME),
    "mean over positions": (one("reduce", fn="mean", axes=(2, 3), keepdims=True), SAME),
    "largest over positions": (one("reduce", fn="max", axes=(2, 3), keepdims=True), SAME),
    "length over positions": (one("reduce", fn="norm", axes=(2, 3), keepdims=True), SAME),
    "sums along positions": (one("cumsum", axis=3), SAME),
    "times a number": (one("mul", 0.5), SAME),
    "over a number": (one("div", 0.5), SAME),
    "larger of it and zero": (one("max", 0.0), SAME),
    "padding with zeros": (one("pad", pads=((0, 0), (0, 0), (1, 1), (1, 1)), value=0.0), SAME),
    "a constant added behind": (lambda m, c: m.node("sub", m.node("relu", c), m.weight("k", 1, 6, 1, 1)), SAME),
    "positions added behind": (lambda m, c: m.node("add", m.node("relu", c), m.weight("k", 6, 6, 6)), SAME),
    "a factor that others compute": (lambda m, c: m.node("mul", c, gate(m)), SAME),
    "flipped": (one("gather", axis=1, indices=(5, 4, 3, 2, 1, 0)), SAME[::-1]),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED)
def test_what_a_factor_passes(name):
    between, channels = PASSED[name]
    maker, y = two_convs(between)
    assert links_of(maker, y) == {("a.weight", "b.weight"): channels}


STOPPED = {
    "sigmoid": one("unary", fn="sigmoid"),
    "clip": one("clip", low=0.0, high=6.0),
    "swish": lambda m, c: m.node("mul", c, m.node("unary", c, fn="sigmoid")),
    "square": lambda m, c: m.node("mul", c, c),
    "power": one("pow", 2.0),
    "plus a number": one("add", 1.0),
    "larger of it and a number": one("max", 0.5),
    "one over it": lambda m, c: m.node("div", 1.0, m.node("add", m.node("abs", c), 1.0)),
    "softmax": one("softmax", axis=1),
    "padding with ones": one("pad", pads=((0, 0), (0, 0), (1, 1), (1, 1)), value=1.0),
    "a cast to integers": one("cast"),
    "a quantizer": one("identity"),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPPED)
def test_what_a_factor_does_not_pass(name):
    maker = Maker(x=(2, 4, 8, 8))
    middle = STOPPED[name](maker, maker.conv("a", "x", 6, 4, 3, 3))
    channels = maker.values[middle].shape[1]
    y = maker.conv("b", middle, 5, channels, 1, 1)
    graph = maker.graph(y)
    if name == "a cast to integers":
        graph = Graph(
            graph.inputs,
            graph.outputs,
            graph.nodes,
            {**graph.values, middle: Value(middle, graph.dims(middle), "int64")},
            graph.constants,
        )
    if name == "a quantizer":
        nodes = [Node(n.name, "fake_quantize", n.inputs, n.outputs) if n.op == "identity" else n for n in graph.nodes]
        graph = Graph(graph.inputs, graph.outputs, tuple(nodes), graph.values, graph.constants)
    assert scale_families(graph) == ()


def test_a_sum_couples_what_it_adds():
    swapped = one("gather", axis=1, indices=(1, 0, 3, 2, 5, 4))
    maker, y = two_convs(lambda m, c: m.node("add", c, swapped(m, c)))
    (family,) = families_of(maker, y)
    assert family.of_role("in")[0].channels.tolist() == [0, 0, 1, 1, 2, 2]
    maker = Maker(x=(2, 5, 6))
    y = maker.linear("b", maker.node("add", maker.linear("a", "x", 6), "x"), 3)  # the input of the model stays
    assert scale_families(maker.graph(y)) == ()


def test_outputs_and_captured_values_are_fixed():
    maker = Maker(x=(2, 8))
    hidden = maker.linear("a", "x", 6)
    y = maker.linear("b", hidden, 3)
    assert len(families_of(maker, y)) == 1
    assert scale_families(maker.graph(y, hidden)) == ()
    graph = maker.graph(y)
    branch = Node("if", "opaque", (y,), ("z",), captures=(hidden,))
    values = {**graph.values, "z": Value("z", (2, 3))}
    assert scale_families(Graph(("x",), ("z",), (*graph.nodes, branch), values, graph.constants)) == ()
    weight = Node("if", "opaque", (y,), ("z",), captures=("a.weight",))
    assert scale_families(Graph(("x",), ("z",), (*graph.nodes, weight), values, graph.constants)) == ()


def test_unknown_shapes_are_left_alone():
    maker = Maker(x=(2, 8))
    y = maker.linear("b", maker.node("relu", maker.linear("a", "x", 6)), 3)
    graph = maker.graph(y)
    values = {**graph.values, "n1": Value("n1", None)}
    assert scale_families(Graph(graph.inputs, graph.outputs, graph.nodes, values, graph.constants)) == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"shape": (6, 2, 1, 1), "groups": 2}, {"shape": (9, 2, 3, 3), "groups": 3}),
        ({"shape": (6, 4, 1, 1), "groups": 1}, {"shape": (6, 1, 3, 3), "groups": 6}),
        ({"shape": (8, 1, 3, 3), "groups": 4}, {"shape": (8, 4, 1, 1), "groups": 2}),
    ],
)
def test_grouped_and_depthwise_convolutions(first, second):
    maker = Maker(x=(2, 4, 8, 8))
    hidden = maker.node("relu", maker.conv("a", "x", *first["shape"], groups=first["groups"]))
    middle = maker.conv("b", hidden, *second["shape"], groups=second["groups"])
    links = links_of(maker, maker.conv("c", middle, 2, second["shape"][0], 1, 1))
    assert links["a.weight", "b.weight"] == list(range(first["shape"][0]))
    assert links["b.weight", "c.weight"] == list(range(second["shape"][0]))


def test_transposed_convolutions_in_groups():
    maker = Maker(x=(2, 4, 5, 5))
    attrs = {"data": "NCHW", "weight": "IOHW"}
    a = maker.node("conv_transpose", "x", maker.weight("a", 4, 3, 2, 2), maker.weight("ab", 6), groups=2, **attrs)
    b = maker.node("conv_transpose", maker.node("relu", a), maker.weight("b", 6, 2, 3, 3), groups=3, **attrs)
    links = links_of(maker, maker.conv("e", b, 2, 6, 1, 1))
    assert links == {("a", "b"): SAME, ("b", "e.weight"): SAME}


def test_channels_last():
    maker = Maker(x=(2, 6, 6, 4))
    a = maker.node("conv", "x", maker.weight("a", 6, 3, 3, 4), maker.weight("ab", 6), data="NHWC", weight="OHWI")
    d = maker.node("conv", maker.node("relu", a), maker.weight("d", 1, 3, 3, 6), data="NHWC", weight="1HWO", groups=6)
    pooled = maker.node("max_pool", d, data="NHWC", kernel=(2, 2))
    flat = maker.node("reshape", pooled, shape=(2, 6))
    links = links_of(maker, maker.linear("fc", flat, 3))
    assert links == {("a", "d"): SAME, ("d", "fc.weight"): SAME}


def test_flattened_positions_share_the_factor_of_their_channel():
    maker = Maker(x=(2, 4, 4, 4))
    c = maker.node("relu", maker.conv("a", "x", 3, 4, 3, 3))
    y = maker.linear("fc", maker.node("reshape", c, shape=(2, 12)), 5)
    assert links_of(maker, y) == {("a.weight", "fc.weight"): [0] * 4 + [1] * 4 + [2] * 4}


def test_concatenation_and_split():
    maker = Maker(x=(2, 4, 6, 6))
    parts = [maker.conv("a", "x", 2, 4, 1, 1), maker.conv("e", "x", 3, 4, 1, 1), "x"]
    links = links_of(maker, maker.conv("b", maker.node("concat", *parts, axis=1), 5, 9, 1, 1))
    assert links == {
        ("a.weight", "b.weight"): [0, 1] + [-1] * 7,
        ("e.weight", "b.weight"): [-1, -1, 0, 1, 2] + [-1] * 4,
    }
    maker = Maker(x=(2, 5, 8))
    gate, up = maker.node("split", maker.linear("both", "x", 12), outputs=2, axis=2, sizes=(6, 6))
    product = maker.node("mul", maker.node("unary", gate, fn="silu"), up)
    assert links_of(maker, maker.linear("down", product, 8)) == {("both.weight", "down.weight"): [6, 7, 8, 9, 10, 11]}


def test_all_readers_are_one_family():
    maker = Maker(x=(2, 8))
    hidden = maker.node("relu", maker.linear("a", "x", 6))
    (family,) = families_of(maker, maker.linear("b", hidden, 3), maker.linear("c", hidden, 4))
    assert str(family) == "6 x a.weight +out, a.bias +vector, b.weight -in, c.weight -in"


def test_squeeze_and_excite():
    maker = Maker(x=(2, 4, 6, 6))
    r = maker.node("relu", maker.conv("a", "x", 6, 4, 3, 3))
    pooled = maker.node("avg_pool", r, data="NCHW", shape=(2, 6, 1, 1), kernel=(4, 4))
    inner = maker.conv("up", maker.node("relu", maker.conv("down", pooled, 3, 6, 1, 1)), 6, 3, 1, 1)
    m = maker.node("mul", r, maker.node("unary", inner, fn="sigmoid"))
    y = maker.conv("b", maker.node("add", m, r), 5, 6, 1, 1)
    links = links_of(maker, y)
    assert set(links) == {("a.weight", "down.weight"), ("a.weight", "b.weight"), ("down.weight", "up.weight")}


def test_products_with_a_gate_spelled_out():
    """x * sigmoid(x) * up: the product of two values passes the factor of the one that is free."""
    maker = Maker(x=(2, 5, 8))
    gate, up = maker.linear("gate", "x", 6), maker.linear("up", "x", 6)
    swish = maker.node("mul", gate, maker.node("unary", gate, fn="sigmoid"))
    for product in (maker.node("mul", swish, up), maker.node("mul", up, swish)):
        assert links_of(maker, maker.linear("down", product, 8)) == {("up.weight", "down.weight"): SAME}


def test_of_two_free_factors_one_stays():
    maker = Maker(x=(2, 5, 8))
    y = maker.linear("down", maker.node("mul", maker.linear("a", "x", 6), maker.linear("b", "x", 6)), 8)
    (family,) = families_of(maker, y)
    assert family.size == 6


def attention(maker, x, *, kv=4, fused=False, spelled=True):
    """Attention of 4 heads of 2 channels, with `kv` heads of keys and values."""

    def heads(value, count):
        return maker.node("transpose", maker.node("reshape", value, shape=(2, 5, count, 2)), perm=(0, 2, 1, 3))

    if fused:
        five = maker.node("reshape", maker.linear("qkv", x, 24), shape=(2, 5, 3, 4, 2))
        turned = maker.node("transpose", five, perm=(2, 0, 3, 1, 4))
        q, k, v = maker.node("split", turned, outputs=3, axis=0, sizes=(1, 1, 1), drop=True)
    else:
        q, k, v = (heads(maker.linear(name, x, 2 * count), count) for name, count in (("q", 4), ("k", kv), ("v", kv)))
    if spelled:
        if kv != 4:
            k, v = (maker.node("repeat", value, axis=1, times=4 // kv, interleave=True) for value in (k, v))
        scores = maker.node("div", maker.node("matmul", q, k, transpose_b=True), 2.0**0.5)
        mixed = maker.node("matmul", maker.node("softmax", scores, axis=3), v)
    else:
        mixed = maker.node("attention", q, k, v, scale=None, causal=True)
    flat = maker.node("reshape", maker.node("transpose", mixed, perm=(0, 2, 1, 3)), shape=(2, 5, 8))
    return maker.linear("o", flat, 8)


@pytest.mark.parametrize("spelled", [True, False])
@pytest.mark.parametrize(("kv", "values"), [(4, list(range(8))), (2, [0, 1, 0, 1, 2, 3, 2, 3]), (1, [0, 1] * 4)])
def test_attention(kv, values, spelled):
    maker = Maker(x=(2, 5, 8))
    norm = maker.node("layer_norm", "x", maker.weight("g", 8), maker.weight("s", 8), axes=(2,), eps=1e-5)
    y = attention(maker, norm, kv=kv, spelled=spelled)
    families = families_of(maker, y)
    shown = {
        tuple((use.constant, use.role, use.sign) for use in family.uses if use.role != "vector") for family in families
    }
    assert shown == {
        (("g", "out", 1), ("q.weight", "in", -1), ("k.weight", "in", -1), ("v.weight", "in", -1)),
        (("q.weight", "out", 1), ("k.weight", "out", -1)),
        (("v.weight", "out", 1), ("o.weight", "in", -1)),
    }
    (values_to_output,) = [f for f in families if f.uses[0].constant == "v.weight"]
    assert values_to_output.of_role("in")[0].channels.tolist() == values


def test_fused_attention():
    maker = Maker(x=(2, 5, 8))
    families = families_of(maker, attention(maker, "x", fused=True))
    (values,) = [f for f in families if f.of_role("in")]
    producer, consumer = values.of_role("out")[0], values.of_role("in")[0]
    assert producer.channels.tolist() == [-1] * 16 + list(range(8)) and consumer.channels.tolist() == list(range(8))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_create_channels_and_fix_what_they_read(op):
    maker = Maker(x=(2, 5, 8))
    hidden = maker.linear("a", "x", 6)
    operands = [maker.weight("gain", 6), *([maker.weight("shift", 6)] if op == "layer_norm" else [])]
    y = maker.linear("b", maker.node(op, hidden, *operands, axes=(2,), eps=1e-5), 3)
    (family,) = families_of(maker, y)
    assert family.uses[0].constant == "gain"


def test_a_norm_in_primitive_operators_whose_gain_is_one_plus_its_weight():
    maker = Maker(x=(2, 5, 8))
    mean = maker.node("reduce", maker.node("pow", "x", 2.0), fn="mean", axes=(2,), keepdims=True)
    normal = maker.node("mul", "x", maker.node("unary", maker.node("add", mean, 1e-6), fn="rsqrt"))
    gain = maker.node("add", maker.weight("w", 8), 1.0)
    (family,) = families_of(maker, maker.linear("b", maker.node("mul", normal, gain), 3))
    assert (family.uses[0].constant, family.uses[0].offset) == ("w", 1.0)


def test_batch_and_group_norms():
    maker = Maker(x=(2, 4, 6, 6))
    a = maker.conv("a", "x", 6, 4, 1, 1)
    four = [maker.constant(f"bn{i}", np.random.default_rng(i).uniform(0.5, 2, 6)) for i in range(4)]
    b = maker.node("relu", maker.node("batch_norm", a, *four, axis=1, eps=1e-5))
    g = maker.node(
        "group_norm",
        maker.conv("c", b, 4, 6, 1, 1),
        maker.weight("gw", 4),
        maker.weight("gb", 4),
        axis=1,
        groups=2,
        eps=1e-5,
    )
    families = families_of(maker, maker.conv("d", g, 2, 4, 1, 1))
    assert [str(family) for family in families] == [
        "6 x a.weight +out, a.bias +vector, bn0 -in, bn2 +vector",
        "6 x bn0 +out, bn1 +vector, c.weight -in",
        "4 x gw +out, gb +vector, d.weight -in",
    ]


def test_a_layer_that_is_called_twice_scales_alike_both_times():
    maker = Maker(x=(2, 5, 8), z=(2, 5, 8))
    up, down = maker.weight("up", 6, 8), maker.weight("down", 3, 6)
    outputs = [
        maker.node(
            "matmul", maker.node("relu", maker.node("matmul", name, up, transpose_b=True)), down, transpose_b=True
        )
        for name in ("x", "z")
    ]
    (family,) = families_of(maker, maker.node("add", *outputs))
    assert str(family) == "6 x up +out, down -in"


def test_a_weight_that_something_else_reads_too_is_fixed():
    maker = Maker(x=(2, 5, 8))
    up = maker.weight("up", 6, 8)
    hidden = maker.node("matmul", "x", up, transpose_b=True)
    other = maker.node("matmul", "x", maker.node("mul", up, 2.0), transpose_b=True)
    y = maker.node("add", maker.linear("down", hidden, 6), other)
    assert scale_families(maker.graph(y)) == ()
    assert scale_families(maker.graph(maker.linear("d2", hidden, 3), "up")) == ()  # the model returns the weight


def test_tables_computed_by_the_model_are_not_edited():
    maker = Maker(x=(2, 5, 8))
    table = maker.constant("table", np.arange(1.0, 9.0), stored=False)
    assert scale_families(maker.graph(maker.linear("b", maker.node("mul", "x", table), 3))) == ()


def test_weights_over_positions_pass_channels():
    maker = Maker(x=(2, 5, 8))
    turned = maker.node("transpose", maker.linear("come", "x", 6), perm=(0, 2, 1))
    mixed = maker.node("matmul", turned, maker.weight("over", 5, 4))
    y = maker.linear("go", maker.node("transpose", mixed, perm=(0, 2, 1)), 3)
    assert ("come.weight", "go.weight") in links_of(maker, y)


def test_stacked_experts():
    maker = Maker(x=(2, 5, 8), ids=(4,))
    maker.values["ids"] = np.array([2, 0, 1, 2])
    tokens = maker.node("reshape", maker.node("slice", "x", axis=1, start=0, stop=2, step=1), shape=(4, 1, 8))
    up, down = (
        maker.node("gather", maker.weight(name, *shape), "ids", axis=0)
        for name, shape in (("up", (3, 6, 8)), ("down", (3, 8, 6)))
    )
    hidden = maker.node("relu", maker.node("matmul", tokens, up, transpose_b=True))
    graph = maker.graph(maker.node("matmul", hidden, down, transpose_b=True))
    (family,) = scale_families(graph)
    assert str(family) == "6 x up +out, down -in"
    sample = {"x": maker.sample()["x"], "ids": np.array([0, 0, 2, 1])}
    edits = scale_edits(family, np.arange(1.0, 7.0))
    assert relative_difference(run(apply(graph, edits), sample), run(graph, sample)) < 1e-12


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_factors_that_would_destroy_a_channel_are_refused(bad):
    maker = Maker(x=(2, 8))
    (family,) = scale_families(maker.graph(maker.linear("b", maker.linear("a", "x", 6), 3)))
    factors = np.ones(6)
    factors[4] = bad
    with pytest.raises(UsageError, match="group 4"):
        scale_edits(family, factors)
    with pytest.raises(UsageError, match="shape"):
        scale_edits(family, np.ones(5))
