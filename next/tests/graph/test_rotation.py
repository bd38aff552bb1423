# SPDX-License-Identifier: Apache-2.0
"""Residual streams and heads, rotated: the outputs stay what they were; and what cannot be rotated is refused."""

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.graph.check import relative_difference
from fewbit.graph.heads import find_value_heads
from fewbit.graph.residual import find_residual_stream
from fewbit.graph.rotation import rotation_edits
from neutral_graphs import Maker, apply, run


def rotation(size, *, centered=False, seed=0):
    """A random orthogonal matrix; a centered one keeps (1, …, 1)."""
    random = np.random.default_rng(seed)
    if not centered:
        return np.linalg.qr(random.standard_normal((size, size)))[0]
    basis = np.linalg.qr(np.c_[np.ones(size), random.standard_normal((size, size - 1))])[0]
    inner = np.eye(size)
    inner[1:, 1:] = rotation(size - 1, seed=seed)
    return basis @ inner @ basis.T


class Decoder:
    """Two blocks of attention and MLP on a stream of 8 channels, with options for what may lie on it."""

    def __init__(self, norm="spelled", *, odd=""):
        self.maker, self.norm_kind, self.odd, self.norms = Maker(ids=(2, 5)), norm, odd, 0
        self.maker.values["ids"] = np.random.default_rng(0).integers(9, size=(2, 5))
        maker = self.maker
        x = maker.node("gather", maker.weight("table", 9, 8), "ids", axis=0)
        x = maker.node("mul", maker.node("add", x, maker.weight("positions", 5, 8)), 3.0)
        for block in range(2):
            x = maker.node("add", x, self.attention(f"{block}.attention", self.norm(x)))
            step = self.mlp(f"{block}.mlp", self.norm(x))
            x = maker.node("add", x, maker.node("relu", step) if odd == "relu" else step)
            x = maker.node("mul", x, maker.weight(f"{block}.gain", 8)) if odd == "gain" else x
            x = maker.node("add", x, self.norm(x)) if odd == "norm is added" else x
        head = self.norm(x) if odd != "no norm" else x
        self.output = maker.linear("head", head, 9, bias=False)
        self.graph = maker.graph(self.output, *([x] if odd == "returned" else []))
        self.sample = {"ids": np.random.default_rng(1).integers(9, size=(2, 5))}

    def norm(self, x):
        maker, self.norms = self.maker, self.norms + 1
        gain, bias = (maker.constant(f"norm{self.norms}.{i}", maker.random.uniform(0.5, 2, 8)) for i in range(2))
        if self.norm_kind == "layer_norm":
            return maker.node("layer_norm", x, gain, bias, axes=(2,), eps=1e-5)
        if self.norm_kind == "rms_norm":
            return maker.node("rms_norm", x, gain, axes=(2,), eps=1e-5)
        if self.norm_kind == "centered":
            x = maker.node("sub", x, maker.node("reduce", x, fn="mean", axes=(2,), keepdims=True))
        square = maker.node("mul", x, x) if self.norm_kind == "centered" else maker.node("pow", x, 2.0)
        mean = maker.node("reduce", square, fn="mean", axes=(2,), keepdims=True)
        x = maker.node("mul", x, maker.node("unary", maker.node("add", mean, 1e-6), fn="rsqrt"))
        x = maker.node("mul", x, maker.node("add", gain, 1.0))
        return maker.node("add", x, bias) if self.norm_kind == "centered" else x

    def attention(self, name, x):
        maker = self.maker

        def heads(letter, count):
            split = maker.node("reshape", maker.linear(f"{name}.{letter}", x, 2 * count), shape=(2, 5, count, 2))
            return maker.node("transpose", split, perm=(0, 2, 1, 3))

        mixed = maker.node("attention", heads("q", 4), heads("k", 2), heads("v", 2), scale=None, causal=True)
        flat = maker.node("reshape", maker.node("transpose", mixed, perm=(0, 2, 1, 3)), shape=(2, 5, 8))
        return maker.linear(f"{name}.o", flat, 8)

    def mlp(self, name, x):
        maker = self.maker
        name = "shared" if self.odd == "shared" else name
        if f"{name}.up.weight" in maker.constants:
            up = maker.node("matmul", x, f"{name}.up.weight", f"{name}.up.bias", transpose_b=True)
            return maker.node(
                "matmul", maker.node("relu", up), f"{name}.down.weight", f"{name}.down.bias", transpose_b=True
            )
        return maker.linear(f"{name}.down", maker.node("relu", maker.linear(f"{name}.up", x, 12)), 8)


