# SPDX-License-Identifier: Apache-2.0
"""Small networks whose channels hang together in different ways, and a job to shrink them with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewbit.data.dataset import Dataset
from fewbit.sparsity.job import Job
from tiny_models import shaken


class Block(nn.Module):
    """ResNet's basic block; a convolution beside it where the width changes."""

    def __init__(self, come: int, go: int, inner: int, *, side: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(come, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, go, 3, padding=1, bias=False), nn.BatchNorm2d(go)
        self.side = nn.Sequential(nn.Conv2d(come, go, 1), nn.BatchNorm2d(go)) if side else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.side(x))


class Residual(nn.Module):
    """Basic blocks, a pool and a head."""

    def __init__(self, width: int = 8, inner: tuple[int, ...] = (12, 6), *, side: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width, width, each, side=side) for each in inner))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


class Mobile(nn.Module):
    """Inverted residuals with depthwise convolutions and a squeeze of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.wide, self.deep, self.thin = (
            nn.Conv2d(8, 16, 1),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.Conv2d(16, 8, 1),
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.BatchNorm2d(8)])
        self.less, self.more = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = nn.functional.relu6(self.norms[0](self.wide(x)))
        y = nn.functional.relu6(self.norms[1](self.deep(y)))
        gate = torch.sigmoid(self.more(torch.relu(self.less(nn.functional.adaptive_avg_pool2d(y, 1)))))
        x = x + self.norms[2](self.thin(y * gate))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Joined(nn.Module):
    """Concatenated as in DenseNet, norms over all that came before, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6), nn.BatchNorm2d(10)])
        self.convs = nn.ModuleList([nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(10, 4, 3, padding=1)])
        self.up = nn.ConvTranspose2d(14, 8, 2, stride=2)
        self.scale = nn.GroupNorm(4, 8)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(torch.relu(norm(x)))], 1)
        return self.last(torch.relu(self.scale(self.up(nn.functional.max_pool2d(x, 2)))))


class Flat(nn.Module):
    """A plain convolutional network with batch norms, flattened with its places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 6, 3)
        self.fc1, self.fc2 = nn.Linear(6 * 4, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.avg_pool2d(self.conv2(torch.relu(self.bn(self.conv1(x)))), 2)
        return self.fc2(nn.functional.gelu(self.fc1(x.flatten(1))))


class Gated(nn.Module):
    """A perceptron with a gate, and a stream that nothing normalizes."""

    def __init__(self) -> None:
        super().__init__()
        self.come = nn.Linear(6, 8)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.go = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.come(x)
        x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return self.go(x)


class Attention(nn.Module):
    """Attention by hand, with one matrix for queries, keys and values, and heads that the code counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.width = 4, 3
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.places = nn.Parameter(torch.zeros(1, 7, 8))
        self.norm = nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 3 * 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        x = torch.cat([self.token.expand(batch, -1, -1), x], 1)
        x = x + self.places[:, : x.shape[1]]
        qkv = self.qkv(self.norm(x)).reshape(batch, -1, 3, self.heads, self.width).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q @ k.transpose(-1, -2) * self.width**-0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return self.head(x[:, 0])


NETS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (3, 6, 6)),
    "mobile": (Mobile, (3, 6, 6)),
    "joined": (Joined, (3, 8, 8)),
    "flat": (Flat, (3, 9, 9)),
    "gated": (Gated, (6,)),
}


def net(name: str) -> Any:
    """One of the networks, shaken."""
    torch.manual_seed(3)
    return shaken(NETS[name][0]())


def items(shape: tuple[int, ...], count: int = 10, batch: int = 4) -> list[Tensor]:
    """Random batches."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(batch, *shape, generator=generator) for _ in range(count)]


def job_for(model: Any, data: Any) -> Job:
    """A job with batches to calibrate on."""
    calibration = None if data is None else Dataset(data, batched=True)
    return Job("one-shot", None, None, model, None, calibration)
