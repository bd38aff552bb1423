# SPDX-License-Identifier: Apache-2.0
"""Small graphs with what their links should be, to look for and to scale along."""

from __future__ import annotations

import numpy as np
from onnx.helper import make_node as node

from onnx_graphs import model, random

PICTURE = {"x": [2, 4, 8, 8]}
TOKENS = {"x": [2, 5, 8]}


def ints(*numbers):
    return np.array(numbers, np.int64)


def conv(name, reads, gives, **attributes):
    return node("Conv", [reads, f"{name}.w", f"{name}.b"], [gives], name=name, **attributes)


def linear(name, reads, gives):
    return node("MatMul", [reads, f"{name}.w"], [gives], name=name)


def weights(**shapes):
    """Weights and biases: `a=(6, 4, 3, 3)` for a convolution, `a=(8, 16)` for a MatMul (without a bias)."""
    made = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        made[f"{name}.w"] = random(*shape, seed=seed)
        if len(shape) > 2:
            made[f"{name}.b"] = random(shape[0], seed=100 + seed)
    return made


def between(*nodes, opset=13, middle=6, size=1, **constants):
    """Two convolutions with something between `c` and `d`."""
    made = [conv("a", "x", "c"), *nodes, conv("b", "d", "y")]
    return model(made, PICTURE, {"y": None}, weights(a=(6, 4, 3, 3), b=(5, middle, size, size)) | constants, opset)


def straight(n=6):
    return tuple(range(n))


def gate():
    nodes = [
        conv("a", "x", "c"), node("Relu", ["c"], ["r"]), node("GlobalAveragePool", ["r"], ["p"]),
        conv("down", "p", "q"), node("Relu", ["q"], ["s"]), conv("up", "s", "t"), node("Sigmoid", ["t"], ["g"]),
        node("Mul", ["r", "g"], ["m"]), node("Add", ["m", "r"], ["n"]), conv("b", "n", "y"),
    ]  # fmt: skip
    shapes = {"a": (6, 4, 3, 3), "down": (3, 6, 1, 1), "up": (6, 3, 1, 1), "b": (5, 6, 1, 1)}
    return model(nodes, PICTURE, {"y": None}, weights(**shapes))


def layer_norm(reads="x", gives="n", *, name="norm"):
    """LayerNorm in primitive operators."""
    return [
        node("ReduceMean", [reads], ["mean"], axes=[-1]), node("Sub", [reads, "mean"], ["centered"]),
        node("Pow", ["centered", "two"], ["squared"]), node("ReduceMean", ["squared"], ["variance"], axes=[-1]),
        node("Add", ["variance", "epsilon"], ["kept"]), node("Sqrt", ["kept"], ["root"]),
        node("Div", ["centered", "root"], ["normal"]), node("Mul", ["normal", "gamma"], ["scaled"], name=name),
        node("Add", ["scaled", "beta"], [gives]),
    ]  # fmt: skip


NORM = {
    "two": np.float32(2), "epsilon": np.float32(1e-5), "gamma": random(8, seed=7), "beta": random(8, seed=8)
}  # fmt: skip


