# SPDX-License-Identifier: Apache-2.0
"""`fewbit.quantize` on ONNX models: what is asked for is done, what is wrong is refused, what was given stays."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

import fewbit
from fewbit import IgnoredScope
from fewbit.backends.graph import running, shaping
from fewbit.backends.graph.executed import executed
from fewbit.backends.graph.opening import open_graph
from fewbit.errors import DataError, UsageError
from onnx_graphs import model, random
from placed_graphs import answers
from processor import exact_sums

SHAPE = (1, 32, 16, 16)
FREELY = {"price": 1e6}  # so that only time decides


def weight(*shape, seed=1):
    return (random(*shape, seed=seed) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def net(opset=13, side=16):
    """Three convolutions with their Relus, a pool and a Gemm."""
    nodes = [
        node("Conv", ["x", "a", "b"], ["c1"], name="first", pads=[1, 1, 1, 1]), node("Relu", ["c1"], ["r1"], name="r1"),
        node("Conv", ["r1", "d", "b"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"], name="r2"),
        node("Conv", ["r2", "e"], ["c3"], name="third"), node("Relu", ["c3"], ["r3"], name="r3"),
        node("GlobalAveragePool", ["r3"], ["p"], name="pool"), node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "g", "h"], ["y"], name="head"),
    ]  # fmt: skip
    constants = {
        "a": weight(32, 32, 3, 3), "b": random(32), "d": weight(32, 32, 3, 3, seed=2), "e": weight(32, 32, 1, 1),
        "g": weight(32, 10, seed=3), "h": random(10),
    }  # fmt: skip
    return model(nodes, {"x": [1, 32, side, side]}, {"y": None}, constants, opset)


def items(count=6, shape=SHAPE):
    return [{"x": random(*shape, seed=seed)} for seed in range(count)]


def quantized(proto, data=None, **more):
    return fewbit.quantize(proto, items() if data is None else data, advanced_parameters=FREELY, **more)


def seen(proto):
    return executed(open_graph(proto))


def floats(proto):
    return {name for name, _ in seen(proto).float_nodes}


def test_it_runs_in_integers_and_answers_alike():
    proto = net()
    made = quantized(proto)
    assert seen(made).integer["QLinearConv"] == 3
    for item in items(3):
        wanted, found = answers(proto, item)[0], answers(made, item, optimized=False)[0]
        assert np.abs(wanted - found).max() < 0.05 * np.abs(wanted).max()


def test_the_record_says_what_runs_and_why_the_rest_does_not(tmp_path):
    path = quantized(net(), output=tmp_path / "out.onnx", ignored_scope=IgnoredScope(names=["second"]))
    record = json.loads((tmp_path / "out.onnx.record.json").read_text())
    assert record["facts"]["executed"]["integer"] == seen(onnx.load(path)).integer
    kept = {
        line["where"].removesuffix(".weight"): line["reason"] for line in record["lines"] if line["what"] == "float"
    }
    assert all(kept.values()) and kept.keys() >= {"second"} | floats(onnx.load(path))


# what was given stays


def test_what_was_given_is_not_changed(tmp_path):
    proto = net()
    before = proto.SerializeToString()
    data = items()
    quantized(proto, data)
    assert proto.SerializeToString() == before
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(data, items()))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    content = path.read_bytes()
    quantized(path, output=tmp_path / "out.onnx")
    assert path.read_bytes() == content


def test_names_metadata_and_doc_strings_are_kept():
    proto = net()
    proto.doc_string, proto.graph.doc_string, proto.producer_name = "what it is", "its graph", "its maker"
    proto.graph.node[0].doc_string = "the first"
    proto.metadata_props.add(key="labels", value="a,b")
    proto.graph.input[0].doc_string, proto.graph.output[0].doc_string = "a picture", "its classes"
    made = quantized(proto)
    assert [value.name for value in made.graph.input] == ["x"] and [value.name for value in made.graph.output] == ["y"]
    assert (made.doc_string, made.graph.doc_string, made.graph.input[0].doc_string) == (
        "what it is",
        "its graph",
        "a picture",
    )
    assert {entry.key: entry.value for entry in made.metadata_props}["labels"] == "a,b"
    first = next(n for n in made.graph.node if n.name == "first")
    assert first.doc_string == "the first" and made.graph.name == proto.graph.name


def test_an_output_that_codes_give_keeps_its_name_and_shape():
    nodes = [node("Conv", ["x", "a"], ["y"], name="only", pads=[1, 1, 1, 1])]
    proto = model(nodes, {"x": ["n", 32, 16, 16]}, {"y": ["n", 32, 16, 16]}, {"a": weight(32, 32, 3, 3)})
    proto.graph.output[0].doc_string = "what it is"
    made = quantized(proto)
    assert seen(made).integer == {"QLinearConv": 1} and made.graph.output[0].name == "y"
    assert made.graph.output[0].doc_string == "what it is"
    assert answers(made, {"x": random(3, 32, 16, 16)})[0].shape == (3, 32, 16, 16)


# ignored_scope


@pytest.mark.parametrize(
    ("scope", "kept"),
    [
        (IgnoredScope(names=["second"]), {"second"}),
        (IgnoredScope(names=["*ir*"]), {"first", "third"}),
        (IgnoredScope(patterns=["(first|second)"]), {"first", "second"}),
        (IgnoredScope(types=["Conv"]), {"first", "second", "third"}),
        (IgnoredScope(subgraphs=[{"inputs": ["second"], "outputs": ["r2"]}]), {"second"}),
    ],
)
def test_layers_that_are_to_stay_in_float(scope, kept):
    made = quantized(net(), ignored_scope=scope)
    assert floats(made) >= kept and not floats(made) & ({"first", "second", "third"} - kept)


def test_other_nodes_that_are_to_stay_in_float():
    assert seen(quantized(net())).elementwise == {"QLinearGlobalAveragePool": 1}
    assert not seen(quantized(net(), ignored_scope=IgnoredScope(types=["GlobalAveragePool"]))).elementwise


def test_a_layer_does_not_stay_in_float_because_what_clips_it_does():
    made = quantized(net(), ignored_scope=IgnoredScope(types=["Relu"]))
    assert seen(made).integer["QLinearConv"] >= 2  # the third is a pointwise one, which does not pay
    assert sum(n.op_type == "Relu" for n in made.graph.node) == 3


def test_a_name_that_matches_nothing_is_told_with_the_nearest():
    with pytest.raises(UsageError, match="secnd") as told:
        quantized(net(), ignored_scope=IgnoredScope(names=["secnd"]))
    assert "second" in str(told.value)


# bad input


@pytest.fixture
def no_inference(monkeypatch):
    """A model that must not run."""

    def refuse(*args, **more):
        raise AssertionError("the model was run")

    monkeypatch.setattr(shaping, "session", refuse)
    monkeypatch.setattr(running, "session", refuse)


FAULTS = [
    pytest.param({"x": random(*SHAPE), "z": random(*SHAPE)}, "z", id="names"),
    pytest.param({"x": random(1, 31, 16, 16)}, "x", id="shapes"),
    pytest.param({"x": np.zeros(SHAPE, np.complex64)}, "x", id="dtypes"),
    pytest.param({"x": np.full(SHAPE, np.nan, np.float32)}, "x", id="nan"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "told"), FAULTS)
def test_data_that_does_not_fit_is_refused_before_the_model_is_run(item, told, no_inference):
    with pytest.raises((DataError, UsageError)) as error:
        quantized(net(), [item, *items(3)])
    assert told in str(error.value) and "0" in str(error.value.where)


@pytest.mark.parametrize(("item", "told"), FAULTS)
def test_a_later_sample_that_does_not_fit_is_named(item, told):
    with pytest.raises((DataError, UsageError)) as error:
        quantized(net(), [*items(3), item, *items(2)])
    assert told in str(error.value) and "3" in str(error.value.where)


def test_no_data():
    with pytest.raises(DataError, match="empty"):
        quantized(net(), [])
    with pytest.raises(UsageError, match="calibration"):
        fewbit.quantize(net())


def test_a_damaged_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(net().SerializeToString()[:3000])
    with pytest.raises(DataError, match="cannot be read"):
        quantized(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read"):
        quantized(path)


def test_a_model_that_is_quantized_already():
    with pytest.raises(UsageError, match="quantized already"):
        quantized(quantized(net()))


def test_interrupting_leaves_no_file(tmp_path):
    onnx.save(net(), tmp_path / "model.onnx")

    class Interrupted:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 3:
                raise KeyboardInterrupt
            return items()[index]

    with pytest.raises(KeyboardInterrupt):
        quantized(tmp_path / "model.onnx", Interrupted(), output=tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


# kinds of models


def test_float16_models_are_computed_in_integers_too():
    proto = net()
    for constant in proto.graph.initializer:
        half = onnx.numpy_helper.to_array(constant).astype(np.float16)
        constant.CopyFrom(onnx.numpy_helper.from_array(half, constant.name))
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    data = [{"x": item["x"].astype(np.float16)} for item in items()]
    made = quantized(proto, data)
    assert seen(made).integer["QLinearConv"] == 3
    (found,) = answers(made, data[0])
    assert found.dtype == np.float16


def test_a_weight_that_layers_share_is_quantized_for_all():
    nodes = [
        node("Conv", ["x", "a"], ["c"], name="one", pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"], name="r"),
        node("Conv", ["r", "a"], ["y"], name="two", pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    made = quantized(model(nodes, {"x": SHAPE}, {"y": None}, {"a": weight(32, 32, 3, 3)}))
    assert seen(made).integer == {"QLinearConv": 2}
    assert [c.name for c in made.graph.initializer if c.data_type == onnx.TensorProto.INT8 and len(c.dims) > 1] == [
        "a.codes"
    ]


def test_layers_that_share_a_weight_make_no_larger_file():
    nodes, at = [], "x"
    for index in range(8):
        nodes.append(node("MatMul", [at, "w"], [f"m{index}"], name=f"m{index}"))
        at = f"m{index}"
    proto = model(nodes, {"x": [1, 64, 192]}, {at: None}, {"w": weight(192, 192)})
    made = quantized(proto, items(shape=(1, 64, 192)))
    assert sum(seen(made).integer.values()) == 8
    assert made.ByteSize() < 0.6 * proto.ByteSize()


def test_layers_in_branches_are_left_alone_and_reported(tmp_path):
    def branch(name, nodes, out):
        return onnx.helper.make_graph(nodes, name, [], [onnx.helper.make_tensor_value_info(out, 1, None)])

    nodes = [
        node("Conv", ["x", "a"], ["c"], name="first", pads=[1, 1, 1, 1]),
        node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        node("Greater", ["most", "n"], ["large"], name="large"),
        node("If", ["large"], ["i"], name="if",
             then_branch=branch("then", [node("Conv", ["c", "d"], ["t"], name="inside", pads=[1, 1, 1, 1])], "t"),
             else_branch=branch("else", [node("Relu", ["c"], ["o"], name="other")], "o")),
        node("Conv", ["i", "e"], ["y"], name="last", pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    constants = {"a": weight(32, 32, 3, 3), "d": weight(32, 32, 3, 3, seed=2), "e": weight(32, 32, 3, 3, seed=3)}
    proto = model(nodes, {"x": SHAPE}, {"y": None}, constants | {"n": np.float32(4)})
    path = quantized(proto, output=tmp_path / "out.onnx")
    assert floats(onnx.load(path)) == {"inside"} and seen(onnx.load(path)).integer == {"QLinearConv": 2}
    record = json.loads((tmp_path / "out.onnx.record.json").read_text())
    (line,) = [line for line in record["lines"] if line.get("where") == "inside"]
    assert line["what"] == "float" and "branch" in line["reason"]


def test_a_layer_without_bias_in_front_of_others_gets_one():
    """A MatMul cannot hold a bias: it gets an Add, and everyone behind it reads another value."""
    nodes = [
        node("MatMul", ["x", "a"], ["c"], name="one"), node("MatMul", ["c", "b"], ["d"], name="two"),
        node("MatMul", ["d", "e"], ["y"], name="three"),
    ]  # fmt: skip
    constants = {"a": weight(64, 128).astype(np.float32), "b": weight(128, 128), "e": weight(128, 32)}
    data = [{"x": np.abs(random(8, 64, seed=seed))} for seed in range(12)]
    proto = model(nodes, {"x": [8, 64]}, {"y": None}, constants)
    made = quantized(proto, data)
    assert sum(seen(made).integer.values()) == 3
    wanted, found = answers(proto, data[0])[0], answers(made, data[0], optimized=False)[0]
    assert np.square(wanted - found).mean() < 1e-3 * np.square(wanted).mean()


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
@pytest.mark.parametrize("batch", [8, "n"])
def test_a_clipped_linear_layer_that_float_reads_runs_in_integers(op, batch):
    """ONNX Runtime makes one float kernel of a Gemm and its Relu unless what they give is codes."""
    constants = {"w1": random(256, 256) / 16, "b1": random(256), "w2": random(256, 256, seed=2) / 16}
    nodes = [node("Gemm", ["x", "w1", "b1"], ["a"], name="first")]
    if op == "MatMul":
        nodes = [node("MatMul", ["x", "w1"], ["m"], name="first"), node("Add", ["m", "b1"], ["a"])]
    nodes += [node("Relu", ["a"], ["r"]), node("MatMul", ["r", "w2"], ["y"], name="last")]
    proto = model(nodes, {"x": [batch, 256]}, {"y": [batch, 256]}, constants)
    items = [{"x": random(8, 256, seed=seed)} for seed in range(8)]
    made = fewbit.quantize(proto, items, ignored_scope=fewbit.IgnoredScope(names=["last"]))
    facts = json.loads({entry.key: entry.value for entry in made.metadata_props}["fewbit"])
    assert facts["integer"] == {op: 1} and facts["executed"]["integer"] == {"QGemm": 1}


# what is written is what was measured, and always the same


def offset_net(added):
    """What a number is added to, read with and without it."""
    nodes = [
        node("Conv", ["x", "a"], ["g"], name="g", pads=[1, 1, 1, 1]),
        node("Conv", ["x", "b"], ["h"], name="h", pads=[1, 1, 1, 1]), node("Add", ["h", "n"], ["z"], name="z"),
        node("Mul", ["z", "g"], ["m"], name="m"), node("Conv", ["h", "c"], ["o"], name="o", pads=[1, 1, 1, 1]),
        node("Add", ["o", "m"], ["s"], name="s"), node("Conv", ["s", "d"], ["y"], name="y", pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    constants = {name: weight(32, 32, 3, 3, seed=seed) for seed, name in enumerate("abcd")}
    return model(nodes, {"x": SHAPE}, {"o": None, "y": None}, constants | {"n": np.float32(added)})


@exact_sums
@pytest.mark.parametrize("added", [0.3, 200.0])
def test_the_error_that_is_expected_is_that_of_what_is_written(added):
    facts = json.loads({e.key: e.value for e in quantized(offset_net(added)).metadata_props}["fewbit"])
    assert facts["answers"]["error"] < 3 * facts["expected_error"] and facts["answers"]["error"] < 3e-3
    assert facts["integer"]["Conv"] == 4


def _bytes():
    return hashlib.sha256(quantized(offset_net(0.3)).SerializeToString(deterministic=True)).hexdigest()


def test_the_same_model_gives_the_same_bytes():
    """In one process, where sets of objects change their order, and in another, where those of strings do."""
    script = "import test_onnx_static; print(test_onnx_static._bytes())"
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(paths)}
    other = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    junk, found = [], set()
    for count in range(6):
        found.add(_bytes())
        junk.append([object() for _ in range(137 * count)])
    assert {other.communicate()[0].strip()} == found and len(found) == 1


def test_a_sequence_among_the_outputs():
    nodes = [
        node("MatMul", ["x", "a"], ["y"], name="m"), node("Slice", ["y", "from", "to"], ["part"], name="part"),
        node("SequenceConstruct", ["y", "part"], ["s"], name="s"),
    ]  # fmt: skip
    constants = {"a": weight(64, 64), "from": np.array([0]), "to": np.array([3])}
    proto = model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, constants)
    proto.graph.output.append(onnx.helper.make_tensor_sequence_value_info("s", 1, None))
    made = quantized(proto, items(shape=(128, 64)))
    assert sum(seen(made).integer.values()) == 1
    wanted, found = (answers(each, {"x": random(128, 64)})[1] for each in (proto, made))
    assert [part.shape for part in found] == [part.shape for part in wanted]


def test_what_was_executed_says_by_which_runtime():
    facts = json.loads({e.key: e.value for e in quantized(net(), target="openvino").metadata_props}["fewbit"])
    assert facts["target"] == "openvino" and facts["executed"]["runtime"] == "onnxruntime"


def test_statistics_of_a_graph_are_refused(tmp_path):
    with pytest.raises(UsageError, match="statistics of a graph"):
        fewbit.compress_weights(net(), mode="int4_sym", dataset=items(), statistics=tmp_path / "sums")
