# SPDX-License-Identifier: Apache-2.0
"""What is measured to be wrong with post-training quantization elsewhere, and is not here.

Each test carries the number of the fact in guides/graph-ptq.md, section 0.
"""

import json

import numpy as np
import onnx
import pytest
import torch
from onnx.helper import make_node as node

import fewbit
from fewbit.backends.graph import running, targets, view
from fewbit.backends.graph.executed import executed
from fewbit.backends.graph.opening import open_graph
from onnx_graphs import model, random
from placed_graphs import answers, eager

FREELY = {"price": 1e6}  # only time decides
SAME = {"pads": [1, 1, 1, 1]}


def weight(*shape, seed=1, by=None):
    return (random(*shape, seed=seed) / np.sqrt(by or np.prod(shape[1:]))).astype(np.float32)


def constant(proto, name):
    (found,) = [onnx.numpy_helper.to_array(value) for value in proto.graph.initializer if value.name == name]
    return found


def pictures(count=8, channels=32, side=16, seed=0):
    return [{"x": random(1, channels, side, side, seed=seed + index)} for index in range(count)]


def conv(reads, gives, weight="w", *bias, **more):
    return node("Conv", [reads, weight, *bias], [gives], name=gives, **more)


def quantized(proto, data, **more):
    return fewbit.quantize(proto, data, advanced_parameters=FREELY | more.pop("advanced", {}), **more)


def seen(proto):
    return executed(open_graph(proto))


@pytest.fixture
def wants_integers(monkeypatch):
    """A target to which float costs more than anything else."""
    monkeypatch.setitem(targets.TARGETS, "eager", eager())
    return "eager"


# 1: what is asked to be integers runs in integers


def test_1_depthwise_convolutions_run_in_integers_and_so_do_their_neighbours():
    nodes = [
        conv("x", "c", **SAME), node("Relu", ["c"], ["r"], name="r"), conv("r", "d", "k", group=64, **SAME),
        node("Relu", ["d"], ["s"], name="s"), conv("s", "y", "v"),
    ]  # fmt: skip
    constants = {"w": weight(64, 32, 3, 3), "k": weight(64, 1, 3, 3), "v": weight(64, 64, 1, 1)}
    made = seen(quantized(model(nodes, {"x": [1, 32, 16, 16]}, {"y": None}, constants), pictures()))
    assert made.integer == {"QLinearConv": 3} and not made.floating
    assert made.conversions == {"QuantizeLinear": 1, "DequantizeLinear": 1}


def test_1_batch_norm_is_folded_first():
    nodes = [
        conv("x", "c", **SAME), node("BatchNormalization", ["c", "s", "b", "m", "t"], ["n"], name="n"),
        node("Relu", ["n"], ["r"], name="r"), conv("r", "y", "v"),
    ]  # fmt: skip
    constants = {
        "w": weight(32, 32, 3, 3), "v": weight(32, 32, 1, 1), "s": random(32) + 2, "b": random(32), "m": random(32),
        "t": np.abs(random(32)) + 0.5,
    }  # fmt: skip
    made = seen(quantized(model(nodes, {"x": [1, 32, 16, 16]}, {"y": None}, constants), pictures()))
    assert made.integer == {"QLinearConv": 2} and not made.floating


def block(width=64, length=16, heads=4):
    """A transformer's block as exporters write it."""
    each, nodes = width // heads, [node("LayerNormalization", ["x", "g", "e"], ["n"], name="norm1", axis=-1)]

    def linear(reads, name, gives, bias):
        return [node("MatMul", [reads, f"w_{name}"], [f"{name}_m"], name=name),
                node("Add", [f"{name}_m", bias], [gives], name=f"{name}_bias")]  # fmt: skip

    for name in "qkv":
        nodes += linear("n", name, f"{name}_a", "b")
        nodes.append(node("Reshape", [f"{name}_a", "split"], [f"{name}_r"], name=f"{name}_r"))
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(node("Transpose", [f"{name}_r"], [f"{name}_t"], name=f"{name}_t", perm=perm))
    nodes += [
        node("MatMul", ["q_t", "k_t"], ["scores"], name="scores"), node("Mul", ["scores", "scale"], ["ss"], name="ss"),
        node("Softmax", ["ss"], ["p"], name="softmax", axis=-1), node("MatMul", ["p", "v_t"], ["o"], name="mix"),
        node("Transpose", ["o"], ["ot"], name="ot", perm=[0, 2, 1, 3]),
        node("Reshape", ["ot", "merge"], ["om"], name="om"),
        *linear("om", "out", "out_a", "b"), node("Add", ["x", "out_a"], ["res"], name="residual1"),
        node("LayerNormalization", ["res", "g", "e"], ["n2"], name="norm2", axis=-1), *linear("n2", "up", "u", "b4"),
        node("Div", ["u", "root"], ["u1"], name="u1"), node("Erf", ["u1"], ["u2"], name="u2"),
        node("Add", ["u2", "one"], ["u3"], name="u3"), node("Mul", ["u", "u3"], ["u4"], name="u4"),
        node("Mul", ["u4", "half"], ["u5"], name="u5"), *linear("u5", "down", "down_a", "b"),
        node("Add", ["res", "down_a"], ["y"], name="residual2"),
    ]  # fmt: skip
    squares = {f"w_{name}": weight(width, width, seed=i, by=width) for i, name in enumerate(["q", "k", "v", "out"])}
    constants = squares | {
        "w_up": weight(width, 4 * width, by=width), "w_down": weight(4 * width, width, by=4 * width),
        "b": random(width),
        "b4": random(4 * width), "g": np.ones(width, np.float32), "e": np.zeros(width, np.float32),
        "split": np.array([0, 0, heads, each], np.int64), "merge": np.array([0, 0, width], np.int64),
        "scale": np.float32(each**-0.5), "root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5),
    }  # fmt: skip
    proto = model(nodes, {"x": ["n", length, width]}, {"y": None}, constants, opset=17)
    return proto, [{"x": random(1, length, width, seed=seed)} for seed in range(8)]


