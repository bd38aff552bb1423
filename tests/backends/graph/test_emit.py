# SPDX-License-Identifier: Apache-2.0
"""What is written runs in integers: small graphs of each pattern, by what ONNX Runtime really executes.

Costs are made to want integers. Each result is run as the runtime optimizes it and, without any optimization, as the
graph says; both have to agree, and to be near to the float model.
"""

import numpy as np
import onnx
import pytest
from onnx.helper import make_node as node

from fewbit.backends.graph.targets import TARGETS
from onnx_graphs import FLOAT, model, random
from placed_graphs import Quantized, eager, items_of

PICTURE, ROWS = (1, 8, 12, 12), (2, 5, 16)
SAME = {"pads": [1, 1, 1, 1]}
CROSSING = {"QuantizeLinear": 1, "DequantizeLinear": 1}  # once in, once out


def weight(*shape, seed=1, by=None):
    """Weights whose sums stay about as large as what they read."""
    fan = np.prod(shape[1:]) if by is None else by
    return (random(*shape, seed=seed) / np.sqrt(fan)).astype(np.float32)


def conv(reads, name, weight="w", bias=None, **more):
    return node("Conv", [reads, weight, *([bias] if bias else [])], [name], name=name, **more)


def op(kind, reads, name, **more):
    return node(kind, reads.split(), [name], name=name, **more)


def ints(*numbers):
    return np.array(numbers, np.int64)


def quantized(nodes, constants, *, opset=13, outputs=("y",), items=None, target=None, **inputs):
    """A graph, quantized; inputs as shapes by name."""
    proto = model(
        nodes, {name: list(shape) for name, shape in inputs.items()}, dict.fromkeys(outputs), constants, opset
    )
    return Quantized(proto, items or items_of(**inputs), target)


TWO = {"w": weight(8, 8, 1, 1), "v": weight(4, 8, 1, 1, seed=2)}  # of a convolution before and one after
WIDE = TWO | {"v": weight(4, 16, 1, 1, seed=2)}
LAST = TWO | {"v": weight(4, 8, 3, 3, seed=2)}

