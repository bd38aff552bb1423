# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 fed to a loop as fast as it can take it: small integers on the device, a whole batch made at once there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from sparsity_nets import DEVIATION, EDGE, MEAN, Pictures


class Moved(IterableDataset):  # type: ignore[type-arg]
    """Batches of pictures in a new order each epoch, each picture cut out of a wider one, half of them mirrored.

    The same pictures as those of `Pictures.loader(training=True)`, but drawn otherwise.

    Args:
        pictures: to learn from.
        batch: how many at a time; what is left over is left out.
        device: where they are made.
    """

    def __init__(self, pictures: Pictures, batch: int, device: str):
        self._pictures, self._labels = pictures.pictures.contiguous().to(device), pictures.labels.to(device)
        self._batch, self._device, self._epoch = batch, device, 0

    def set_epoch(self, number: int) -> None:
        """Say which epoch comes next."""
        self._epoch = number

    def __len__(self) -> int:
        return len(self._labels) // self._batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        draw = torch.Generator(self._device).manual_seed(self._epoch)
        self._epoch += 1  # for those who do not say
        order = torch.randperm(len(self._labels), generator=draw, device=self._device)
        for places in order.split(self._batch)[: len(self)]:
            yield self._moved(places, draw), self._labels[places]

    def loader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """The same for whoever wants a loader."""
        return DataLoader(self, batch_size=None)

    def _moved(self, places: Tensor, draw: torch.Generator) -> Tensor:
        """Pictures [n, 3, 32, 32] as the networks read them."""
        count, side = len(places), self._pictures.shape[-1]
        steps = torch.arange(side, device=self._device)
        down, right = (
            torch.randint(-EDGE, EDGE + 1, (count, 1), generator=draw, device=self._device) + steps for _ in range(2)
        )
        mirrored = torch.rand((count, 1), generator=draw, device=self._device) < 0.5
        right = torch.where(mirrored, right.flip(1), right)
        down, right = (_reflected(place, side - 1) for place in (down, right))
        channel = torch.arange(3, device=self._device).view(1, 3, 1, 1)
        cut = self._pictures[places.view(-1, 1, 1, 1), channel, down[:, None, :, None], right[:, None, None, :]]
        return scaled(cut)


def scaled(pictures: Tensor) -> Tensor:
    """Small integers as the numbers that the networks read."""
    mean, deviation = (torch.tensor(each, device=pictures.device).view(3, 1, 1) for each in (MEAN, DEVIATION))
    return (pictures.float() / 255 - mean) / deviation


def _reflected(places: Tensor, last: int) -> Tensor:
    """Places beyond an edge, as far inside of it."""
    places = places.abs()
    return torch.minimum(places, 2 * last - places)