LINEARS = {"q", "k", "v", "out", "up", "down"}


def test_1_the_linears_of_a_transformer_run_in_integers():
    proto, data = block()
    made = seen(quantized(proto, data))
    assert not LINEARS & {name for name, _ in made.float_nodes} and sum(made.integer.values()) >= 6


# 2 and 3: one look at the weights, and activations that stay where they are


def chain():
    nodes = [conv("x", "c", **SAME), node("Relu", ["c"], ["r"], name="r"), conv("r", "y", "v", **SAME)]
    constants = {"w": weight(32, 32, 3, 3), "v": weight(32, 32, 3, 3, seed=2)}
    return model(nodes, {"x": [1, 32, 16, 16]}, {"y": None}, constants)


def test_2_weights_are_not_looked_at_more_often_with_more_samples(monkeypatch):
    counts, read = [], view.read_weight

    def counted(layer):
        counts[-1] += 1
        return read(layer)

    monkeypatch.setattr(view, "read_weight", counted)
    for samples in (5, 20):
        counts.append(0)
        quantized(chain(), pictures(samples))
    assert counts[0] == counts[1] > 0


def test_3_activations_do_not_leave_the_session(monkeypatch):
    """What a run gives back is a small part of one activation, not all of them."""
    given, made = [], running.session

    class Counted:
        def __init__(self, *args, **more):
            self._session = made(*args, **more)

        def run(self, *args):
            found = self._session.run(*args)
            given.append(sum(np.asarray(out).nbytes for out in found))
            return found

    monkeypatch.setattr(running, "session", Counted)
    side = 64
    nodes = [node("Relu", ["x"], ["r0"], name="r0")]
    for index in range(6):
        nodes += [
            conv(f"r{index}", f"c{index}", **SAME),
            node("Relu", [f"c{index}"], [f"r{index + 1}"], name=f"r{index + 1}"),
        ]
    proto = model(nodes, {"x": [1, 32, side, side]}, {"r6": None}, {"w": weight(32, 32, 3, 3)})
    quantized(proto, pictures(12, side=side))
    one = 32 * side * side * 4
    assert len(given) == 12 and max(given) < one


# 4 and 5: bias correction


def shift_of(proto, data, **more):
    """How far the mean of each output channel is from the float model's, in standard deviations of that channel."""
    made = quantized(proto, data, **more)
    wanted = np.concatenate([answers(proto, item)[0] for item in data]).astype(np.float64)
    found = np.concatenate([answers(made, item)[0] for item in data]).astype(np.float64)
    axes = (0, *range(2, wanted.ndim))
    return np.abs(found.mean(axes) - wanted.mean(axes)) / wanted.std(axes), made


def bright(count=10, channels=64, side=12):
    """Pictures that are bright in the middle, so that padding matters."""
    far = np.hypot(*np.meshgrid(np.linspace(-2, 2, side), np.linspace(-2, 2, side)))
    shade = np.exp(-(far**2)).astype(np.float32) * np.linspace(1, 9, channels, dtype=np.float32).reshape(-1, 1, 1)
    return [{"x": (shade + 0.3 * np.abs(random(1, channels, side, side, seed=seed)))} for seed in range(count)]


