# SPDX-License-Identifier: Apache-2.0
"""A small model of each backend. A backend joins the contract tests by an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import helper
from torch import Tensor, nn

from onnx_graphs import model, random, run


@dataclass(frozen=True)
class Example:
    """One model to hold a backend to its contract.

    Args:
        make: makes the model, the same each time: two or more layers with weights, a padded convolution among them,
            and a layer without any points. The last one with a weight, a linear layer, gives the answer.
        items: what `Dataset.inputs` yields for a model of this kind.
        answer: what a model of this kind answers to an item.
    """

    make: Callable[[], Any]
    items: list[Any]
    answer: Callable[[Any, Any], Tensor]


def _module() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Unflatten(1, (2, 4))]
    return nn.Sequential(*first, nn.Conv1d(2, 4, 3, padding=1, stride=2), nn.Flatten(), nn.Linear(8, 3)).eval()


def _call(model: Any, item: Any) -> Tensor:
    with torch.no_grad():
        return model(*item[0], **item[1])


def _batches(count: int, features: int) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [((torch.randn(4, features, generator=generator),), {}) for _ in range(count)]


def _graph() -> Any:
    """A norm, a MatMul with its bias, a Relu, a convolution over what it gives, a Gemm."""
    draw = np.random.default_rng(0)
    sizes = {"g": (6,), "b": (6,), "w1": (6, 8), "b1": (8,), "wc": (4, 2, 3), "bc": (4,), "w2": (8, 3), "b2": (3,)}
    constants = {name: (draw.standard_normal(size) * 0.5).astype(np.float32) for name, size in sizes.items()}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "w1"], ["m"], name="first"),
        helper.make_node("Add", ["m", "b1"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Reshape", ["r", "shape"], ["s"], name="reshape"),
        helper.make_node("Conv", ["s", "wc", "bc"], ["c"], name="conv", pads=[1, 1], strides=[2], kernel_shape=[3]),
        helper.make_node("Flatten", ["c"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], name="last"),
    ]
    return model(nodes, {"x": ["n", 6]}, {"y": ["n", 3]}, {**constants, "shape": np.array([0, 2, 4])}, opset=17)


def _run(proto: Any, item: Any) -> Tensor:
    return torch.from_numpy(run(proto, **item)[0])


def _feeds(count: int) -> list[Any]:
    return [{"x": random(4, 6, seed=seed)} for seed in range(count)]


EXAMPLES = {
    "torch_eager": Example(_module, _batches(3, 6), _call),
    "onnx": Example(_graph, _feeds(3), _run),
}