@pytest.mark.parametrize(
    ("norm", "centered"), [("spelled", False), ("rms_norm", False), ("layer_norm", True), ("centered", True)]
)
def test_the_outputs_stay_what_they_were(norm, centered):
    model = Decoder(norm)
    stream, heads = find_residual_stream(model.graph), find_value_heads(model.graph)
    assert (stream.width, stream.centered, len(stream.norms), len(heads)) == (8, centered, 5, 2)
    assert len(stream.writers) == 5 and stream.vectors == ("positions",) and stream.readers == ()
    assert heads[0].size == 2 and heads[0].channels.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    edits = rotation_edits(model.graph, stream, rotation(8, centered=centered), heads, {2: rotation(2)})
    expected = run(model.graph, model.sample)
    assert relative_difference(run(apply(model.graph, edits), model.sample), expected) < 1e-12
    assert relative_difference(run(apply(model.graph, edits[1:]), model.sample), expected) > 1e-3
    if centered:  # another rotation moves the mean
        wrong = rotation_edits(model.graph, stream, rotation(8))
        assert relative_difference(run(apply(model.graph, wrong), model.sample), expected) > 1e-3
    alone = rotation_edits(model.graph, None, None, heads, {2: rotation(2)})
    assert relative_difference(run(apply(model.graph, alone), model.sample), expected) < 1e-12
    assert {edit.constant for edit in alone} == {
        f"{n}.attention.{p}" for n in "01" for p in ("v.weight", "v.bias", "o.weight")
    }


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ("gain", "reads it"),
        ("norm is added", "reads it"),
        ("returned", "the model returns"),
        ("shared", "used in several ways"),
    ],
)
def test_what_does_not_commute_is_refused(odd, reason):
    with pytest.raises(UsageError, match=reason):
        find_residual_stream(Decoder(odd=odd).graph)


def test_an_activation_ends_a_stream():
    """What a ReLU makes is added: the sum is of no layer, so it cannot be rotated."""
    with pytest.raises(UsageError, match="reads it"):
        find_residual_stream(Decoder(odd="relu").graph)


def test_a_reader_without_a_norm():
    model = Decoder(odd="no norm")
    stream = find_residual_stream(model.graph)
    assert [model.graph.by_name[name].inputs[1] for name in stream.readers] == ["head.weight"]
    edits = rotation_edits(model.graph, stream, rotation(8))
    assert relative_difference(run(apply(model.graph, edits), model.sample), run(model.graph, model.sample)) < 1e-12


def test_values_that_something_else_reads_are_not_rotated():
    model = Decoder()
    values = next(node.inputs[2] for node in model.graph.nodes if node.op == "attention")
    assert len(find_value_heads(model.maker.graph(model.output, values))) == 1  # an output: the other block's are left
    model.maker.node("reduce", values, fn="max", axes=(3,), keepdims=True)
    assert len(find_value_heads(model.maker.graph(model.output))) == 1


def test_no_stream():
    maker = Maker(x=(2, 4, 6, 6))
    y = maker.conv("b", maker.node("relu", maker.conv("a", "x", 6, 4, 3, 3)), 5, 6, 1, 1)
    with pytest.raises(UsageError, match="no norm reads a sum"):
        find_residual_stream(maker.graph(y))
    assert find_value_heads(maker.graph(y)) == ()
