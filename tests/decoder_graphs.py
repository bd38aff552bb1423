# SPDX-License-Identifier: Apache-2.0
"""A small decoder as an ONNX graph: tokens in, logits out."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

WIDTH, HEADS, INNER, WORDS, LENGTH = 64, 4, 128, 96, 16


def decoder(layers: int = 2, seed: int = 0) -> onnx.ModelProto:
    """A decoder with causal attention, root mean square norms and a gated feed-forward part, of random weights."""
    build = _Build(np.random.default_rng(seed))
    state = build.add("Gather", "embed", "input_ids")
    for layer in range(layers):
        state = build.block(state, f"layers.{layer}")
    build.linear(build.norm(state, "norm"), WIDTH, WORDS, "lm_head", gives="logits")
    graph = helper.make_graph(
        build.nodes,
        "decoder",
        [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", LENGTH])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", LENGTH, WORDS])],
        [numpy_helper.from_array(value, name) for name, value in build.constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made, full_check=True)
    return made


def token_items(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Random tokens, a sequence of two rows each."""
    draw = np.random.default_rng(seed)
    return [{"input_ids": draw.integers(0, WORDS, (2, LENGTH))} for _ in range(count)]


class _Build:
    def __init__(self, draw: np.random.Generator) -> None:
        self._draw, self._made = draw, 0
        self.nodes: list[onnx.NodeProto] = []
        mask = np.triu(np.full((LENGTH, LENGTH), -1e4, np.float32), 1)
        self.constants: dict[str, np.ndarray] = {
            "embed": draw.standard_normal((WORDS, WIDTH)).astype(np.float32),
            "mask": mask,
            "two": np.float32(2),
            "tiny": np.float32(1e-5),
            "root": np.float32((WIDTH // HEADS) ** 0.5),
            "apart": np.array([0, 0, HEADS, -1]),
            "together": np.array([0, 0, -1]),
        }

    def add(self, operator: str, *reads: str, name: str = "", gives: str = "", **attributes: object) -> str:
        self._made += 1
        gives = gives or f"t{self._made}"
        self.nodes.append(helper.make_node(operator, reads, [gives], name=name or f"{operator}.{gives}", **attributes))
        return gives

    def linear(self, x: str, width: int, out: int, name: str, gives: str = "") -> str:
        spread = self._draw.uniform(0.2, 2, (width, 1))  # features matter unequally
        weight = self._draw.standard_normal((width, out)) * spread / width**0.5
        self.constants[f"{name}.weight"] = weight.astype(np.float32)
        return self.add("MatMul", x, f"{name}.weight", name=name, gives=gives)

    def norm(self, x: str, name: str) -> str:
        self.constants[f"{name}.weight"] = self._draw.uniform(0.2, 2, WIDTH).astype(np.float32)
        mean = self.add("ReduceMean", self.add("Pow", x, "two"), axes=[-1], keepdims=1)
        return self.add("Mul", self.add("Div", x, self.add("Sqrt", self.add("Add", mean, "tiny"))), f"{name}.weight")

    def block(self, state: str, name: str) -> str:
        x = self.norm(state, f"{name}.norm1")
        parts = [self.linear(x, WIDTH, WIDTH, f"{name}.{part}_proj") for part in "qkv"]
        query, key, value = (
            self.add("Transpose", self.add("Reshape", part, "apart"), perm=perm)
            for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        )
        scores = self.add("Add", self.add("Div", self.add("MatMul", query, key), "root"), "mask")
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        mixed = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), "together")
        state = self.add("Add", state, self.linear(mixed, WIDTH, WIDTH, f"{name}.o_proj"))
        x = self.norm(state, f"{name}.norm2")
        gate, up = (self.linear(x, WIDTH, INNER, f"{name}.{part}_proj") for part in ("gate", "up"))
        inner = self.add("Mul", self.add("Mul", gate, self.add("Sigmoid", gate)), up)
        return self.add("Add", state, self.linear(inner, INNER, WIDTH, f"{name}.down_proj"))
