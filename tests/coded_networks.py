# SPDX-License-Identifier: Apache-2.0
"""Small networks with codes, made of a seed, for what is written of them as ONNX."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fewbit
from fewbit.sparsity.deploying.samples import Sample, samples_of

SIDE = 8


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(inner)))


class Inverted(nn.Module):
    """A depthwise convolution between two of size one, as MobileNet has it."""

    def __init__(self, channels: int):
        super().__init__()
        wide = 4 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _pictures(block: type[nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        block(16), block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 3),
    )  # fmt: skip


def _mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


def _upward() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2), nn.BatchNorm2d(8),
        nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"),
    )  # fmt: skip


_BUILD = {
    "residual": lambda: _pictures(Residual),
    "inverted": lambda: _pictures(Inverted),
    "mlp": _mlp,
    "upward": _upward,
}


def dense(kind: str) -> nn.Module:
    """A network in float with half of its weights zero, and norms that turn some channels round."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _BUILD[kind]()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.uniform_(-1, 2)
                    module.bias.normal_()
                elif isinstance(module, nn.Conv2d | nn.Linear):
                    weight = module.weight.flatten()
                    weight[weight.abs().argsort()[: len(weight) // 2]] = 0
            for _ in range(3):
                model(torch.from_numpy(np.concatenate([row["input"] for row in rows(kind)])))
    return model.eval()


@cache
def rows(kind: str, count: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Inputs."""
    rng = np.random.default_rng(seed)
    shape = (1, 16) if kind == "mlp" else (1, 3, SIDE, SIDE)
    return [{"input": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


@cache
def coded(kind: str, preset: str = "w8a8") -> nn.Module:
    """The network with codes; not to be changed."""
    return fewbit.quantize(dense(kind), rows(kind), preset=preset)


def samples(model: nn.Module, kind: str) -> list[Sample]:
    """A few inputs with the model's answers."""
    return samples_of(model, [((), {"input": torch.from_numpy(row["input"])}) for row in rows(kind)[:3]])
