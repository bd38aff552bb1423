# SPDX-License-Identifier: Apache-2.0
"""Channels and heads out of ONNX graphs: the answers against zeros written into the readers' weights by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from decoder_graphs import decoder, token_items
from fewbit.errors import UsageError
from fewbit.sparsity.job import Job
from fewbit.sparsity.shrinking import graph_rules
from fewbit.sparsity.stages.shrink import Settings, refuse
from linked_graphs import LINKED, PICTURE, STOPPED, TOKENS, between, conv, linear, node, random, several, weights
from onnx_graphs import model, run
from shrinking_graphs import arrays, close, counts, gone, left, shrunk, without

X = random(2, 4, 8, 8, seed=50)
T = random(2, 5, 8, seed=51)
ALL = {name: proto for name, (proto, _) in LINKED.items()} | STOPPED


NOTHING = {"groups", "pad channels", "output", "shuffled sum", "mean over channels", "LayerNormalization",
           "RMSNormalization", "InstanceNormalization", "BatchNormalization", "attention", "grouped-query attention",
           "fused attention"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_where_no_channel_can_go_it_is_said_why(name):
    with pytest.raises(UsageError, match="no channels can be taken out") as caught:
        shrunk(ALL[name])
    assert "output" in caught.value.where or "stay at" in caught.value.where


@pytest.mark.parametrize("name", sorted(set(ALL) - NOTHING))
def test_every_small_graph_stays_a_valid_one_with_the_same_inputs_and_outputs(name):
    proto = ALL[name]
    before = proto.SerializeToString()
    small, facts, _ = shrunk(proto)
    assert proto.SerializeToString() == before
    onnx.checker.check_model(small, full_check=True)
    assert facts["after"] < facts["before"]
    feed = {"x": random(*(side.dim_value for side in proto.graph.input[0].type.tensor_type.shape.dim), seed=9)}
    for a, b in zip(run(small, **feed), run(proto, **feed), strict=True):
        assert a.shape == b.shape
    assert shrunk(proto)[0].SerializeToString() == small.SerializeToString()


@pytest.mark.parametrize(
    "op", ["relu", "prelu", "max pool", "resize", "mean", "pad", "sigmoid", "clip", "swish", "square"]
)
def test_a_channel_goes_where_it_is_made_and_where_it_is_read(op):
    proto = ALL[op]
    small, facts, _ = shrunk(proto)
    kept = left(arrays(proto)["a.w"], arrays(small)["a.w"])
    assert len(kept) == 3 and kept == sorted(kept)
    assert counts(facts) == {"a": (6, 3), "b": (5, 5)}
    close(run(small, x=X), run(without(proto, **{"b.w": (1, gone(kept, 6))}), x=X))


def test_a_residual_goes_with_all_branches():
    proto = STOPPED["residual"]
    small, facts, _ = shrunk(proto)
    kept = left(arrays(proto)["a.w"], arrays(small)["a.w"])
    assert kept == left(arrays(proto)["s.w"], arrays(small)["s.w"])
    assert counts(facts) == {"s,a": (6, 3), "b": (5, 5)}
    close(run(small, x=X), run(without(proto, **{"b.w": (1, gone(kept, 6))}), x=X))


def test_a_depthwise_convolution_loses_groups():
    proto = LINKED["depthwise"][0]
    small, facts, _ = shrunk(proto)
    kept = left(arrays(proto)["d.w"], arrays(small)["d.w"])
    groups = [a.i for n in small.graph.node if n.name == "d" for a in n.attribute if a.name == "group"]
    assert groups == [3] and counts(facts)["a,d"] == (6, 3)
    close(run(small, x=X), run(without(proto, **{"b.w": (1, gone(kept, 6))}), x=X))


def test_an_inverted_residual_block_keeps_its_stream_and_loses_the_inner_width():
    nodes = [
        conv("stem", "x", "s"), conv("up", "s", "u"), node("Clip", ["u", "low", "high"], ["v"]),
        conv("depth", "v", "w", group=12, pads=[1, 1, 1, 1]), node("Relu", ["w"], ["z"]), conv("down", "z", "d"),
        node("Add", ["s", "d"], ["r"]), node("GlobalAveragePool", ["r"], ["p"]), node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "head.w", "head.b"], ["y"], name="head", transB=1),
    ]  # fmt: skip
    shapes = {"stem": (6, 4, 1, 1), "up": (12, 6, 1, 1), "depth": (12, 1, 3, 3), "down": (6, 12, 1, 1)}
    more = {"head.w": random(3, 6), "head.b": random(3), "low": np.float32(0), "high": np.float32(6)}
    proto = model(nodes, {"x": ["n", 4, 8, 8]}, {"y": None}, weights(**shapes) | more)
    small, facts, _ = shrunk(proto, channels=0.4)
    assert counts(facts) == {"up,depth": (12, 8), "stem,down": (6, 4), "head": (3, 3)}
    whole, some = arrays(proto), arrays(small)
    inner, stream = left(whole["depth.w"], some["depth.w"]), left(whole["head.w"], some["head.w"], 1)
    cleared = {"up.w": (1, gone(stream, 6)), "down.w": (1, gone(inner, 12)), "head.w": (1, gone(stream, 6))}
    for batch in (1, 2, 5):
        x = random(batch, 4, 8, 8, seed=batch)
        close(run(small, x=x), run(without(proto, **cleared), x=x))


def test_dense_blocks_lose_what_each_layer_adds():
    nodes = [
        conv("a", "x", "p"), node("Concat", ["x", "p"], ["xp"], axis=1), conv("b", "xp", "q"),
        node("Relu", ["q"], ["r"]), node("Concat", ["xp", "r"], ["xpq"], axis=1), conv("c", "xpq", "y"),
    ]  # fmt: skip
    shapes = {"a": (4, 4, 1, 1), "b": (6, 8, 1, 1), "c": (3, 14, 1, 1)}
    proto = model(nodes, PICTURE, {"y": None}, weights(**shapes))
    small, facts, _ = shrunk(proto)
    assert counts(facts) == {"a": (4, 2), "b": (6, 3), "c": (3, 3)}
    whole, some = arrays(proto), arrays(small)
    a, b = gone(left(whole["a.w"], some["a.w"]), 4), gone(left(whole["b.b"], some["b.b"]), 6)
    cleared = {"b.w": (1, [4 + i for i in a]), "c.w": (1, [4 + i for i in a] + [8 + i for i in b])}
    close(run(small, x=X), run(without(proto, **cleared), x=X))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_part_of_the_channels_is_cut_where_its_ends_are_now(kind):
    ends = {"one": np.array([1], kind), "five": np.array([5], kind)}
    proto = between(node("Slice", ["c", "one", "five", "one"], ["d"]), middle=4, **ends)
    small, facts, _ = shrunk(proto, channels=0.6)
    kept = left(arrays(proto)["a.w"], arrays(small)["a.w"])
    assert counts(facts)["a"] == (6, 3) and not {0, 5} & set(kept)  # nobody reads the first and the last
    close(run(small, x=X), run(without(proto, **{"b.w": (1, [i - 1 for i in gone(kept, 6) if 0 < i < 5])}), x=X))


def test_a_flattened_channel_takes_all_its_positions_along():
    proto = LINKED["flatten"][0]
    small, facts, _ = shrunk(proto)
    whole, some = arrays(proto), arrays(small)
    a, g = left(whole["a.w"], some["a.w"]), left(whole["g.b"], some["g.b"], 1)
    assert some["g.w"].shape == (3, 8) and counts(facts)["a"] == (3, 2)
    lost = [4 * channel + place for channel in gone(a, 3) for place in range(4)]
    close(run(small, x=X), run(without(proto, **{"g.w": (1, lost), "e.w": (0, gone(g, 6))}), x=X))


@pytest.mark.parametrize("kind", ["attention", "grouped-query attention", "fused attention"])
def test_heads_go_as_a_whole_and_the_shapes_follow(kind):
    proto = LINKED[kind][0]
    small, facts, _ = shrunk(proto, channels=0, heads=0.5)
    assert facts["groups"][0]["kind"] == "heads"
    rows = left(arrays(proto)["out.w"], arrays(small)["out.w"])
    assert len(rows) == 4 and all(row + 1 in rows for row in rows[::2]) and all(row % 2 == 0 for row in rows[::2])
    close(run(small, x=T), run(without(proto, **{"out.w": (0, gone(rows, 8))}), x=T))


def test_a_decoder_loses_heads_and_inner_channels_while_norms_keep_its_stream():
    proto = decoder(layers=1)
    small, facts, _ = shrunk(proto, token_items(4), heads=0.5)
    found = counts(facts)
    assert found["layers.0.q_proj,layers.0.k_proj,layers.0.v_proj"] == (4, 2)
    assert found["layers.0.gate_proj,layers.0.up_proj"] == (128, 64)
    assert {(one["op"], one["channels"]) for one in facts["frozen"]} == {("ReduceMean", 64), ("output", 96)}
    assert len(small.SerializeToString()) < 0.8 * len(proto.SerializeToString())
    for batch in (1, 3):
        assert run(small, input_ids=np.ones((batch, 16), np.int64))[0].shape == (batch, 16, 96)


def test_settings_say_how_many_and_of_what():
    proto = several(
        conv("a", "x", "c"), conv("b", "c", "d"), conv("e", "d", "y"),
        **weights(a=(10, 4, 1, 1), b=(12, 10, 1, 1), e=(2, 12, 1, 1)),
    )  # fmt: skip
    assert counts(shrunk(proto, channels=0.3)[1]) == {"a": (10, 7), "b": (12, 9), "e": (2, 2)}
    assert counts(shrunk(proto, channels=0.3, multiple=4)[1]) == {"a": (10, 8), "b": (12, 12), "e": (2, 2)}
    assert counts(shrunk(proto, targets=("re:[ab]",), ignore=("a",))[1]) == {"a": (10, 10), "b": (12, 6), "e": (2, 2)}
    assert counts(shrunk(proto, channels=0.99)[1]) == {"a": (10, 1), "b": (12, 1), "e": (2, 2)}
    same, _, _ = shrunk(proto, channels=0)
    close(run(same, x=X), run(proto, x=X))


def test_names_of_nothing_are_refused_all_at_once():
    named = {"targets": ("stem", "a"), "ignore": ("re:head.*",)}
    with pytest.raises(UsageError, match=r"targets: 'stem' names no layer.*ignore: .*head"):
        shrunk(STOPPED["residual"], **named)
    with pytest.raises(UsageError, match=r"targets: 'stem' names no layer.*ignore: .*head"):
        refuse(Settings(channels=0.5, **named), STOPPED["residual"], Job("one-shot", None, None, None, None, None))


def test_what_is_not_understood_stays_and_is_named():
    nodes = [conv("a", "x", "c"), node("LpNormalization", ["c"], ["d"], name="odd", axis=1), conv("b", "d", "y")]
    proto = model(nodes, PICTURE, {"y": None}, weights(a=(6, 4, 1, 1), b=(5, 6, 1, 1)))
    with pytest.raises(UsageError, match="LpNormalization odd: an operator without a rule"):
        shrunk(proto)
    nodes[0:0] = [conv("first", "x", "f")]
    nodes[1].input[0] = "f"
    proto = model(nodes, PICTURE, {"y": None}, weights(first=(4, 4, 1, 1), a=(6, 4, 1, 1), b=(5, 6, 1, 1)))
    _, facts, lines = shrunk(proto)
    assert facts["frozen"][0] == {
        "group": "a", "channels": 6, "node": "odd", "op": "LpNormalization", "what": "an operator without a rule",
    }  # fmt: skip
    assert [line["where"] for line in lines if line["what"] == "dense"] == ["a", "b"]


def test_a_wrong_rule_is_found_out_and_nothing_comes_back(monkeypatch):
    proto = between(node("Softmax", ["c"], ["d"], axis=1))
    monkeypatch.setitem(graph_rules.RULES, "Softmax", graph_rules.RULES["Relu"])
    with pytest.raises(UsageError, match="does not answer as the whole one"):
        shrunk(proto)


def test_a_quantized_graph_is_refused():
    nodes = [node("DequantizeLinear", ["w", "scale"], ["f"]), node("MatMul", ["x", "f"], ["y"])]
    proto = model(nodes, TOKENS, {"y": None}, {"w": np.ones((8, 3), np.int8), "scale": np.float32(0.1)})
    with pytest.raises(UsageError, match="compute with codes"):
        shrunk(proto)
    with pytest.raises(UsageError, match="compute with codes"):
        refuse(Settings(channels=0.5), proto, Job("one-shot", None, None, None, None, None))


def test_a_branch_that_reads_channels_keeps_them():
    inner = onnx.helper.make_graph(
        [node("Relu", ["c"], ["t"])], "then", [], [onnx.helper.make_tensor_value_info("t", 1, None)]
    )
    other = onnx.helper.make_graph(
        [node("Neg", ["c"], ["e"])], "else", [], [onnx.helper.make_tensor_value_info("e", 1, None)]
    )
    nodes = [linear("a", "x", "c"), node("If", ["yes"], ["d"], name="if", then_branch=inner, else_branch=other),
             linear("b", "d", "y")]  # fmt: skip
    proto = model(nodes, TOKENS, {"y": None}, weights(a=(8, 6), b=(6, 2)) | {"yes": np.array(True)})
    with pytest.raises(UsageError, match="a: 6 stay at If if: a branch or a loop reads them"):
        shrunk(proto)
