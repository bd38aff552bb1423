# SPDX-License-Identifier: Apache-2.0
"""Two small networks for CIFAR-10, and how they are trained and judged: the same for every side of bench/sparsity.py.

`resnet` has blocks of two 3x3 convolutions and shortcuts, `mobilenet` inverted residuals with depthwise convolutions
and ReLU6. Only torch and numpy are needed, so every peer's environment can load this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH, EDGE = 128, 4
HIGHEST_LR = {"resnet": 0.2, "mobilenet": 0.15}
Loader = torch.utils.data.DataLoader


class Block(nn.Module):
    """Two 3x3 convolutions around which the input goes."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.first = _conv(inside, outside, 3, stride)
        self.second = _conv(outside, outside, 3, 1)
        self.around = nn.Identity() if inside == outside and stride == 1 else _conv(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.around(x))


class Inverted(nn.Module):
    """Wider, each channel on its own, narrower again; around which the input goes where it fits."""

    def __init__(self, inside: int, outside: int, stride: int, widen: int = 4):
        super().__init__()
        wide = inside * widen
        self.widen, self.each = _conv(inside, wide, 1, 1), _conv(wide, wide, 3, stride, groups=wide)
        self.narrow = _conv(wide, outside, 1, 1)
        self.fits = inside == outside and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        made = self.narrow(F.relu6(self.each(F.relu6(self.widen(x)))))
        return made + x if self.fits else made


class Net(nn.Module):
    """A stem, stages, the mean over the picture, a linear head."""

    def __init__(self, kind: type[nn.Module], widths: list[int], depth: int, stride: int = 1):
        super().__init__()
        self.stem = _conv(3, widths[0], 3, stride)
        blocks: list[nn.Module] = []
        for number, (inside, outside) in enumerate(zip([widths[0], *widths], widths)):
            for place in range(depth):
                first = place == 0
                blocks.append(kind(inside if first else outside, outside, 2 if first and number else 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


def _conv(inside: int, outside: int, size: int, stride: int, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside))


def make(net: str) -> nn.Module:
    """A network with the weights of a seed."""
    torch.manual_seed(0)
    return Net(Block, [16, 32, 64], 2) if net == "resnet" else Net(Inverted, [24, 48, 96], 2, stride=2)


def opened(net: str, weights: str, device: str = "cpu") -> nn.Module:
    """A network with the weights of a file."""
    model = make(net)
    model.load_state_dict(torch.load(weights, weights_only=True))
    return model.to(device).eval()


def pruned_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights that every side is asked to prune: convolutions but the first and those of one channel each."""
    dense = dense_layers(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    return {f"{name}.weight": module.weight.detach() for name, module in found.items() if name not in dense}


def dense_layers(model: nn.Module) -> list[str]:
    """The layers that stay as they are: the first, the last, and convolutions of each channel on its own."""
    each = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    return ["stem.0", *each, "head"]


class Pictures:
    """A part of CIFAR-10 in memory; `limit` takes the first so many only."""

    def __init__(self, data: str, part: str, limit: int | None = None):
        self.pictures = torch.from_numpy(np.load(Path(data) / f"{part}_pictures.npy")[:limit]).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(np.load(Path(data) / f"{part}_labels.npy")[:limit])

    def batch(self, places: list[int], *, moved: bool = False) -> tuple[Tensor, Tensor]:
        """Pictures [n, 3, 32, 32] as the networks read them; moved and mirrored by chance if asked."""
        pictures = self.pictures[places].float() / 255
        pictures = (pictures - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
        return (_moved(pictures) if moved else pictures).contiguous(), self.labels[places]

    def loader(self, batch: int = BATCH, *, training: bool = False) -> Loader[Any]:
        """Batches of pictures and labels; for training in another order each epoch, by a seed, moved by chance."""
        if training:

            def learned(places: list[int]) -> tuple[Tensor, Tensor]:
                return self.batch(places, moved=True)

            order = torch.Generator().manual_seed(0)
            places = list(range(len(self.labels)))
            return Loader(places, batch, shuffle=True, generator=order, collate_fn=learned, drop_last=True)  # type: ignore[arg-type]
        return Loader(list(range(len(self.labels))), batch, collate_fn=self.batch)  # type: ignore[arg-type]


def _moved(pictures: Tensor) -> Tensor:
    """Cut out of a wider picture, half of them mirrored."""
    count, side = len(pictures), pictures.shape[-1]
    padded = F.pad(pictures, (EDGE,) * 4, mode="reflect")
    down, right = (torch.randint(0, 2 * EDGE + 1, (count, 1)) + torch.arange(side) for _ in range(2))
    mirrored = torch.rand(count, 1) < 0.5
    right = torch.where(mirrored, right.flip(1), right)
    which, channel = torch.arange(count).view(-1, 1, 1, 1), torch.arange(3).view(1, -1, 1, 1)
    return padded[which, channel, down.view(count, 1, side, 1), right.view(count, 1, 1, side)]


def train(
    model: nn.Module, loader: Any, epochs: float, lr: float, device: str, *,
    each: Callable[[int, int], None] | None = None, wrap: Callable[[Any, int], Any] | None = None,
) -> nn.Module:  # fmt: skip
    """The loop of every network here but fewbit's own: SGD, one cycle of the learning rate.

    Args:
        model: trained in place.
        loader: pictures and labels.
        epochs: passes.
        lr: the highest learning rate.
        device: where.
        each: called before each step with its number and how many there are, for sides that change masks.
        wrap: what a side makes of the optimizer, given how many steps an epoch has.
    """
    steps = max(1, round(epochs * len(loader)))
    plain = torch.optim.SGD(model.parameters(), lr=lr / 10, momentum=0.9, weight_decay=5e-4, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(plain, lr, total_steps=steps + 1, pct_start=0.25)
    optimizer: Any = plain if wrap is None else wrap(plain, len(loader))
    model.to(device).train()
    for step, (pictures, labels) in enumerate(_batches(loader, steps)):
        if each is not None:
            each(step, steps)
        loss = F.cross_entropy(model(pictures.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
    return model.eval()


def _batches(loader: Any, steps: int) -> Iterator[Any]:
    given = 0
    while given < steps:
        for batch in loader:
            yield batch
            given += 1
            if given == steps:
                return


@torch.no_grad()
def hits(run: Callable[[Tensor], Any], pictures: Pictures, device: str = "cpu") -> dict[str, int]:
    """How many pictures a model names right, and how many there are."""
    right = 0
    for batch, labels in pictures.loader(500):
        right += int((run(batch.to(device)).argmax(1).cpu() == labels).sum())
    return {"right": right, "count": len(pictures.labels)}
