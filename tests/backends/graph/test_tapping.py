# SPDX-License-Identifier: Apache-2.0
"""Taps computed in the graph, held against the mean of what ONNX Runtime's own convolution gives."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.running import Sight
from fewbit.backends.graph.running import run as run_graph
from fewbit.model.watch import TAPS, WINDOWS, Watch
from onnx_graphs import model, random, run


def tapped(proto, *items):
    """Taps and windows of the first layer of a model, for each item."""
    graph = ir.from_proto(proto)
    layer = next(iter(layers(graph.graph)))
    seen = []
    watch = Watch(frozenset({TAPS, WINDOWS}), lambda found, item: seen.append((found[TAPS], int(found[WINDOWS]))))
    sight = Sight(layer.node.inputs[layer.reads].name, layer.features, watch, layer)
    assert run_graph(graph, [{"x": item} for item in items], [sight]) == len(items)
    return seen


def mean_output(weight, taps, windows, groups, transposed):
    """The mean of a convolution's output by channel, from its taps."""
    parts = []
    for w, t in zip(np.split(weight, groups), np.split(taps.numpy(), groups)):
        if transposed:  # [in, out / groups, kernel…]
            parts.append((w * t[:, None]).sum(axis=(0, *range(2, w.ndim))))
        else:
            own = np.broadcast_to(t, w.shape)
            parts.append((w * own).sum(axis=tuple(range(1, w.ndim))))
    return np.concatenate(parts) / windows


@st.composite
def convolutions(draw):
    """A convolution, plain or transposed, and two inputs of other lengths."""
    axes, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3]))
    transposed = draw(st.booleans())
    few = st.integers(1, 2)
    kernel = draw(st.lists(st.integers(1, 4 if axes < 3 else 3), min_size=axes, max_size=axes))
    strides = draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    dilations = (
        [1] * axes if auto.startswith("SAME") else draw(st.lists(st.integers(1, 2), min_size=axes, max_size=axes))
    )
    attributes = {"strides": strides, "dilations": dilations, "group": groups, "auto_pad": auto}
    reach = [(k - 1) * d for k, d in zip(kernel, dilations)]
    if auto == "NOTSET" and draw(st.booleans()):
        most = reach if transposed else [r + 2 for r in reach]
        attributes["pads"] = [draw(st.integers(0, m)) for m in most * 2]
    if transposed and draw(st.booleans()):
        attributes["output_padding"] = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations)]
    channels = draw(few) * groups
    outs = draw(few) * groups
    shape = [channels, outs // groups, *kernel] if transposed else [outs, channels // groups, *kernel]
    inputs = [[draw(few), channels, *(draw(st.integers(1, 9)) for _ in kernel)] for _ in range(2)]
    return "ConvTranspose" if transposed else "Conv", attributes, shape, inputs


@settings(max_examples=60, deadline=None, derandomize=True)
@given(convolutions())
def test_mean_output(case):
    op, attributes, shape, inputs = case
    weight = random(*shape)
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    axes = len(shape) - 2
    proto = model([node], {"x": [None, inputs[0][1], *[None] * axes]}, {"y": None}, {"w": weight})
    items = [random(*sides, seed=seed) for seed, sides in enumerate(inputs, 1)]
    try:
        wanted = [run(proto, x=item)[0] for item in items]
    except Exception:  # kernels larger than what they read, and outputs of no length
        assume(False)
    assume(all(out.size for out in wanted))
    for (taps, windows), out in zip(tapped(proto, *items), wanted):
        assert windows == out.size // out.shape[1]
        assert taps.dtype == torch.float64
        assert taps.shape == (inputs[0][1], *shape[2:])
        mean = mean_output(weight, taps, windows, attributes["group"], op == "ConvTranspose")
        np.testing.assert_allclose(mean, out.mean(axis=(0, *range(2, out.ndim)), dtype=np.float64), atol=2e-5)


@pytest.mark.parametrize("size", [[9, 10], [11, 11]])
@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER"])
def test_output_shape(size, auto):
    weight = random(2, 3, 4, 4)
    attributes = {"strides": [2, 2], "output_shape": size, "auto_pad": auto}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    proto = model([node], {"x": [1, 2, 5, 5]}, {"y": None}, {"w": weight})
    item = random(1, 2, 5, 5, seed=3)
    [(taps, windows)] = tapped(proto, item)
    [out] = run(proto, x=item)
    assert windows == out.size // 3
    np.testing.assert_allclose(mean_output(weight, taps, windows, 1, True), out.mean(axis=(0, 2, 3)), atol=1e-5)


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Left"])
def test_layers_without_kernel(op):
    item = random(3, 5, seed=1) if op == "Gemm" else random(2, 3, 5, seed=1)
    weight = random(4, 3) if op == "Left" else random(5, 4)
    names = ["w", "x"] if op == "Left" else ["x", "w"]
    node = helper.make_node("Gemm" if op == "Gemm" else "MatMul", names, ["y"])
    [(taps, windows)] = tapped(model([node], {"x": item.shape}, {"y": None}, {"w": weight}), item)
    axis = 1 if op == "Left" else item.ndim - 1
    others = tuple(i for i in range(item.ndim) if i != axis)
    assert windows == item.size // item.shape[axis]
    np.testing.assert_allclose(taps.numpy(), item.sum(axis=others, dtype=np.float64), atol=1e-5)
