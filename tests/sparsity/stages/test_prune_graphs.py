# SPDX-License-Identifier: Apache-2.0
"""One-shot pruning of ONNX graphs: floats with zeros in them, that ONNX Runtime runs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from fewbit.engine.collect import collect
from fewbit.engine.run import view_of
from fewbit.sparsity.pruning.planning import pruning_plan
from fewbit.sparsity.stages.prune import Settings
from onnx_graphs import model, random, run
from pruned_models import pruned

LAYERS = ("conv", "up", "right", "left", "gemm")
SHARED = {"pads": [1, 1, 1, 1], "strides": [2, 2]}


def graph():
    """Every kind of layer, with weights on either side and both ways round."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"], name="stem", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["a1"]),
        node("Conv", ["a1", "w1", "b1"], ["b"], name="conv", **SHARED),
        node("Relu", ["b"], ["b1r"]),
        node("ConvTranspose", ["b1r", "w2"], ["c"], name="up", strides=[2, 2]),
        node("Relu", ["c"], ["c1"]),
        node("ReduceMean", ["c1"], ["d"], axes=[3], keepdims=0),
        node("MatMul", ["d", "w3"], ["e"], name="right"),
        node("Relu", ["e"], ["e1"]),
        node("MatMul", ["w4", "e1"], ["f"], name="left"),
        node("Relu", ["f"], ["f1"]),
        node("ReduceMean", ["f1"], ["g"], axes=[1], keepdims=0),
        node("Gemm", ["g", "w5", "b5"], ["h"], name="gemm"),
        node("Relu", ["h"], ["h1"]),
        node("Gemm", ["h1", "w6"], ["y"], name="head", transB=1),
    ]
    shapes = {
        "w0": (8, 3, 3, 3), "w1": (12, 8, 3, 3), "b1": (12,), "w2": (12, 8, 2, 2), "w3": (8, 16), "w4": (10, 8),
        "w5": (16, 24), "b5": (24,), "w6": (5, 24),
    }  # fmt: skip
    constants = {name: 0.3 * random(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    return model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5]}, constants)


def items(count=20, seed=100):
    return [{"x": random(1, 3, 8, 8, seed=seed + number)} for number in range(count)]


def off(found, wanted, given):
    ours, theirs = (np.concatenate([run(each, **item)[0] for item in given]) for each in (found, wanted))
    return float(((ours - theirs) ** 2).sum() / ((theirs - theirs.mean()) ** 2).sum())


def weight_of(proto, layer):
    """A layer's weight as `[out, in, kernel…]`, read by the test itself."""
    node = next(node for node in proto.graph.node if node.name == layer)
    name = node.input[0] if layer == "left" else node.input[1]
    array = next(numpy_helper.to_array(x) for x in proto.graph.initializer if x.name == name)
    return array.swapaxes(0, 1) if layer in ("up", "right", "gemm") else array


@pytest.mark.parametrize("algorithm", ["magnitude", "wanda", "sparse_gpt", None])
def test_exact_zeros_in_a_valid_model(algorithm):
    proto = graph()
    before = proto.SerializeToString()
    found, made = pruned(proto, Settings(0.5, algorithm=algorithm), items())
    onnx.checker.check_model(found)
    assert proto.SerializeToString() == before
    assert all(2 * (weight_of(found, layer) == 0).sum() == weight_of(found, layer).size for layer in LAYERS)
    assert (weight_of(found, "stem") != 0).all() and (weight_of(found, "head") != 0).all()
    facts = made.record.facts["prune"]
    assert facts["zeros"] == 920 and facts["elements"] == 1840 and facts["items"] == 20
    assert not any("fallback" in line for line in made.record.lines)


def test_second_moments_come_nearer_than_magnitude():
    proto, judges = graph(), items(8, seed=900)
    plain, best, alps = (
        pruned(proto, Settings(0.6, algorithm=name, correct=False), items())[0]
        for name in ("magnitude", "sparse_gpt", "alps")
    )
    assert off(best, proto, judges) < off(plain, proto, judges) > off(alps, proto, judges)


def test_two_of_four_along_the_input():
    found, _ = pruned(graph(), Settings(structure="2:4"), items())
    for layer in LAYERS:
        weight = np.moveaxis(weight_of(found, layer), 1, -1)
        groups = weight.reshape(-1, 4)
        assert ((groups != 0).sum(1) == 2).all(), layer


