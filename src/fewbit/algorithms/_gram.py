# SPDX-License-Identifier: Apache-2.0
"""Whether the second moment of a layer's input says anything about its weight."""

from __future__ import annotations

from math import prod

from fewbit.algorithms._base import Problem


def no_gram(problem: Problem) -> str | None:
    """Why the second moment is of no use for a weight: it is not known, or not for all places of the weight."""
    shape = problem.weight.shape
    if "gram" not in problem.statistics:
        return "no second moment of the input is known, and without it nothing beats the nearest value"
    if len(shape) < 2 or prod(shape[2:]) != 1:
        return f"the second moment is known by feature, and a weight of shape {list(shape)} has more places than these"
    return None
