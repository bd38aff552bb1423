# SPDX-License-Identifier: Apache-2.0
"""Random graphs: what is left answers as the whole does with zeros in the columns of weights that are missing."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import UsageError
from linked_graphs import ints, node
from onnx_graphs import model, random, run
from shrinking_graphs import arrays, close, shrunk, without

STEPS = ("conv", "grouped", "depthwise", "relu", "sigmoid", "add", "mul", "concat", "split", "slice", "shuffle", "gate",
         "pool", "resize", "deconv", "tokens")  # fmt: skip


class Build:
    """A graph that grows by a step at a time, from values of which each has a number of channels."""

    def __init__(self, draw):
        self.draw, self.nodes, self.constants, self.made = draw, [], {}, 0
        self.values = {"x": 4}
        self.conv("x", 6)

    def add(self, op, reads, channels, gives=1, **attributes):
        names = []
        for _ in range(gives):
            self.made += 1
            names.append(f"v{self.made}")
        self.nodes.append(node(op, reads, names, name=f"{op}.{self.made}", **attributes))
        self.values |= dict.fromkeys(names, channels)
        return names[0]

    def conv(self, value, channels, groups=1, kernel=1, op="Conv"):
        weight, count = f"w{self.made}", self.values[value]
        shape = (channels, count // groups) if op == "Conv" else (count, channels // groups)
        self.constants[weight] = random(*shape, kernel, kernel, seed=self.made)
        pads = [kernel // 2] * 4
        return self.add(op, [value, weight], channels, group=groups, pads=pads)

    def pick(self, same=None):
        names = [n for n, c in self.values.items() if n != "x" and (same is None or c == self.values[same])]
        return self.draw(st.sampled_from(names))

    def step(self, kind):
        value = self.pick()
        count = self.values[value]
        if kind in ("relu", "sigmoid"):
            self.add(kind.capitalize(), [value], count)
        elif kind in ("add", "mul"):
            self.add(kind.capitalize(), [value, self.pick(value)], count)
        elif kind == "concat":
            other = self.pick()
            self.add("Concat", [value, other], count + self.values[other], axis=1)
        elif kind == "conv":
            self.conv(value, self.draw(st.integers(1, 8)), kernel=self.draw(st.sampled_from([1, 3])))
        elif kind == "deconv":
            self.conv(value, 4, op="ConvTranspose")
        elif kind == "grouped" and count % 2 == 0:
            self.conv(value, 6, groups=2)
        elif kind == "depthwise":
            self.conv(value, count * self.draw(st.integers(1, 2)), groups=count, kernel=3)
        elif kind == "split" and count % 2 == 0:
            self.add("Split", [value], count // 2, gives=2, axis=1)
        elif kind == "slice" and count > 2:
            self.constants |= {"one": ints(1), "last": ints(-1)}
            self.add("Slice", [value, "one", "last", "one"], count - 2)
        elif kind == "shuffle" and count % 2 == 0:
            self.constants |= {f"apart{count}": ints(0, 2, count // 2, 6, 6), f"back{count}": ints(-1, count, 6, 6)}
            apart = self.add("Reshape", [value, f"apart{count}"], 0)
            turned = self.add("Transpose", [apart], 0, perm=[0, 2, 1, 3, 4])
            self.add("Reshape", [turned, f"back{count}"], count)
            del self.values[apart], self.values[turned]
        elif kind == "tokens":
            self.constants[f"flat{count}"] = ints(0, count, -1)
            self.constants |= {f"m{self.made}": random(count, 5, seed=self.made), "picture": ints(0, 0, 6, 6)}
            weight = f"m{self.made}"
            flat = self.add("Reshape", [value, f"flat{count}"], 0)
            rows = self.add("Transpose", [flat], 0, perm=[0, 2, 1])
            product = self.add("MatMul", [rows, weight], 0)
            columns = self.add("Transpose", [product], 0, perm=[0, 2, 1])
            self.add("Reshape", [columns, "picture"], 5)
            for name in (flat, rows, product, columns):
                del self.values[name]
        elif kind == "gate":
            pooled = self.add("GlobalAveragePool", [value], count)
            up = self.conv(self.conv(pooled, 3), count)
            gate = self.add("Sigmoid", [up], count)
            names = [name for name in self.values if name not in (value, gate)]
            self.add("Mul", [value, gate], count)
            for name in (*names[names.index(pooled) :], gate):
                del self.values[name]
        elif kind == "pool":
            self.add("MaxPool", [value], count, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif kind == "resize":
            self.constants["sizes"] = np.float32([1, 1, 1, 1])
            self.add("Resize", [value, "", "sizes"], count)

    def finish(self):
        value = list(self.values)[-1]
        pooled = self.add("AveragePool", [value], 0, kernel_shape=[3, 3], strides=[3, 3])
        flat = self.add("Flatten", [pooled], 0)
        self.constants["head"] = random(3, self.values[value] * 4, seed=77)
        self.nodes.append(node("Gemm", [flat, "head"], ["y"], name="head", transB=1))
        return model(self.nodes, {"x": ["n", 4, 6, 6]}, {"y": None}, self.constants)


@st.composite
def graphs(draw):
    build = Build(draw)
    for kind in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=9)):
        build.step(kind)
    return build.finish()


@settings(max_examples=30, deadline=None)
@given(graphs(), st.sampled_from([0.3, 0.5, 0.8]))
def test_what_is_left_answers_as_the_whole_without_the_columns_that_are_missing(proto, share):
    try:
        small, _, _ = shrunk(proto, channels=share)
    except UsageError as error:
        assert error.what == "no channels can be taken out of this model"
        return
    onnx.checker.check_model(small, full_check=True)
    before, after = arrays(proto), arrays(small)
    cleared = {}
    for name, whole in before.items():
        if name in after and after[name].size < whole.size and whole.dtype == np.float32 and whole.ndim > 1:
            axis = 0 if _is_turned(proto, name) else 1
            rows = np.moveaxis(np.isin(whole, after[name]), axis, 0).reshape(whole.shape[axis], -1)
            cleared[name] = (axis, np.flatnonzero(~rows.any(1)))
    for batch in (1, 3):
        x = random(batch, 4, 6, 6, seed=batch)
        close(run(small, x=x), run(without(proto, **cleared), x=x))


def _is_turned(proto, name):
    readers = [one.op_type for one in proto.graph.node if name in one.input]
    return readers[0] in ("ConvTranspose", "MatMul")
