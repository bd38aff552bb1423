# SPDX-License-Identifier: Apache-2.0
"""Static graphs: what is seen of masks, of every item, of layers kept as codes, and what the record says of it."""

from dataclasses import replace

import numpy as np
import onnx
import orjson
import pytest
from onnx.helper import make_node as node

import fewbit
from fewbit.engine.verbs import configuration
from onnx_graphs import model, random
from placed_graphs import answers

FREELY = {"price": 1e6}


def weight(*shape, seed=1):
    return (random(*shape, seed=seed) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def off(float_model, made, items):
    """The energy of the difference over that of the outputs: of what is written, on any processor."""
    pairs = [(answers(float_model, item)[0], answers(made, item, optimized=False)[0]) for item in items]
    return sum(np.square(a - b).sum() for a, b in pairs) / sum(np.square(a).sum() for a, _ in pairs)


@pytest.mark.parametrize("low", [-1e4, float(np.finfo(np.float32).min), -np.inf])
def test_a_mask_of_attention_is_no_fault(low):
    width = 32
    nodes = [
        *(node("MatMul", ["x", name], [f"{name}x"], name=name) for name in "qkv"),
        node("Transpose", ["kx"], ["kt"], perm=[0, 2, 1], name="turn"),
        node("MatMul", ["qx", "kt"], ["scores"], name="scores"),
        node("Greater", ["mask", "zero"], ["open"], name="open"),
        node("Where", ["open", "zero", "low"], ["added"], name="where"),
        node("Add", ["scores", "added"], ["masked"], name="masked"),
        node("Softmax", ["masked"], ["shares"], axis=-1, name="shares"),
        node("MatMul", ["shares", "vx"], ["y"], name="mix"),
    ]
    constants = {name: weight(width, width, seed=seed) for seed, name in enumerate("qkv")}
    constants |= {"zero": np.array(0, np.float32), "low": np.array(low, np.float32)}
    net = model(nodes, {"x": [1, 16, width], "mask": [1, 1, 16]}, {"y": None}, constants)
    items = [
        {"x": random(1, 16, width, seed=s), "mask": (np.arange(16).reshape(1, 1, 16) < 9).astype(np.float32)}
        for s in range(6)
    ]
    made = fewbit.quantize(net, items, advanced_parameters=FREELY)
    assert off(net, made, items) < 0.01


def chain(nodes_width=32):
    nodes = [
        node("MatMul", ["x", "a"], ["h"], name="first"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("MatMul", ["r", "b"], ["y"], name="second"),
    ]
    uneven = np.exp(random(nodes_width, 1, seed=8)).astype(np.float32)
    constants = {"a": weight(nodes_width, nodes_width), "b": weight(nodes_width, nodes_width, seed=2) * uneven}
    return model(nodes, {"x": [1, 16, nodes_width]}, {"y": None}, constants)


@pytest.mark.parametrize("prepare", ["equalization", "smooth_quant"])
def test_ranges_of_a_prepared_model_are_of_every_item(prepare):
    net = chain()
    items = [{"x": random(1, 16, 32, seed=s) * np.float32(4 if s >= 40 else 1)} for s in range(50)]
    made = fewbit.quantize(net, items, advanced_parameters={**FREELY, "prepare": (prepare,)})
    assert off(net, made, items[40:]) < 0.002


def test_adaround_learns_on_a_graph(tmp_path):
    config = configuration("w8a8")
    spec = config.global_quant_config
    config = replace(config, global_quant_config=replace(spec, weight=replace(spec.weight, algorithm="adaround")))
    items = [{"x": random(1, 16, 32, seed=s)} for s in range(10)]
    fewbit.quantize(chain(), items, preset=config, output=tmp_path / "q.onnx", advanced_parameters=FREELY)
    lines = orjson.loads((tmp_path / "q.onnx.record.json").read_bytes())["lines"]
    settled = [line for line in lines if line["what"] == "quantized"]
    assert len(settled) == 2 and all(line["output_error"] < line["output_error_search"] for line in settled)


def test_what_is_stored_as_codes_is_said(tmp_path):
    nodes = [
        node("Conv", ["x", "a"], ["c"], pads=[1, 1, 1, 1], name="wide"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "g"], ["y"], name="head"),
    ]
    net = model(nodes, {"x": [1, 16, 16, 16]}, {"y": None}, {"a": weight(64, 16, 3, 3), "g": weight(64, 512, seed=4)})
    items = [{"x": random(1, 16, 16, 16, seed=s)} for s in range(10)]
    said = set()
    for number, price in enumerate((0.1, 0.02, 4e-3, 1e-3, 2e-4)):
        path = tmp_path / f"{number}.onnx"
        fewbit.quantize(net, items, output=path, advanced_parameters={"price": price})
        record = orjson.loads(path.with_name(f"{path.name}.record.json").read_bytes())
        lines = {(line["what"], line["where"]) for line in record["lines"]}
        rounded = any(
            t.data_type == onnx.TensorProto.INT8 and t.dims == [64, 512] for t in onnx.load(path).graph.initializer
        )
        assert rounded == bool(lines & {("stored", "head"), ("quantized", "head")})
        said |= {what for what, where in lines if where == "head"}
    assert "stored" in said or "quantized" in said


def test_a_model_of_a_fixed_batch_is_given_whole_items():
    nodes = [node("MatMul", ["x", "a"], ["y"], name="only")]
    net = model(nodes, {"x": [64, 32]}, {"y": None}, {"a": weight(32, 32)})
    items = [{"x": random(64, 32, seed=s)} for s in range(8)]
    made = fewbit.quantize(net, items, subset_size=300, advanced_parameters=FREELY)
    assert off(net, made, items) < 0.01