def attention(*, kv=4, fused=False):
    """Attention of 4 heads of 2 channels after a norm; with `kv` heads of keys and values."""
    size = 2 * kv
    shapes = {"out": (8, 8)} | ({"qkv": (8, 24)} if fused else {"q": (8, 8), "k": (8, size), "v": (8, size)})
    constants = weights(**shapes) | NORM | {
        "bias": random(24 if fused else size, seed=9), "root2": np.float32(2**0.5),
        "split": ints(2, 5, 3, 4, 2), "heads": ints(0, 0, -1, 2), "merged": ints(0, 0, 8), "axis2": ints(2),
        "each": ints(2, kv, 4 // kv, 5, 2), "grouped": ints(2, 4, 5, 2),
        "0": ints(0)[0], "1": ints(1)[0], "2": ints(2)[0],
    }  # fmt: skip
    nodes = layer_norm()
    if fused:
        nodes += [
            linear("qkv", "n", "m"), node("Add", ["m", "bias"], ["mb"]), node("Reshape", ["mb", "split"], ["five"]),
            node("Transpose", ["five"], ["turned"], perm=[2, 0, 3, 1, 4]), node("Gather", ["turned", "0"], ["qh"]),
            node("Gather", ["turned", "1"], ["kh"]), node("Gather", ["turned", "2"], ["vh"]),
            node("Transpose", ["kh"], ["kt"], perm=[0, 1, 3, 2]),
        ]  # fmt: skip
    else:
        nodes += [
            linear("q", "n", "qm"), linear("k", "n", "km"), linear("v", "n", "vm"), node("Add", ["vm", "bias"], ["vb"]),
            node("Reshape", ["qm", "heads"], ["q4"]), node("Reshape", ["km", "heads"], ["k4"]),
            node("Reshape", ["vb", "heads"], ["v4"]), node("Transpose", ["q4"], ["qh"], perm=[0, 2, 1, 3]),
        ]  # fmt: skip
        for letter in "kv":
            nodes += [
                node("Transpose", [f"{letter}4"], [f"{letter}g"], perm=[0, 2, 1, 3]),
                node("Unsqueeze", [f"{letter}g", "axis2"], [f"{letter}5"]),
                node("Expand", [f"{letter}5", "each"], [f"{letter}e"]),
                node("Reshape", [f"{letter}e", "grouped"], [f"{letter}h"]),
            ]
        nodes.append(node("Transpose", ["kh"], ["kt"], perm=[0, 1, 3, 2]))
    nodes += [
        node("MatMul", ["qh", "kt"], ["scores"]), node("Div", ["scores", "root2"], ["tempered"]),
        node("Softmax", ["tempered"], ["p"], axis=-1), node("MatMul", ["p", "vh"], ["o4"]),
        node("Transpose", ["o4"], ["ot"], perm=[0, 2, 1, 3]), node("Reshape", ["ot", "merged"], ["o"]),
        linear("out", "o", "y"),
    ]  # fmt: skip
    return model(nodes, TOKENS, {"y": None}, constants)


def norm_node(op, opset, *, shift=True, axes=3):
    """A norm that is one node, read by two layers."""
    nodes = [node(op, ["x", "gamma", "beta"][: 2 + shift], ["n"], name="norm")]
    nodes += [linear("q", "n", "y"), linear("k", "n", "z")] if axes == 3 else [conv("q", "n", "y"), conv("k", "n", "z")]
    shapes = {"q": (8, 3), "k": (8, 5)} if axes == 3 else {"q": (3, 8, 1, 1), "k": (5, 8, 3, 3)}
    constants = weights(**shapes) | {"gamma": NORM["gamma"]} | ({"beta": NORM["beta"]} if shift else {})
    if op == "BatchNormalization":
        nodes[0].input.extend(["mean", "variance"])
        constants |= {"mean": random(8, seed=5), "variance": random(8, seed=6) ** 2 + 0.1}
    return model(nodes, TOKENS if axes == 3 else {"x": [2, 8, 6, 6]}, {"y": None, "z": None}, constants, opset)


def several(*nodes, x=PICTURE, y=("y",), opset=13, **constants):
    return model(list(nodes), x, dict.fromkeys(y), constants, opset)


def same(node_or_op, *more, **attributes):
    return [node(node_or_op, ["c", *more], ["d"], **attributes)]


A_TO_B = {("a", ("b",), straight())}
LINKED = {
    "relu": (between(*same("Relu")), A_TO_B),
    "leaky relu": (between(*same("LeakyRelu", alpha=0.2)), A_TO_B),
    "prelu": (between(*same("PRelu", "slope"), slope=random(6, 1, 1)), A_TO_B),
    "clip below": (between(*same("Clip", "zero"), zero=np.float32(0)), A_TO_B),
    "max pool": (between(*same("MaxPool", kernel_shape=[2, 2])), A_TO_B),
    "average pool": (between(*same("AveragePool", kernel_shape=[2, 2], pads=[1, 1, 0, 0])), A_TO_B),
    "resize": (between(*same("Resize", "", "twice"), twice=np.float32([1, 1, 2, 2])), A_TO_B),
    "mean": (between(*same("ReduceMean", axes=[2, 3])), A_TO_B),
    "pad": (between(*same("Pad", "pads"), pads=ints(0, 0, 1, 1, 0, 0, 1, 1)), A_TO_B),
    "pad channels": (
        between(*same("Pad", "pads"), pads=ints(0, 1, 0, 0, 0, 2, 0, 0), middle=9),
        {("a", ("b",), (-1, *straight(), -1, -1))},
    ),
    "slice": (
        between(*same("Slice", "one", "five", "one"), one=ints(1), five=ints(5), middle=4),
        {("a", ("b",), (1, 2, 3, 4))},
    ),
    "a constant added after it": (
        between(node("Relu", ["c"], ["r"]), node("Sub", ["r", "k"], ["d"]), k=random(1, 6, 1, 1)), A_TO_B
    ),
    "one number added after it": (
        between(node("Relu", ["c"], ["r"]), node("Add", ["k", "r"], ["d"]), k=np.float32(3)), A_TO_B
    ),
    "depthwise": (
        several(
            conv("a", "x", "c"), node("Relu", ["c"], ["r"]), conv("d", "r", "s", group=6), conv("b", "s", "y"),
            **weights(a=(6, 4, 3, 3), d=(6, 1, 3, 3), b=(5, 6, 1, 1)),
        ),
        {("a", ("d",), straight()), ("d", ("b",), straight())},
    ),
    "groups": (
        several(
            conv("a", "x", "c", group=2), conv("b", "c", "y", group=3), **weights(a=(6, 2, 1, 1), b=(9, 2, 3, 3))
        ),
        A_TO_B,
    ),
    "transposed in groups": (
        several(
            node("ConvTranspose", ["x", "a.w", "a.b"], ["c"], name="a", group=2), node("Relu", ["c"], ["r"]),
            node("ConvTranspose", ["r", "b.w"], ["s"], name="b", group=3), conv("e", "s", "y"),
            **weights(a=(4, 3, 2, 2), b=(6, 2, 3, 3), e=(2, 6, 1, 1)) | {"a.b": random(6)},
        ),
        {("a", ("b",), straight()), ("b", ("e",), straight())},
    ),
    "flatten": (
        several(
            conv("a", "x", "c"), node("Relu", ["c"], ["r"]), node("Flatten", ["r"], ["f"]),
            node("Gemm", ["f", "g.w", "g.b"], ["h"], name="g", transB=1), node("Relu", ["h"], ["i"]),
            node("Gemm", ["i", "e.w"], ["y"], name="e", alpha=0.5),
            **weights(a=(3, 4, 7, 7), g=(6, 12), e=(6, 2)) | {"g.b": random(1, 6)},
        ),
        {("a", ("g",), tuple(np.repeat(range(3), 4).tolist())), ("g", ("e",), straight())},
    ),
    "picture to tokens": (
        several(
            conv("a", "x", "c"), node("Reshape", ["c", "shape"], ["s"]),
            node("Transpose", ["s"], ["t"], perm=[0, 2, 1]), linear("l", "t", "y"),
            **weights(a=(6, 4, 3, 3), l=(6, 2)), shape=ints(0, 6, -1),
        ),
        {("a", ("l",), straight())},
    ),
    "concatenation": (
        several(
            conv("a", "x", "c"), conv("e", "x", "d"), node("Concat", ["c", "d", "x"], ["m"], axis=1),
            conv("b", "m", "y"), **weights(a=(2, 4, 1, 1), e=(3, 4, 1, 1), b=(5, 9, 1, 1)),
        ),
        {("a", ("b",), (0, 1, *[-1] * 7)), ("e", ("b",), (-1, -1, 0, 1, 2, *[-1] * 4))},
    ),
    "split": (
        several(
            conv("a", "x", "c"), node("Split", ["c"], ["u", "v"], axis=1), conv("b", "u", "y"), conv("e", "v", "z"),
            y=("y", "z"), **weights(a=(6, 4, 1, 1), b=(5, 3, 1, 1), e=(2, 3, 1, 1)),
        ),
        {("a", ("b",), (0, 1, 2)), ("a", ("e",), (3, 4, 5))},
    ),
    "half of it read by another": (
        several(
            linear("a", "x", "c"), node("Split", ["c"], ["u", "v"], axis=-1), node("Sigmoid", ["u"], ["g"]),
            node("Mul", ["g", "v"], ["m"]), linear("b", "m", "y"), x=TOKENS, **weights(a=(8, 12), b=(6, 3)),
        ),
        {("a", ("b",), (6, 7, 8, 9, 10, 11))},
    ),
    "left product": (
        several(
            node("MatMul", ["a.w", "x"], ["c"], name="a"), node("Relu", ["c"], ["r"]),
            node("MatMul", ["b.w", "r"], ["y"], name="b"), x=TOKENS, **weights(a=(6, 5), b=(3, 6)),
        ),
        A_TO_B,
    ),
    "squeeze and excite": (gate(), {("a", ("b", "down"), straight()), ("down", ("up",), straight(3))}),
    "attention": (
        attention(), {("norm", ("k", "q", "v"), straight(8)), ("v", ("out",), straight(8))}
    ),
    "grouped-query attention": (
        attention(kv=2), {("norm", ("k", "q", "v"), straight(8)), ("v", ("out",), (0, 1, 0, 1, 2, 3, 2, 3))}
    ),
    "fused attention": (
        attention(fused=True), {("norm", ("qkv",), straight(8)), ("qkv", ("out",), tuple(range(16, 24)))}
    ),
    "LayerNormalization": (norm_node("LayerNormalization", 17), {("norm", ("k", "q"), straight(8))}),
    "RMSNormalization": (norm_node("RMSNormalization", 23, shift=False), {("norm", ("k", "q"), straight(8))}),
    "InstanceNormalization": (norm_node("InstanceNormalization", 13, axes=4), {("norm", ("k", "q"), straight(8))}),
    "BatchNormalization": (norm_node("BatchNormalization", 13, axes=4), {("norm", ("k", "q"), straight(8))}),
}  # fmt: skip
STOPPED = {
    "sigmoid": between(*same("Sigmoid")),
    "clip": between(*same("Clip", "zero", "six"), zero=np.float32(0), six=np.float32(6)),
    "swish": between(node("Sigmoid", ["c"], ["g"]), node("Mul", ["c", "g"], ["d"])),
    "square": between(node("Mul", ["c", "c"], ["d"])),
    "residual": several(
        conv("s", "x", "o"), conv("a", "x", "c"), node("Add", ["c", "o"], ["d"]), conv("b", "d", "y"),
        **weights(s=(6, 4, 1, 1), a=(6, 4, 1, 1), b=(5, 6, 1, 1)),
    ),
    "output": several(
        conv("a", "x", "c"), conv("b", "c", "y"), y=("c", "y"), **weights(a=(6, 4, 1, 1), b=(5, 6, 1, 1))
    ),
    "shuffled sum": between(
        node("Slice", ["c", "minus", "low", "one", "minus"], ["t"]), node("Add", ["c", "t"], ["d"]),
        one=ints(1), minus=ints(-1), low=ints(-100),
    ),
    "padded with ones": between(*same("Pad", "pads", "one"), pads=ints(0, 0, 1, 1, 0, 0, 1, 1), one=np.float32(1)),
    "mean over channels": between(*same("ReduceMean", axes=[1]), middle=1),
    "two ways to read it": several(
        conv("a", "x", "c"), conv("b", "c", "y"), node("Concat", ["c", "x"], ["m"], axis=1), conv("e", "m", "z"),
        y=("y", "z"), **weights(a=(6, 4, 1, 1), b=(5, 6, 1, 1), e=(5, 10, 1, 1)),
    ),
}  # fmt: skip