LAYERS = {
    "zero biases": ([conv("x", "y", "w", "b", **SAME)], {"b": np.zeros(64, np.float32)}),
    "some zero biases": ([conv("x", "y", "w", "b", **SAME)], {"b": random(64) * np.float32(np.arange(64) % 2)}),
    "no bias": ([conv("x", "y", "w", **SAME)], {}),
    "depthwise": ([conv("x", "y", "k", group=64, **SAME)], {"k": weight(64, 1, 3, 3)}),
    "grouped": ([conv("x", "y", "k", group=4, **SAME)], {"k": weight(64, 16, 3, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_4_and_5_the_mean_of_every_output_is_kept(name, wants_integers):
    nodes, more = LAYERS[name]
    # Most of a row is much smaller than its largest element: rounding such a row moves its mean.
    spiky = weight(64, 64, 3, 3) * np.where(np.arange(64 * 9).reshape(64, 3, 3) == 5, 40, 1).astype(np.float32)
    constants = {"w": spiky} | more
    if "k" in constants:
        constants["k"] = (constants["k"] + 0.004).astype(np.float32)
    proto = model(nodes, {"x": [1, 64, 12, 12]}, {"y": None}, constants)
    data = bright()
    plain, _ = shift_of(proto, data, advanced={"correct": None}, target=wants_integers)
    fixed, made = shift_of(proto, data, target=wants_integers)
    assert seen(made).integer == {"QLinearConv": 1}
    assert np.square(fixed).mean() < 0.5 * np.square(plain).mean()


def test_4_a_weight_that_is_not_rounded_shifts_nothing():
    """Comparing with a picture of one colour would find a shift in padding alone."""
    codes = np.random.default_rng(0).integers(-127, 128, (64, 64, 3, 3)).astype(np.float32)
    codes[:, 0, 0, 0] = 127  # the largest of each row, so that the scale is known
    proto = model([conv("x", "y", **SAME)], {"x": [1, 64, 12, 12]}, {"y": None}, {"w": codes * np.float32(2**-10)})
    made = quantized(proto, bright())
    names = {value.name for value in made.graph.initializer}
    if "y.bias.codes" in names:
        shift = constant(made, "y.bias.codes") * constant(made, "y.bias.scale")
        spread = np.std(np.concatenate([answers(proto, item)[0] for item in bright()]))
        assert np.abs(shift).max() < 1e-4 * spread
    assert np.abs(constant(made, "w.codes")).max() == 127


# 6 and 7: ranges


def test_6_quiet_channels_keep_all_levels():
    loud = weight(32, 32, 3, 3) * np.logspace(0, -6, 32, dtype=np.float32).reshape(-1, 1, 1, 1)
    made = quantized(model([conv("x", "y", **SAME)], {"x": [1, 32, 16, 16]}, {"y": None}, {"w": loud}), pictures())
    levels = np.abs(constant(made, "w.codes").astype(int)).reshape(32, -1).max(1)
    assert levels.min() > 100


def test_7_ranges_of_activations_minimise_the_error_unless_told_otherwise():
    """Long tails: clipping the last of them costs less than steps that reach to it."""
    made = np.random.default_rng(0)
    data = [{"x": made.standard_t(4, (1, 32, 16, 16)).astype(np.float32)} for _ in range(16)]
    values = np.concatenate([item["x"].reshape(-1) for item in data]).astype(np.float64)
    low, high = values.min(), values.max()

    def error(step, zero):
        codes = np.clip(np.rint(values / step) + zero, 0, 255)
        return np.square((codes - zero) * step - values).mean()

    def shrunk(share):
        step = share * (high - low) / 255
        return error(step, round(-share * low / step))

    found = quantized(chain(), data)
    ours = error(float(constant(found, "x.scale")), int(constant(found, "x.zero_point")))
    best = min(shrunk(share) for share in np.linspace(0.2, 1, 81))
    assert best < 0.8 * shrunk(1.0) and ours < 1.05 * best, (ours / best, shrunk(1.0) / best)


# 8: what a model is made of is found by looking


def test_8_a_transformer_needs_no_word():
    proto, data = block()
    made = fewbit.quantize(proto, data)
    found = seen(made)
    assert not found.elementwise  # no sum, product or softmax on codes
    coded = {n.input[0] for n in made.graph.node if n.op_type == "QuantizeLinear"}
    kinds = {name: n for n in made.graph.node for name in n.output}
    assert not any(kinds[name].op_type == "Softmax" for name in coded if name in kinds)
    assert not LINEARS & {name for name, _ in found.float_nodes}
    for name in ("softmax", "norm1", "norm2", "residual1", "residual2"):
        (it,) = [n for n in made.graph.node if n.name == name]
        assert not any(kinds[value].op_type == "DequantizeLinear" for value in it.input if value in kinds)


# 9: samples are counted, however they are packed


def scales_of(proto):
    return {
        v.name: onnx.numpy_helper.to_array(v) for v in proto.graph.initializer if v.name.endswith((".scale", ".codes"))
    }


def test_9_one_batch_of_four_is_four_samples():
    proto = chain()
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    single = pictures(8)
    packed = [{"x": np.concatenate([item["x"] for item in single[start : start + 4]])} for start in (0, 4)]
    one, four = (scales_of(quantized(proto, data)) for data in (single, packed))
    assert one.keys() == four.keys()
    for name, value in one.items():
        if name in ("x.scale", "r.scale", "y.scale"):
            assert four[name] == pytest.approx(value, rel=0.03)


@pytest.mark.parametrize(("items", "samples"), [(3, 12), (2, 8), (300, 12)])
def test_9_subset_size_counts_items_as_nncf_does(tmp_path, items, samples):
    proto = chain()
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    packed = [{"x": np.concatenate([item["x"] for item in pictures(4, seed=start)])} for start in (0, 4, 8)]
    quantized(proto, packed, subset_size=items, output=tmp_path / "out.onnx")
    facts = json.loads((tmp_path / "out.onnx.record.json").read_text())["facts"]["subset"]
    assert (facts["samples"], facts["items"], facts["items_in_source"]) == (samples, min(items, 3), 3)


# 10: accuracy


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 32, 3, stride=2, padding=1)
        self.deep = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.wide = torch.nn.Conv2d(32, 64, 1)
        self.squeeze, self.excite = torch.nn.Conv2d(64, 16, 1), torch.nn.Conv2d(16, 64, 1)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        x = torch.nn.functional.hardswish(self.first(x))
        x = torch.nn.functional.hardswish(self.deep(x))
        x = torch.nn.functional.hardswish(self.wide(x))
        gate = self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return self.head((x * torch.nn.functional.hardsigmoid(gate)).mean((2, 3)))


def trained():
    """A net with depthwise convolution, hard-swish and squeeze-and-excite, its ONNX model, and data with labels."""
    torch.manual_seed(0)
    shapes = torch.randn(10, 1, 16, 16)

    def data(count, seed):
        made = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 10, (count,), generator=made)
        return shapes[labels] + 0.5 * torch.randn(count, 1, 16, 16, generator=made), labels

    net = Small()
    adam = torch.optim.Adam(net.parameters(), 5e-3)
    for step in range(120):
        x, labels = data(64, step)
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        adam.zero_grad()
        loss.backward()
        adam.step()
    constants = {name: value.detach().numpy() for name, value in net.named_parameters()}

    def layer(reads, name, gives, **more):
        return conv(reads, gives, f"{name}.weight", f"{name}.bias", **more)

    nodes = [
        layer("x", "first", "a", strides=[2, 2], **SAME), node("HardSwish", ["a"], ["a1"], name="a1"),
        layer("a1", "deep", "b", group=32, **SAME), node("HardSwish", ["b"], ["b1"], name="b1"),
        layer("b1", "wide", "c"), node("HardSwish", ["c"], ["c1"], name="c1"),
        node("GlobalAveragePool", ["c1"], ["p"], name="p"), layer("p", "squeeze", "s"),
        node("Relu", ["s"], ["s1"], name="s1"), layer("s1", "excite", "e"),
        node("HardSigmoid", ["e"], ["g"], name="g", alpha=1 / 6, beta=0.5), node("Mul", ["c1", "g"], ["m"], name="m"),
        node("GlobalAveragePool", ["m"], ["q"], name="q"), node("Flatten", ["q"], ["f"], name="f"),
        node("Gemm", ["f", "head.weight", "head.bias"], ["y"], name="head", transB=1),
    ]  # fmt: skip
    return model(nodes, {"x": ["n", 1, 16, 16]}, {"y": None}, constants, opset=14), data


def test_10_a_small_net_of_the_fragile_kind_keeps_its_accuracy(wants_integers):
    proto, data = trained()
    data_in = [{"x": data(1, 1000 + seed)[0].numpy()} for seed in range(40)]
    made = quantized(proto, data_in, target=wants_integers)
    assert seen(made).integer == {"QLinearConv": 5, "QGemm": 1} and not seen(made).floating
    x, labels = data(2000, 5000)
    wanted, found = answers(proto, {"x": x.numpy()})[0].argmax(1), answers(made, {"x": x.numpy()})[0].argmax(1)
    before, after = (wanted == labels.numpy()).mean(), (found == labels.numpy()).mean()
    assert before > 0.85 and after > before - 0.01 and (wanted == found).mean() > 0.97


def test_the_answers_of_the_result_are_in_its_metadata():
    made = quantized(chain(), pictures())
    facts = json.loads({entry.key: entry.value for entry in made.metadata_props}["fewbit"])
    assert facts["executed"]["integer"] == {"QLinearConv": 2} and facts["answers"]["error"] < 1e-3