# nodes, constants, operators on codes besides the convolutions, and how many of those there are
CHAINS = {
    "relu and depthwise": (
        [conv("x", "c", bias="b"), op("Relu", "c", "r"), conv("r", "d", "k", "b", group=8, **SAME),
         op("Relu", "d", "s"), conv("s", "y", "v")],
        TWO | {"b": random(8), "k": weight(8, 1, 3, 3)}, {}, 3,
    ),
    "batch norm": (
        [conv("x", "c"), op("BatchNormalization", "c s b m t", "n"), op("Relu", "n", "r"), conv("r", "y", "v")],
        TWO | {"s": random(8) + 2, "b": random(8), "m": random(8), "t": np.abs(random(8)) + 0.5}, {}, 2,
    ),
    "clip": (
        [conv("x", "c"), op("Clip", "c lo hi", "r"), conv("r", "y", "v")],
        TWO | {"w": weight(8, 8, 1, 1) * 8, "lo": np.float32(0), "hi": np.float32(6)}, {}, 2,
    ),
    "a maximum with zero": (
        [conv("x", "c"), op("Max", "zero c", "r"), conv("r", "y", "v")], TWO | {"zero": np.float32(0)}, {}, 2,
    ),
    "relu before something is added": (
        [conv("x", "c"), op("Relu", "c", "r"), op("Add", "r n", "a"), conv("a", "y", "v", **SAME)],
        LAST | {"n": np.float32(0.7)}, {}, 2,
    ),
    "clip before something is subtracted": (
        [conv("x", "c"), op("Clip", "c lo hi", "r"), op("Sub", "r n", "a"), conv("a", "y", "v", **SAME)],
        LAST | {"w": weight(8, 8, 1, 1) * 8, "n": np.float32(0.7), "lo": np.float32(-2), "hi": np.float32(6)}, {}, 2,
    ),
    "a chain of numbers": (
        [conv("x", "c"), op("MaxPool", "c", "p", kernel_shape=[2, 2]), op("Mul", "p two", "m"), op("Sub", "m n", "a"),
         conv("a", "y", "v", **SAME)],
        LAST | {"two": np.array([2], np.float32), "n": np.float32(0.7)}, {}, 2,
    ),
    "hard-swish as one": (
        [conv("x", "c"), op("HardSwish", "c", "h"), conv("h", "y", "v")], TWO | {"w": weight(8, 8, 1, 1) * 3},
        {"QLinearAdd": 1, "QLinearMul": 1}, 2,
    ),
    "hard-swish as two": (
        [conv("x", "c"), op("HardSigmoid", "c", "g", alpha=1 / 6, beta=0.5), op("Mul", "c g", "h"),
         conv("h", "d"), op("HardSigmoid", "d", "f", alpha=1 / 6, beta=0.5), op("Mul", "d f", "e"),
         conv("e", "y", "v")],
        TWO | {"w": weight(8, 8, 1, 1) * 2}, {"QLinearAdd": 2, "QLinearMul": 2}, 3,
    ),
    "a gate below its middle": (
        [conv("x", "c"), op("HardSigmoid", "c", "g", alpha=0.4, beta=-0.1), conv("g", "y", "v")], TWO,
        {"QLinearAdd": 1}, 2,
    ),
    "a gate beside what is wider": (
        [conv("x", "c"), op("HardSigmoid", "c", "g"), op("Concat", "g x", "a", axis=1), conv("a", "y", "v")],
        WIDE | {"w": weight(8, 8, 1, 1) * 3}, {"QLinearAdd": 1, "QLinearConcat": 1}, 2,
    ),
    "a gate and a little": (
        [conv("x", "c"), op("HardSigmoid", "c", "g"), op("Add", "g n", "a"), conv("a", "y", "v", **SAME)],
        LAST | {"w": weight(8, 8, 1, 1) * 3, "n": np.float32(0.2)}, {"QLinearAdd": 1}, 2,
    ),
    "a gate and one, whose codes are its own": (
        [conv("x", "c"), op("HardSigmoid", "c", "g"), op("Add", "g n", "a"), conv("a", "y", "v", **SAME)],
        LAST | {"w": weight(8, 8, 1, 1) * 3, "n": np.float32(1)}, {"QLinearAdd": 2}, 2,
    ),
    "what is scaled and shifted far, beside what is not": (
        [conv("x", "c"), op("Mul", "c two", "m"), op("Sub", "m n", "a"), op("Sub", "a n", "b"),
         conv("b", "d", "v", **SAME), conv("c", "e", "v", **SAME), op("Add", "d e", "y")],
        LAST | {"two": np.float32(2), "n": np.float32(9)}, {"QLinearAdd": 2}, 3,
    ),
    "squeeze and excite": (
        [conv("x", "c"), op("Relu", "c", "r"), op("GlobalAveragePool", "r", "p"), conv("p", "s", "k"),
         op("Relu", "s", "t"), conv("t", "e", "l"), op("HardSigmoid", "e", "g"), op("Mul", "r g", "m"),
         conv("m", "y", "v")],
        TWO | {"k": weight(4, 8, 1, 1), "l": weight(8, 4, 1, 1)},
        {"QLinearAdd": 1, "QLinearGlobalAveragePool": 1, "QLinearMul": 1}, 4,
    ),
    "sigmoid and leaky relu": (
        [conv("x", "c"), op("Sigmoid", "c", "s"), op("Mul", "c s", "m"), op("LeakyRelu", "m", "l", alpha=0.1),
         conv("l", "y", "v")], TWO, {"QLinearSigmoid": 1, "QLinearMul": 1, "QLinearLeakyRelu": 1}, 2,
    ),
    "residual": (
        [conv("x", "c"), op("Relu", "c", "r"), conv("r", "d"), op("Add", "d c", "a"), op("Relu", "a", "s"),
         conv("s", "y", "v")], TWO, {"QLinearAdd": 1}, 3,
    ),
    "parts side by side": (
        [conv("x", "c"), op("Relu", "c", "r"), conv("x", "d", "u"), op("Concat", "r d", "a", axis=1),
         conv("a", "y", "v")], WIDE | {"u": weight(8, 8, 1, 1, seed=4)}, {"QLinearConcat": 1}, 3,
    ),
    "parts side by side, one of them clipped inside the range of the other": (
        [conv("x", "c"), op("Relu", "c", "r"), conv("x", "d", "u"), op("Concat", "r d", "a", axis=1),
         conv("a", "y", "v")], WIDE | {"u": weight(8, 8, 1, 1, seed=4) * np.float32(0.2)}, {"QLinearConcat": 1}, 3,
    ),
    "a skip, as in a U-Net": (
        [conv("x", "c"), op("Relu", "c", "r"), op("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
         conv("p", "d"), op("Relu", "d", "s"), node("Resize", ["s", "", "k"], ["z"], name="z", mode="nearest"),
         op("Concat", "r z", "a", axis=1), conv("a", "y", "v")],
        WIDE | {"k": np.array([1, 1, 2, 2], np.float32)}, {"QLinearConcat": 1}, 3,
    ),
    "split": (
        [conv("x", "c"), node("Split", ["c"], ["a", "b"], name="s", axis=1), conv("a", "d", "h"),
         op("Add", "d b", "y")],
        TWO | {"h": weight(4, 4, 1, 1)}, {"QLinearAdd": 1}, 2,
    ),
    "moved about": (
        [conv("x", "c"), op("Transpose", "c", "t", perm=[0, 1, 3, 2]), op("Reshape", "t z", "r"),
         op("Slice", "r i j one", "s"), op("Unsqueeze", "s i", "u"), op("Squeeze", "u i", "q"),
         op("Gather", "q k", "g", axis=1), conv("g", "y", "v")],
        TWO | {"v": weight(4, 3, 1, 1), "z": ints(1, 16, 9, 8), "i": ints(0), "j": ints(9), "one": ints(1),
               "k": ints(0, 3, -1)}, {}, 2,
    ),
    "depth to space": ([conv("x", "c"), op("DepthToSpace", "c", "d", blocksize=2), conv("d", "y", "v")],
                       TWO | {"v": weight(4, 2, 1, 1)}, {}, 2),
    "clipped by itself, where two read what is before": (
        [conv("x", "c"), op("Relu", "c", "r"), conv("r", "d"), op("Add", "c d", "y")], TWO, {"QLinearAdd": 1}, 2,
    ),
    "grouped": ([conv("x", "c", "k", group=4), op("Relu", "c", "r"), conv("r", "y", "l", group=2)],
                {"k": weight(8, 2, 3, 3), "l": weight(4, 4, 1, 1)}, {}, 2),
    "two layers on one input": ([conv("x", "c"), conv("x", "d", "u"), op("Add", "c d", "y")],
                                TWO | {"u": weight(8, 8, 1, 1, seed=4)}, {"QLinearAdd": 1}, 2),
    "one weight for two layers": ([conv("x", "c"), op("Relu", "c", "r"), conv("r", "y")], TWO, {}, 2),
    "a large bias beside almost nothing": (
        [conv("x", "c", bias="b"), op("Relu", "c", "r"), conv("r", "y", "v")],
        TWO | {"w": weight(8, 8, 1, 1) * np.logspace(0, -11, 8, dtype=np.float32).reshape(-1, 1, 1, 1),
               "b": np.full(8, 3, np.float32)}, {}, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_between_the_first_and_the_last_code_all_is_codes(name):
    nodes, constants, beside, count = CHAINS[name]
    made = quantized(nodes, constants, opset=14, x=PICTURE).check()
    assert made.executed.integer == {"QLinearConv": count} and not made.executed.floating
    assert made.executed.elementwise == beside and made.executed.conversions == CROSSING
    assert made.steps_apart() < 1.01


@pytest.mark.parametrize("shape", [(1, 4, 20), (1, 4, 6, 5, 7)])
def test_convolutions_over_one_axis_and_over_three(shape):
    kernel = [3] * (len(shape) - 2)
    constants = {"w": weight(8, 4, *kernel), "v": weight(4, 8, *(1 for _ in kernel))}
    made = quantized([conv("x", "c"), op("Relu", "c", "r"), conv("r", "y", "v")], constants, x=shape).check()
    assert made.executed.integer == {"QLinearConv": 2} and made.executed.conversions == CROSSING


@pytest.mark.parametrize("opset", [11, 12])
def test_operator_sets_that_have_no_scales_by_axis(opset):
    """An operator that keeps the model from a later set: then the runtime's own QuantizeLinear is written."""
    proto = model(
        [conv("x", "c"), op("Relu", "c", "r"), op("Add", "r n", "a"), conv("a", "y", "v", **SAME)],
        {"x": PICTURE}, {"y": None}, LAST | {"n": np.float32(0.7)}, opset,
    )  # fmt: skip
    made = Quantized(proto, items_of(x=PICTURE), raised=False).check()
    assert {n.domain for n in made.proto.graph.node if n.op_type.endswith("Linear")} == {"com.microsoft"}
    # Codes can be clipped from operator set 12 on; before, the convolution whose Relu cannot be seen in them is float.
    assert made.executed.integer == {"QLinearConv": 2 if opset > 11 else 1}


@pytest.mark.parametrize("opset", [11, 12])
def test_a_gate_that_codes_cannot_clip_is_a_float_one(opset):
    nodes = [conv("x", "c"), op("HardSigmoid", "c", "g"), op("Add", "g n", "a"), conv("a", "y", "v", **SAME)]
    constants = LAST | {"w": weight(8, 8, 1, 1) * 3, "n": np.float32(0.2)}
    made = Quantized(
        model(nodes, {"x": PICTURE}, {"y": None}, constants, opset), items_of(x=PICTURE), raised=False
    ).check()
    assert made.executed.integer == {"QLinearConv": 2}
    assert made.executed.elementwise == ({"QLinearAdd": 1} if opset > 11 else {})


LINEAR = {
    "matmul": ([op("MatMul", "x w", "y")], {}, {"MatMulIntegerToFloat": 1}),
    "with a bias": ([op("MatMul", "x w", "m"), op("Add", "m b", "y")], {"b": random(12)}, {"QGemm": 1}),
    "with a bias on the left, and relu": (
        [op("MatMul", "x w", "m"), op("Add", "b m", "a"), op("Relu", "a", "r"), op("MatMul", "r v", "n"),
         op("Add", "n d", "y")], {"b": random(12), "v": weight(12, 7, by=12), "d": random(7)}, {"QGemm": 2},
    ),
    "with a bias that has axes": (
        [op("MatMul", "x w", "m"), op("Add", "m b", "y")], {"b": random(1, 1, 12)}, {"QGemm": 1},
    ),
    "with a bias that adds an axis": (
        [op("MatMul", "x w", "m"), op("Add", "m b", "y")], {"b": random(1, 1, 1, 12)}, {"MatMulIntegerToFloat": 1},
    ),
    "one weight for two": (
        [op("MatMul", "x u", "m"), op("Relu", "m", "r"), op("MatMul", "r u", "y")], {"u": weight(16, 16, by=16)},
        {"MatMulIntegerToFloat": 1, "QLinearMatMul": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("shape", [ROWS, (5, 16), (16,)])
def test_matmul(name, shape):
    nodes, constants, wanted = LINEAR[name]
    made = quantized(nodes, {"w": weight(16, 12, by=16)} | constants, x=shape)
    made.check()
    assert not made.executed.floating
    if len(shape) == 3:
        assert made.executed.integer == wanted


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", [None, (12,), (1, 12), (1,), ()])
def test_gemm(turned, bias):
    constants = {"w": weight(16, 12, by=16).T.copy() if turned else weight(16, 12, by=16), "v": weight(12, 7, by=12)}
    if bias is not None:
        constants["b"] = np.array(random(*bias), np.float32)
    nodes = [
        op("Gemm", "x w" + " b" * (bias is not None), "c", transB=turned),
        op("Relu", "c", "r"),
        op("Gemm", "r v", "y"),
    ]
    made = quantized(nodes, constants, x=(5, 16)).check()
    assert made.executed.integer == {"QGemm": 2} and made.executed.conversions == {"QuantizeLinear": 1}


@pytest.mark.parametrize("bias", [(12, 1), (12, 12)])
def test_gemm_whose_bias_is_none_of_the_output_channels(bias):
    made = quantized([op("Gemm", "x w b", "y")], {"w": weight(16, 12, by=16), "b": random(*bias)}, x=(12, 16))
    made.check(off=1e-6)
    assert made.executed.floating == {"Gemm": 1} and not made.executed.conversions


def block(heads=2, width=16, sizes=(-1, 5)):
    """A transformer's block: norm, attention, norm, GELU."""
    each = width // heads
    nodes = [op("LayerNormalization", "x g e", "n", axis=-1)]
    for name in "qkv":
        nodes += [op("MatMul", f"n w{name}", f"m{name}"), op("Add", f"m{name} b{name}", f"a{name}"),
                  op("Reshape", f"a{name} split", f"r{name}")]  # fmt: skip
    nodes += [
        op("Transpose", "rq", "tq", perm=[0, 2, 1, 3]), op("Transpose", "rk", "tk", perm=[0, 2, 3, 1]),
        op("Transpose", "rv", "tv", perm=[0, 2, 1, 3]), op("MatMul", "tq tk", "s"), op("Mul", "s scale", "ss"),
        op("Softmax", "ss", "p", axis=-1), op("MatMul", "p tv", "o"), op("Transpose", "o", "ot", perm=[0, 2, 1, 3]),
        op("Reshape", "ot merge", "om"), op("MatMul", "om wo", "mo"), op("Add", "mo bq", "ao"),
        op("Add", "x ao", "res"),
        op("LayerNormalization", "res g e", "n2", axis=-1), op("MatMul", "n2 w1", "m1"), op("Add", "m1 b1", "a1"),
        op("Div", "a1 root", "d1"), op("Erf", "d1", "e1"), op("Add", "e1 one", "p1"), op("Mul", "a1 p1", "h1"),
        op("Mul", "h1 half", "h2"), op("MatMul", "h2 w2", "m2"), op("Add", "m2 bq", "a2"), op("Add", "res a2", "y"),
    ]  # fmt: skip
    squares = {f"w{name}": weight(width, width, seed=seed, by=width) for seed, name in enumerate("qkvo")}
    constants = squares | {
        "bq": random(width, seed=5), "bk": random(width, seed=6), "bv": random(width, seed=7), "b1": random(4 * width),
        "w1": weight(width, 4 * width, by=width), "w2": weight(4 * width, width, by=4 * width),
        "g": np.ones(width, np.float32),
        "e": np.zeros(width, np.float32), "split": ints(*sizes, heads, each), "merge": ints(*sizes, width),
        "scale": np.float32(each**-0.5), "root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5),
    }  # fmt: skip
    return nodes, constants


@pytest.mark.parametrize("batch", [2, "batch"])
def test_a_transformer_s_block(batch):
    nodes, constants = block()
    proto = model(nodes, {"x": [batch, 5, 16]}, {"y": None}, constants, opset=17)
    made = Quantized(proto, items_of(x=(2, 5, 16))).check(off=0.1)
    assert not made.executed.floating and sum(made.executed.integer.values()) == 8
    if batch == "batch":  # and for another number of samples
        other = items_of(1, x=(7, 5, 16))[0]
        assert made.outputs(other)[0].shape == (7, 5, 16)


def test_names_of_outputs_are_kept_and_values_that_floats_read_too():
    nodes = [conv("x", "c"), op("Exp", "c", "z"), op("Relu", "c", "r"), conv("r", "y", "v")]
    made = quantized(nodes, TWO, outputs=("y", "z", "c"), x=PICTURE).check()
    assert [out.name for out in made.proto.graph.output] == ["y", "z", "c"]
    assert [value.name for value in made.proto.graph.input] == ["x"]
    assert made.executed.integer == {"QLinearConv": 2}


@pytest.mark.parametrize("last", ["Transpose", "Mul", "Concat", "MaxPool"])
def test_an_output_that_only_moves_codes(last):
    more = {"Transpose": {"perm": [0, 2, 3, 1]}, "Concat": {"axis": 1}, "MaxPool": {"kernel_shape": [2, 2]}}.get(
        last, {}
    )
    reads = {"Mul": "p n", "Concat": "p x"}.get(last, "p")
    nodes = [conv("x", "c"), op("MaxPool", "c", "p", kernel_shape=[1, 1]), op(last, reads, "y", **more)]
    made = quantized(nodes, TWO | {"n": np.float32(3)}, x=PICTURE).check()
    assert made.executed.conversions == CROSSING and [out.name for out in made.proto.graph.output] == ["y"]


def test_constants_that_only_a_branch_reads_and_layers_inside_one_stay():
    def branch(name, nodes, out):
        return onnx.helper.make_graph(nodes, name, [], [onnx.helper.make_tensor_value_info(out, 1, None)])

    then = branch("then", [conv("c", "t", "u")], "t")
    other = branch("else", [op("Relu", "c", "o")], "o")
    nodes = [
        conv("x", "c"), op("ReduceMax", "x", "most", keepdims=0), op("Greater", "most n", "large"),
        node("If", ["large"], ["i"], name="if", then_branch=then, else_branch=other), op("Add", "i c", "a"),
        conv("a", "y", "v"),
    ]  # fmt: skip
    constants = TWO | {"u": weight(8, 8, 1, 1, seed=4), "n": np.float32(2)}
    made = quantized(nodes, constants, x=PICTURE).check()
    assert made.executed.integer == {"QLinearConv": 2} and made.executed.float_nodes == [("t", "Conv")]
    assert "branch" in made.placed.kept["t"]


def test_what_is_kept_is_said_with_the_reason():
    nodes = [conv("x", "c"), op("Relu", "c", "r"), conv("r", "y", "v")]
    proto = model(nodes, {"x": PICTURE}, {"y": None}, TWO)
    made = Quantized(proto, items_of(x=PICTURE), forbidden={"y": "it was asked for"}).check()
    assert made.placed.kept == {"y": "it was asked for"} and made.executed.float_nodes == [("y", "Conv")]
    assert made.placed.layers == {"c"}


@pytest.mark.parametrize("name", ["openvino", "generic"])
def test_other_runtimes_get_the_standard_form(name):
    nodes, constants, _, count = CHAINS["parts side by side, one of them clipped inside the range of the other"]
    made = quantized(nodes, constants, x=PICTURE, target=eager(TARGETS[name])).check()
    assert {n.op_type for n in made.proto.graph.node} == {
        "QuantizeLinear",
        "DequantizeLinear",
        "Conv",
        "Relu",
        "Concat",
    }
    assert sum(n.op_type == "Conv" for n in made.proto.graph.node) == count


def test_transposed_convolutions_where_the_runtime_has_them():
    nodes = [op("ConvTranspose", "x w", "c", strides=[2, 2]), op("ConvTranspose", "c k", "y", group=2)]
    constants = {"w": weight(8, 4, 2, 2, by=8), "k": weight(4, 3, 2, 2, by=4)}
    made = quantized(nodes, constants, x=PICTURE, target=eager(TARGETS["generic"])).check()
    assert made.placed.layers == {"c"} and "grouped" in made.placed.kept["y"]


@pytest.mark.parametrize(
    ("kind", "alpha", "beta"), [("HardSigmoid", 0.2, 0.5), ("HardSigmoid", 0.4, -0.1), ("HardSwish", 1 / 6, 0.5)]
)
def test_gates_are_what_their_formula_says(kind, alpha, beta):
    """For every code of the input: the sum and the product are rounded once each, so two steps at most."""
    more = {"alpha": alpha, "beta": beta} if kind == "HardSigmoid" else {}
    x = np.linspace(-5, 5.2, 256, dtype=np.float32).reshape(1, 1, 16, 16)
    made = quantized([op(kind, "x", "y", **more)], {}, opset=14, items=[{"x": x}], x=x.shape)
    assert made.executed.elementwise and not made.executed.floating
    wanted = np.clip(alpha * x + beta, 0, 1) * (x if kind == "HardSwish" else 1)
    step = (wanted.max() - wanted.min()) / 255
    largest = 1 if kind == "HardSigmoid" else 5.2 / 255 / step  # a step of the gate, times x
    assert np.abs(made.outputs({"x": x})[0] - wanted).max() <= (0.5 + 0.5 * largest + 10.2 / 255 * alpha / step) * step


BETWEEN = {
    "conv": ([conv("x", "a", **SAME), conv("a", "c", bias="b"), conv("c", "y")], {}),
    "conv and relu": ([conv("x", "a", **SAME), conv("a", "c", bias="b"), op("Relu", "c", "r"), conv("r", "y")], {}),
    "depthwise": ([conv("x", "a"), conv("a", "c", "k", group=8), op("Clip", "c", "r"), conv("r", "y")],
                  {"k": weight(8, 1, 3, 3)}),
    "gemm": ([op("Relu", "x", "u"), op("Gemm", "u m b", "a"), op("Gemm", "a m b", "c"), op("Gemm", "c m", "y")], {}),
    "matmul": ([op("MatMul", "x m", "u"), op("Mul", "u x", "a"), op("MatMul", "a m", "c"), op("Add", "c b", "d"),
                op("Relu", "d", "r"), op("Mul", "r x", "e"), op("MatMul", "e m", "y")], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_a_layer_left_in_float_between_codes_is_in_float(name):
    """ONNX Runtime would round its weight by itself."""
    nodes, more = BETWEEN[name]
    shape = (5, 8) if name in ("gemm", "matmul") else PICTURE
    constants = {"w": weight(8, 8, 1, 1), "b": random(8), "m": weight(8, 8, by=8)} | more
    made = Quantized(
        model(nodes, {"x": shape}, {"y": None}, constants), items_of(x=shape), forbidden={"c": "asked for"}
    )
    made.check()
    assert [name for name, _ in made.executed.float_nodes] == ["c"] and sum(made.executed.integer.values()) == 2
    own = next(n for n in nodes if n.name == "c").input[1]
    assert FLOAT in [c.data_type for c in made.proto.graph.initializer if c.name == own]


def test_a_scale_that_has_to_hold_a_bias_does_not_change_the_weight():
    """An int32 bias needs a scale that is not too small; the codes of such a row are made anew."""
    nodes, constants, _, _ = CHAINS["a large bias beside almost nothing"]
    made = quantized(nodes, constants, opset=14, x=PICTURE)
    found = {c.name: onnx.numpy_helper.to_array(c) for c in made.proto.graph.initializer}
    scale, codes = found["w.scale"].reshape(-1, 1, 1, 1), found["w.codes"].astype(np.float64)
    assert np.abs(codes[-1]).max() < 10 and np.abs(codes[0]).max() >= 60
    assert (np.abs(codes * scale - constants["w"]) <= 1.01 * scale).all()
    assert np.abs(found["c.bias.codes"].astype(np.int64)).max() < 2**31 - 1
    step = found["c.bias.scale"].astype(np.float64)
    assert (np.abs(found["c.bias.codes"] * step - 3) <= 0.51 * step).all()
