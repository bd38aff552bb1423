# SPDX-License-Identifier: Apache-2.0
"""The choice between several ways to prune a weight.

The promise of `_base` is kept where the zeros of a row are counted for themselves (N:M, `by_row`) row by row: each row
is the choice that loses least on what was kept aside. Where zeros are counted over the weight, taking rows from two
choices would change their number; there the weight as a whole is the choice that loses least.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._answers import Answers
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._diagonal import Diagonal
from fewbit.algorithms._parallel import each
from fewbit.algorithms._prune import Matrix
from fewbit.algorithms._rows import best, lanes, mixed
from fewbit.numerics.qtensor import QTensor

PLAIN = "magnitude"
"""What others are measured against."""


def decided(matrix: Matrix, found: Mapping[str, QTensor], facts: Mapping[str, Any]) -> Solution:
    """Of several ways to prune a matrix, of which one is `magnitude`, what loses least; see above."""
    names, choices = list(found), list(found.values())
    sides: dict[str, Answers | Diagonal] = {"": judge(matrix.flat), "held_out_": judge(matrix.flat, aside=True)}
    decides = sides["held_out_"]
    values = [choice.dequantize() for choice in choices]
    losses = torch.stack([_losses(matrix, decides, value) for value in values])
    picks = best(losses, matrix.band)
    chosen = choices[0] if len(choices) == 1 else mixed(choices, picks)
    result = chosen.dequantize()
    told: dict[str, Any] = {}
    for aside, side in sides.items():
        if aside and not side.is_aside:
            continue
        plain, ours = (_losses(matrix, side, value) for value in (values[names.index(PLAIN)], result))
        told |= side.facts(f"{aside}{side.name}", plain, ours, twin=PLAIN)
    won = {name: float((picks == index).double().mean()) if len(picks) else 0.0 for index, name in enumerate(names)}
    return Solution(matrix.shaped(chosen), {**told, "zeros": int((result == 0).sum()), "won": won, **facts})


def judge(problem: Problem, *, aside: bool = False) -> Answers | Diagonal:
    """Who says how far answers are off: the second moment of what a layer reads, or else its diagonal."""
    gram = problem.statistics.get("gram")
    fits = gram is not None and len(gram["gram"]) == problem.weight.shape[1] and bool(gram["count"] > 0)
    return Answers(problem, aside=aside) if fits else Diagonal(problem, aside=aside)


def _losses(matrix: Matrix, judge: Answers | Diagonal, values: Tensor) -> Tensor:
    found = torch.empty(len(values), dtype=torch.float64, device=values.device)

    def measure(rows: slice) -> None:
        found[rows] = judge.loss(values[rows], rows)

    each(measure, [(rows,) for rows in lanes(len(values), 1, values.device)], values.device)
    return found
