# SPDX-License-Identifier: Apache-2.0
"""How near two models' answers are."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from torch import Tensor


def nearness(wanted: Iterable[list[Tensor]], found: Iterable[list[Tensor]]) -> dict[str, Any]:
    """Compare answers, item by item.

    Args:
        wanted: of the float model.
        found: of the other.

    Returns:
        `items`; `error`, the energy of the difference over that of the wanted answers about their mean, the mean of all
        outputs of all items, each counted alike however large its answers; `worst`, the largest such mean of one item,
        and `worst_item`, its number; and `agreement`, how often the largest entry along the class axis is the same,
        over all outputs that have such an axis. An output of another shape counts as wholly wrong; one of whole numbers
        is right where it is the same, and its error is the share where it is not.

    >>> import torch
    >>> nearness([[torch.tensor([[1.0, 3.0]])]], [[torch.tensor([[1.0, 2.0]])]])
    {'items': 1, 'error': 0.5, 'worst': 0.5, 'worst_item': 0, 'agreement': 1.0}
    """
    shares: list[list[float]] = []
    same, choices = 0, 0
    for ours, theirs in zip(wanted, found):
        shares.append([])
        for a, b in zip(ours, theirs):
            if a.shape != b.shape:
                shares[-1].append(1.0)
                choices += 1
                continue
            if not a.numel():
                continue
            if not a.is_floating_point():
                hits = a == b
                shares[-1].append(1 - float(hits.double().mean()))
                same, choices = same + int(hits.sum()), choices + hits.numel()
                continue
            wide = a.double()
            energy = (wide - wide.mean()).square().sum() if a.numel() > 1 else wide.square().sum()
            shares[-1].append(float((b.double() - wide).square().sum() / energy.clamp(min=1e-30)))
            if (axis := class_axis(a)) is not None:
                hits = a.argmax(axis) == b.argmax(axis)
                same, choices = same + int(hits.sum()), choices + hits.numel()
    each = [_mean(one) for one in shares]
    worst = max(range(len(each)), key=lambda item: (not isfinite(each[item]), each[item]), default=None)
    return {
        "items": len(shares),
        "error": _mean([share for one in shares for share in one]),
        "worst": 0.0 if worst is None else each[worst],
        "worst_item": worst,
        "agreement": same / choices if choices else None,
    }


def class_axis(output: Tensor) -> int | None:
    """The axis of the classes: 1 in `[N, C, H, W]` and `[N, C, D, H, W]`, else the last; `None` if it has one entry.

    >>> import torch
    >>> class_axis(torch.zeros(2, 5)), class_axis(torch.zeros(1, 21, 8, 8)), class_axis(torch.zeros(1, 1, 8, 8))
    (1, 1, None)
    """
    if not output.ndim:
        return None
    axis = 1 if output.ndim in (4, 5) else output.ndim - 1
    return axis if output.shape[axis] > 1 else None


def _mean(shares: list[float]) -> float:
    return sum(shares) / max(len(shares), 1)