def test_one_threshold_and_a_budget_have_the_same_zeros_in_all():
    proto = graph()
    threshold, one = pruned(proto, Settings(0.5, scope="global", correct=False))
    magnitudes = np.concatenate([np.abs(weight_of(proto, layer)).ravel() for layer in LAYERS])
    mask = np.concatenate([(weight_of(threshold, layer) != 0).ravel() for layer in LAYERS])
    assert (~mask).sum() == 920 and magnitudes[~mask].max() <= magnitudes[mask].min()
    _, other = pruned(proto, Settings(0.5, budget="sensitivity"), items(5))
    facts = other.record.facts["prune"]
    assert facts["zeros"] == one.record.facts["prune"]["zeros"] == 920 and facts["budget"]["how"] == "measured"


def test_windows_are_what_the_runtime_multiplies():
    """The second moment of a convolution's windows gives the energy of what the graph computes."""
    proto = graph()
    for name in ("b", "c"):
        proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    view, given = view_of(proto), items(4)
    plan = pruning_plan(view, Settings(0.5, algorithm="sparse_gpt"), data=True).plan
    seen = collect(view, plan, given).inputs
    outputs = [run(proto, **item) for item in given]
    for layer, place, bias in (("conv", 1, True), ("up", 2, False)):
        y = torch.tensor(np.concatenate([each[place] for each in outputs])).double()
        if bias:
            y = (
                y
                - torch.tensor(next(numpy_helper.to_array(x) for x in proto.graph.initializer if x.name == "b1"))[
                    :, None, None
                ]
            )
        rows = torch.tensor(weight_of(proto, layer)).double().flatten(1)
        gram = seen[layer]["gram"].seen
        energy = ((rows @ gram["gram"].double()) * rows).sum(1)
        torch.testing.assert_close(energy, y.square().sum((0, 2, 3)), rtol=1e-4, atol=1e-4)
        assert int(gram["count"]) == y[:, 0].numel()


def test_a_module_and_its_graph_are_pruned_alike():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    node, names = helper.make_node, {"0": ("w0", "b0"), "2": ("w2", "b2"), "4": ("w4", "b4")}
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], name="0"),
        node("Relu", ["a"], ["a1"]),
        node("Conv", ["a1", "w2", "b2"], ["b"], name="2", pads=[1, 1, 1, 1]),
        node("Relu", ["b"], ["b1"]),
        node("Conv", ["b1", "w4", "b4"], ["y"], name="4"),
    ]
    constants = {
        inner: getattr(net.get_submodule(layer), part).detach().numpy()
        for layer, pair in names.items()
        for inner, part in zip(pair, ("weight", "bias"))
    }
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 2, 6, 6]}, constants)
    settings = Settings(0.5, algorithm="sparse_gpt", correct=False)
    ours, _ = pruned(net.eval(), settings, [torch.tensor(item["x"]) for item in items(10)])
    theirs, _ = pruned(proto, settings, items(10))
    torch.testing.assert_close(ours[2].weight.detach(), torch.tensor(weight_of(theirs, "2")), rtol=1e-3, atol=1e-4)


def texts(padding):
    """Rows of vectors, and a mask; what is padded is large, and no part of them."""
    given = []
    for number in range(10):
        x = random(2, 6, 8, seed=number)
        if padding:
            x = np.concatenate([x, random(2, 3, 8, seed=99 + number) * 20 * np.arange(8, dtype=np.float32)], 1)
        mask = np.ones(x.shape[:2], np.float32)
        mask[:, 6:] = 0
        given.append({"x": x, "attention_mask": mask})
    return given


@pytest.mark.parametrize("algorithm", ["wanda", "sparse_gpt"])
def test_padding_is_no_part_of_what_layers_read(algorithm):
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w0"], ["a"], name="first"),
        node("Relu", ["a"], ["a1"]),
        node("MatMul", ["a1", "w1"], ["b"], name="second"),
        node("Unsqueeze", ["attention_mask", "last"], ["m"]),
        node("Mul", ["b", "m"], ["y"]),
    ]
    constants = {"w0": random(8, 16, seed=1), "w1": random(16, 4, seed=2), "last": np.array([2])}
    inputs = {"x": ["n", "t", 8], "attention_mask": ["n", "t"]}
    proto = model(nodes, inputs, {"y": ["n", "t", 4]}, constants)
    plain, padded = (
        pruned(proto, Settings(0.5, algorithm=algorithm, correct=False), texts(padding))[0] for padding in (False, True)
    )
    ours, theirs = (torch.tensor(weight_of(each, "first").copy()) for each in (plain, padded))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
