# SPDX-License-Identifier: Apache-2.0
"""Jobs and small models that the tests of pruning share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewbit.sparsity.job import Job
from fewbit.sparsity.stages import prune
from fewbit.sparsity.stages.prune import Settings
from tiny_models import ResNet, shaken


def job(data=None, **more) -> Job:
    return Job("one-shot", None, None, None, data, data, **more)


def pruned(model, settings: Settings, data=None, **more):
    """A model, pruned, and the job it was done in."""
    mine = job(data, **more)
    prune.refuse(settings, model, mine)
    return prune.run(model, settings, mine), mine


def convolutional() -> nn.Module:
    return shaken(ResNet())


def images(count: int = 15, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    mixing = torch.randn(3, 3, generator=torch.Generator().manual_seed(9))  # channels that go together
    return [torch.einsum("ij,bjhw->bihw", mixing, torch.randn(2, 3, 8, 8, generator=draw)) for _ in range(count)]


def texts(count: int = 15, seed: int = 0, length: int = 12) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(4, 40, (2, length), generator=draw)} for _ in range(count)]


def off(model, wanted, given) -> float:
    """How far the answers of a model are from those wanted, relative and squared."""

    def answers(each):
        with torch.no_grad():
            found = [each(**x) if isinstance(x, dict) else each(x) for x in given]
        return torch.cat([getattr(x, "logits", x) for x in found])

    right = answers(wanted)
    return float((answers(model) - right).square().sum() / (right - right.mean()).square().sum())


def zeros(weight: Tensor) -> int:
    return int((weight == 0).sum())
