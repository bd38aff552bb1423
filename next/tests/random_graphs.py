# SPDX-License-Identifier: Apache-2.0
"""Random neutral graphs: layers, movement, sums and products of whatever fits, to prove analysis sound."""

from __future__ import annotations

import numpy as np

from fewbit.graph.ir import Graph
from neutral_graphs import Maker


class RandomGraph:
    """Adds random nodes to a pool of values and returns one or two of them."""

    def __init__(self, seed: int, steps: int = 14):
        self.random = np.random.default_rng(seed)
        images = self.random.random() < 0.5
        self.maker = Maker(seed, x=(2, 4, 6, 6) if images else (2, 5, 8))
        self.pool = ["x"]
        self.count = 0
        kinds = [
            self.layer,
            self.layer,
            self.layer,
            self.activation,
            self.join,
            self.movement,
            self.vector,
            self.norm,
            self.attention,
        ]
        while self.count < steps:
            kinds[self.random.integers(len(kinds))]()
            self.count += 1
        for _ in range(2):
            self.layer()

    def graph(self) -> Graph:
        return self.maker.graph(*dict.fromkeys([self.pool[-1], self.pick()]))

    def pick(self, rank: int | None = None) -> str:
        names = [name for name in self.pool[-5:] if rank is None or self.maker.values[name].ndim == rank]
        return names[self.random.integers(len(names))] if names else self.pool[-1]

    def add(self, name: str | tuple[str, ...]) -> None:
        self.pool += [name] if isinstance(name, str) else list(name)

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def layer(self) -> None:
        x = self.pick()
        shape, name = self.maker.values[x].shape, f"layer{self.count}_{len(self.pool)}"
        out = int(self.random.choice([4, 6, 8]))
        if len(shape) == 4 and min(shape[2:]) >= 2:
            groups = int(self.random.choice([g for g in (1, 1, 2, shape[1]) if shape[1] % g == 0]))
            out = out - out % groups if out >= groups else groups
            if self.chance(0.2):
                weight = self.maker.weight(f"{name}.weight", shape[1], out // groups, 1, 1)
                self.add(self.maker.node("conv_transpose", x, weight, data="NCHW", weight="IOHW", groups=groups))
            else:
                pads = ((1, 1), (1, 1)) if self.chance() else ((0, 0), (0, 0))
                size = 3 if pads[0][0] else 1
                self.add(
                    self.maker.conv(
                        name, x, out, shape[1] // groups, size, size, groups=groups, pads=pads, bias=self.chance()
                    )
                )
        elif len(shape) >= 2:
            self.add(self.maker.linear(name, x, out, bias=self.chance()))

    def activation(self) -> None:
        op = self.random.choice(["relu", "leaky_relu", "unary", "neg", "abs", "softmax", "cumsum", "identity"])
        x = self.pick()
        axis = int(self.random.integers(self.maker.values[x].ndim))
        attrs = {
            "leaky_relu": {"slope": 0.1},
            "unary": {"fn": "tanh"},
            "softmax": {"axis": axis},
            "cumsum": {"axis": axis},
        }
        self.add(self.maker.node(op, x, **attrs.get(op, {})))

    def join(self) -> None:
        one = self.pick()
        shape = self.maker.values[one].shape
        others = [name for name in self.pool if _broadcasts(self.maker.values[name].shape, shape)]
        other = others[self.random.integers(len(others))]
        op = self.random.choice(["add", "add", "sub", "mul", "max", "concat", "matmul"])
        if op == "concat":
            axis = int(self.random.integers(len(shape)))
            if self.maker.values[other].shape == shape and shape[axis] <= 16:
                self.add(self.maker.node("concat", one, other, axis=axis))
        elif op == "matmul":
            if self.maker.values[other].shape == shape and len(shape) > 2:
                scores = self.maker.node("matmul", one, other, transpose_a=False, transpose_b=True)
                scores = self.maker.node("softmax", scores, axis=len(shape) - 1) if self.chance() else scores
                self.add(self.maker.node("matmul", scores, self.pick(len(shape)) if False else other))
        else:
            self.add(self.maker.node(str(op), one, other))

    def vector(self) -> None:
        x = self.pick()
        shape, name = self.maker.values[x].shape, f"vector{self.count}"
        axis = int(self.random.integers(1, len(shape)))
        wide = tuple(size if i == axis or self.chance(0.2) else 1 for i, size in enumerate(shape))[int(self.chance()) :]
        wide = wide if len(wide) == len(shape) or shape[0] == 1 or axis > 0 else shape
        op = self.random.choice(["add", "mul", "sub", "div"])
        constant = self.maker.constant(name, self.random.uniform(0.5, 2, wide))
        operands = (x, constant) if op == "div" or self.chance() else (constant, x)
        self.add(self.maker.node(str(op), *operands))

    def norm(self) -> None:
        x = self.pick()
        shape, name = self.maker.values[x].shape, f"norm{self.count}"
        if len(shape) == 4:
            arrays = [self.maker.constant(f"{name}.{i}", self.random.uniform(0.5, 2, shape[1])) for i in range(4)]
            if self.chance():
                self.add(self.maker.node("batch_norm", x, *arrays, axis=1, eps=1e-5))
            else:
                groups = 2 if shape[1] % 2 == 0 else 1
                self.add(self.maker.node("group_norm", x, *arrays[:2], axis=1, groups=groups, eps=1e-5))
        else:
            arrays = [self.maker.constant(f"{name}.{i}", self.random.uniform(0.5, 2, shape[-1])) for i in range(2)]
            if self.chance():
                self.add(self.maker.node("layer_norm", x, *arrays, axes=(len(shape) - 1,), eps=1e-5))
            else:
                axes = (len(shape) - 1,)
                mean = self.maker.node("reduce", self.maker.node("pow", x, 2.0), fn="mean", axes=axes, keepdims=True)
                root = self.maker.node("unary", self.maker.node("add", mean, 1e-6), fn="rsqrt")
                self.add(self.maker.node("mul", self.maker.node("mul", x, root), arrays[0]))

    def attention(self) -> None:
        """Heads of features, as one operator or spelled out, some with a bias on the scores of each head."""
        x = self.pick(3)
        shape, name = self.maker.values[x].shape, f"attention{self.count}"
        if len(shape) != 3:
            return
        kv, features = int(self.random.choice([1, 2, 4])), int(self.random.choice([1, 2, 3]))
        q, k, v = (
            self.maker.node(
                "transpose",
                self.maker.node(
                    "reshape",
                    self.maker.linear(f"{name}.{letter}", x, heads * features, bias=self.chance()),
                    shape=(*shape[:2], heads, features),
                ),
                perm=(0, 2, 1, 3),
            )
            for letter, heads in (("q", 4), ("k", kv), ("v", kv))
        )
        mask = []
        if self.chance(0.4):
            scores = self.maker.linear(f"{name}.bias", x, 4)
            turned = self.maker.node("transpose", scores, perm=(0, 2, 1))
            mask = [self.maker.node("reshape", turned, shape=(shape[0], 4, shape[1], 1))]
        if self.chance():
            mixed = self.maker.node("attention", q, k, v, *mask, scale=None, causal=self.chance())
        else:
            k, v = (self.maker.node("repeat", y, axis=1, times=4 // kv, interleave=True) for y in (k, v))
            scores = self.maker.node("matmul", q, k, transpose_b=True)
            scores = self.maker.node("add", scores, *mask) if mask else scores
            mixed = self.maker.node("matmul", self.maker.node("softmax", scores, axis=3), v)
        turned = self.maker.node("transpose", mixed, perm=(0, 2, 1, 3))
        self.add(self.maker.node("reshape", turned, shape=(*shape[:2], 4 * features)))

    def movement(self) -> None:
        x = self.pick()
        shape = self.maker.values[x].shape
        axis = int(self.random.integers(1, len(shape)))
        kind = self.random.choice(
            ["transpose", "slice", "split", "reshape", "merge", "repeat", "pool", "pad", "flip", "mean"]
        )
        if kind == "transpose":
            order = [0, *(1 + self.random.permutation(len(shape) - 1))]
            self.add(self.maker.node("transpose", x, perm=tuple(int(i) for i in order)))
        elif kind == "slice" and shape[axis] > 2:
            step = int(self.random.choice([1, 1, 2, -1]))
            ends = (1, shape[axis]) if step > 0 else (shape[axis] - 1, 0)
            self.add(self.maker.node("slice", x, axis=axis, start=ends[0], stop=ends[1], step=step))
        elif kind == "split" and shape[axis] % 2 == 0:
            half = shape[axis] // 2
            self.add(self.maker.node("split", x, outputs=2, axis=axis, sizes=(half, half)))
        elif kind == "reshape" and shape[axis] % 2 == 0 and len(shape) < 4:
            target = (*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :])
            self.add(self.maker.node("reshape", x, shape=target))
        elif kind == "merge" and len(shape) > 2:
            axis = min(axis, len(shape) - 2)
            target = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            if target[axis] <= 64:
                self.add(self.maker.node("reshape", x, shape=target))
        elif kind == "repeat" and shape[axis] <= 8:
            self.add(self.maker.node("repeat", x, axis=axis, times=2, interleave=self.chance()))
        elif kind == "pool" and len(shape) == 4 and min(shape[2:]) >= 4:
            self.add(self.maker.node(str(self.random.choice(["max_pool", "avg_pool"])), x, data="NCHW", kernel=(2, 2)))
        elif kind == "pad" and shape[axis] <= 8:
            pads = tuple((1, 0) if i == axis else (0, 0) for i in range(len(shape)))
            self.add(self.maker.node("pad", x, pads=pads, value=float(self.random.choice([0.0, 1.0]))))
        elif kind == "flip":
            self.add(self.maker.node("gather", x, axis=axis, indices=tuple(range(shape[axis]))[::-1]))
        elif kind == "mean" and len(shape) > 2:
            self.add(
                self.maker.node(
                    "reduce", x, fn=str(self.random.choice(["mean", "max", "norm"])), axes=(axis,), keepdims=True
                )
            )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) == len(to) and all(one in (1, other) for one, other in zip(shape, to))
