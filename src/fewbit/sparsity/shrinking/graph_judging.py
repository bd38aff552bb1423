# SPDX-License-Identifier: Apache-2.0
"""Which of several graphs answers nearest to the one that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fewbit.backends.graph.view import GraphView


def nearest(
    views: Mapping[str, GraphView], whole: GraphView, items: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, float]]:
    """The name of the one that is nearest, the first of equals, and how far off each is.

    Args:
        views: by name.
        whole: what they come from.
        items: arrays by input.

    Returns:
        The name, and by name the squared distance of the answers as a part of their square.
    """
    wanted = [list(answers) for answers in whole.answers(items)]
    off = {name: _off(view.answers(items), wanted) for name, view in views.items()}
    return min(off, key=lambda name: off[name]), off


def _off(found: Iterable[list[Tensor]], wanted: Sequence[Sequence[Tensor]]) -> float:
    """The mean over outputs of how far they are off."""
    sums: dict[int, Tensor] = {}
    for answers, right in zip(found, wanted):
        for place, (a, b) in enumerate(zip(answers, right)):
            if b.is_floating_point():
                pair = torch.stack([(a.double() - b.double()).square().sum(), b.double().square().sum()])
                sums[place] = sums.get(place, torch.zeros(2, dtype=torch.float64)) + pair
    each = [float(pair[0] / pair[1].clamp_min(1e-30)) for pair in sums.values()]
    return sum(each) / max(1, len(each))
