# SPDX-License-Identifier: Apache-2.0
"""Calls of `sparsify` as their parts see them, small and made of a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnx import helper
from torch import nn

import onnx_graphs
from fewbit.data.dataset import Dataset
from fewbit.sparsity.job import Job
from fewbit.sparsity.use_cases._base import UseCase

SIDE, CLASSES = 8, 3


def pictures(count: int = 60, seed: int = 0) -> list[dict[str, Any]]:
    """Noise that is brighter in one of its colours, which is the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    noise = rng.normal(size=(count, 3, SIDE, SIDE)).astype(np.float32)
    for number, label in enumerate(labels):
        noise[number, label] += 0.4
    return [{"pixel_values": image, "labels": int(label)} for image, label in zip(noise, labels)]


class Network(nn.Module):
    """A convolution and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(pixel_values).mean((2, 3)))


def network(seed: int = 0) -> Network:
    """One that knows its classes, more or less."""
    torch.manual_seed(seed)
    made = Network().eval()
    with torch.no_grad():
        made.conv.weight.mul_(0.1)
        for channel in range(CLASSES):
            made.conv.weight[channel, channel, 1, 1] = 1.0
            made.head.weight[channel, channel] = 2.0
    return made


def graph(seed: int = 0, batch: Any = "n") -> Any:
    """The same as a graph."""
    model = network(seed)
    constants = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    constants["axes"] = np.array([2, 3])
    nodes = [
        helper.make_node("Conv", ["pixel_values", "conv.weight", "conv.bias"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("ReduceMean", ["a"], ["b"], name="mean", axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["b", "head.weight", "head.bias"], ["logits"], name="head", transB=1),
    ]
    del constants["axes"]
    shape = {"pixel_values": [batch, 3, SIDE, SIDE]}
    return onnx_graphs.model(nodes, shape, {"logits": [batch, CLASSES]}, constants)


def job(dense: Any, *, labelled: bool = True, validation: bool = True, **more: Any) -> Job:
    """A call about pictures."""
    rows = pictures()
    inputs = Dataset([{"pixel_values": row["pixel_values"]} for row in rows[:20]], batched=False)
    metrics = {"accuracy": "max", "loss": "min"}
    case = UseCase("image_classification", "pictures", "image_classification", "accuracy", metrics)
    if not labelled:
        return Job("one-shot", UseCase("custom"), None, dense, inputs, inputs, samples=20, **more)
    judged = Dataset(pictures(50, seed=1), batched=False) if validation else False
    return Job(
        "one-shot", case, case.task, dense, Dataset(rows, batched=False), inputs, judged, samples=20,
        metric="accuracy", classes=["red", "green", "blue"], **more,
    )  # fmt: skip


def pruned(model: Any, share: float = 0.5) -> Any:
    """A copy without the smallest weights of the convolution."""
    import copy

    made = copy.deepcopy(model)
    with torch.no_grad():
        weight = made.conv.weight.reshape(-1)
        weight[weight.abs().argsort()[: round(share * len(weight))]] = 0
    return made
