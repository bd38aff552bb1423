# SPDX-License-Identifier: Apache-2.0
"""How near two models' answers are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def nearness(wanted: Iterable[list[Tensor]], found: Iterable[list[Tensor]]) -> dict[str, Any]:
    """Compare answers, item by item.

    Args:
        wanted: of the float model.
        found: of the other.

    Returns:
        `items`; `error`, the energy of the difference over that of the wanted answers about their mean, the mean of all
        outputs; and `agreement`, how often the largest entry along the last axis is the same, over all outputs that
        have such an axis. An output of another shape counts as wholly wrong.

    >>> import torch
    >>> nearness([[torch.tensor([[1.0, 3.0]])]], [[torch.tensor([[1.0, 2.0]])]])
    {'items': 1, 'error': 0.5, 'agreement': 1.0}
    """
    items, shares, same, choices = 0, [], 0, 0
    for ours, theirs in zip(wanted, found):
        items += 1
        for a, b in zip(ours, theirs):
            if a.shape != b.shape:
                shares.append(1.0)
                choices += 1
                continue
            if not a.numel():
                continue
            wide = a.double()
            energy = (wide - wide.mean()).square().sum() if a.numel() > 1 else wide.square().sum()
            shares.append(float((b.double() - wide).square().sum() / energy.clamp(min=1e-30)))
            if a.ndim and a.shape[-1] > 1:
                hits = a.argmax(-1) == b.argmax(-1)
                same, choices = same + int(hits.sum()), choices + hits.numel()
    error = sum(shares) / max(len(shares), 1)
    return {"items": items, "error": error, "agreement": same / choices if choices else None}
