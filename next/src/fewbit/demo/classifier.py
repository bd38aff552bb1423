# SPDX-License-Identifier: Apache-2.0
"""A classifier of handwritten digits, trained in a second, as an ONNX file and as a PyTorch module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.demo.datasets import CLASSES
from fewbit.errors import require
from fewbit.rng import generator

Arrays = Mapping[str, np.ndarray]
HIDDEN = 128
_EPOCHS, _BATCH, _RATE, _MOMENTUM = 40, 50, 0.05, 0.9

MODULE = f'''\
"""The classifier of `fewbit demo` in PyTorch."""

from pathlib import Path

import torch
from safetensors.torch import load_file


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, {HIDDEN})
        self.second = torch.nn.Linear({HIDDEN}, 10)

    def forward(self, pixels):
        return self.second(torch.relu(self.first(pixels.flatten(1))))


def build():
    model = Classifier()
    model.load_state_dict(load_file(Path(__file__).with_name("model.safetensors")))
    return model.eval()
'''


def train(images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Weights of a two-layer perceptron, by stochastic gradient descent with momentum.

    Args:
        images: [samples, 64], 0 to 1.
        labels: [samples], 0 to 9.
    """
    random = generator(0, 2)
    weights = {
        "first.weight": random.normal(0, (2 / 64) ** 0.5, (HIDDEN, 64)), "first.bias": np.zeros(HIDDEN),
        "second.weight": random.normal(0, (1 / HIDDEN) ** 0.5, (10, HIDDEN)), "second.bias": np.zeros(10),
    }  # fmt: skip
    velocity = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for _ in range(_EPOCHS):
        order = random.permutation(len(images))
        for start in range(0, len(images), _BATCH):
            rows = order[start : start + _BATCH]
            for name, gradient in _gradients(weights, images[rows], labels[rows]).items():
                velocity[name] = _MOMENTUM * velocity[name] - _RATE * gradient
                weights[name] = weights[name] + velocity[name]
    return {name: weight.astype(np.float32) for name, weight in weights.items()}


def predict(weights: Arrays, images: np.ndarray) -> np.ndarray:
    """Logits, [samples, 10]."""
    hidden = np.maximum(images @ weights["first.weight"].T + weights["first.bias"], 0)
    return np.asarray(hidden @ weights["second.weight"].T + weights["second.bias"])


def _gradients(weights: Arrays, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Of the mean cross-entropy."""
    hidden = np.maximum(images @ weights["first.weight"].T + weights["first.bias"], 0)
    logits = predict(weights, images)
    error = np.exp(logits - logits.max(1, keepdims=True))
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    inner = (error @ weights["second.weight"]) * (hidden > 0)
    return {
        "first.weight": inner.T @ images, "first.bias": inner.sum(0),
        "second.weight": error.T @ hidden, "second.bias": error.sum(0),
    }  # fmt: skip


def write_onnx(weights: Arrays, path: Path) -> None:
    """An ONNX file with the input `pixels`, float32 [N, 8, 8, 1]."""
    onnx: Any = require("onnx", extra="onnx", purpose="ONNX models")
    require("onnxruntime", extra="onnx", purpose="ONNX models")
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        node("Flatten", ["pixels"], ["flat"], name="flatten"),
        node("Gemm", ["flat", "first.weight", "first.bias"], ["hidden"], name="first", transB=1),
        node("Relu", ["hidden"], ["active"], name="relu"),
        node("Gemm", ["active", "second.weight", "second.bias"], ["logits"], name="second", transB=1),
    ]
    graph = onnx.helper.make_graph(
        nodes, "digits", [value("pixels", onnx.TensorProto.FLOAT, ["N", 8, 8, 1])],
        [value("logits", onnx.TensorProto.FLOAT, ["N", 10])],
        [onnx.numpy_helper.from_array(weight, name) for name, weight in weights.items()],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.helper.set_model_props(model, {"names": str(dict(enumerate(CLASSES)))})
    onnx.save(model, str(path))


def write_torch(weights: Arrays, path: Path) -> None:
    """`model.py` with `build()`, and its weights next to it."""
    require("torch", extra="torch", purpose="PyTorch models")
    safetensors: Any = require("safetensors.numpy", extra="torch", purpose="PyTorch models")
    safetensors.save_file(dict(weights), str(path.with_name("model.safetensors")))
    path.write_text(MODULE)
