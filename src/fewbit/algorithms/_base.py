# SPDX-License-Identifier: Apache-2.0
"""What an algorithm is.

A member is a file with

- `STAGE`: when it runs; `"round"` algorithms settle one weight at a time;
- `NEEDS`: the statistics of the layer's input it can use, as observer names; they are collected in one pass for all;
- `solve(problem, **parameters) -> Solution`: a pure function of tensors.

Without data the statistics are simply not there, and the algorithm works without or says what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Problem:
    """One weight to settle.

    Args:
        weight: float, `[stack…, out, in, kernel…]`.
        grid: the grid it shall lie on.
        block: the block shape of its scales.
        importance: E[x²] of the input feature each weight element is multiplied with, broadcastable to `weight`; or none.
        held_out: the same from samples that were kept aside to judge the result; or none.
        statistics: the states of the other observers in `NEEDS`, by name.
    """

    weight: Tensor
    grid: Grid
    block: tuple[int, ...]
    importance: Tensor | None = None
    held_out: Tensor | None = None
    statistics: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """The settled weight, and what is worth recording of how it came about."""

    qtensor: QTensor
    facts: dict[str, Any] = field(default_factory=dict)
