# SPDX-License-Identifier: Apache-2.0
"""A weight in a file, settled in pieces of rows: no block of scales is cut, so the codes are those of the whole.

What plain rounding loses is measured on the first piece only where it cannot be so much that the weight had better stay
in float: it would take as long as rounding itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms import rtn
from fewbit.algorithms._base import Problem
from fewbit.engine.collect import Statistics
from fewbit.engine.plan import WeightPlan
from fewbit.engine.solve import settle
from fewbit.engine.super_scales import super_scales
from fewbit.errors import DataError
from fewbit.modules.checkpoint_files import Place
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.rounding import RoundType

_SAFE = 0.497
"""A little less than half: scales are rounded too, to eight bits or more."""
_ELEMENTS = 1 << 22
"""Of a piece: large beside what starting on one costs, and what threads cost that share an interpreter."""


@dataclass(frozen=True)
class Found:
    """What is known of some rows that were settled.

    Args:
        facts: as the algorithm gives them.
        energy: the sum of the rows' squares.
        blocks: how many blocks of scales they have.
    """

    facts: dict[str, Any]
    energy: float
    blocks: int


@dataclass(frozen=True)
class Weight:
    """A matrix of a checkpoint that becomes codes.

    Args:
        name: its name in the files.
        place: where it is.
        planned: what becomes of it; an expert's matrix is a part of the weight that is planned.
        super_scale: a scale above those of blocks that it shares with others, if there is one.
    """

    name: str
    place: Place
    planned: WeightPlan
    super_scale: Tensor | None = None

    @property
    def block(self) -> tuple[int, ...]:
        """Of its scales."""
        return self.planned.block[self.planned.point.stack :]

    def cuts(self) -> Iterator[tuple[int, int]]:
        """The rows of each piece: all of them where scales know of one another, or codes of their place."""
        grid, rows, height = self.planned.grid, self.place.shape[0], self.block[0]
        step = max(rows, 1)
        if height < rows and not (grid.two_level or grid.dtype.is_cast or grid.rounding is RoundType.stochastic):
            step = max(_ELEMENTS // (height * max(prod(self.place.shape[1:]), 1)), 1) * height
        for start in range(0, rows, step):
            yield start, min(start + step, rows)

    @property
    def is_safe(self) -> bool:
        """Whether plain rounding cannot lose half of what any block holds.

        Every element but the largest is off by half a step at most, and the block holds at least the largest squared.
        """
        grid, of = self.planned.grid, self.planned
        if of.algorithm.name != "rtn" or of.parameters or not grid.dtype.is_integer or grid.float_zero:
            return False
        lowest, highest = grid.dtype.lowest, grid.dtype.highest
        steps = -lowest if grid.signed_scale else (highest - lowest) / 2  # from zero to the largest
        return prod(self.block) - 1 <= _SAFE * (2 * steps) ** 2

    def settle(self, start: int, stop: int) -> tuple[Found | None, QTensor]:
        """Read some rows and find their codes; with what is known of them, where it was measured.

        Raises:
            DataError: a value that is not finite.
        """
        rows = self.place.rows(start, stop)
        try:
            if start and self.is_safe:
                problem = Problem(rows, self.planned.grid, self.block)
                problem.check()
                return None, QTensor.encode(rows, rtn.qparams(problem))
            solution = settle(rows, replace(self.planned, block=self.block), Statistics(), self.super_scale)
        except DataError as error:
            error.where = f"{self.name}, counted from row {start}"
            raise
        facts = {**solution.facts, "rows": stop - start} if self.is_safe else solution.facts
        energy = float(torch.linalg.vector_norm(rows, dtype=torch.float32)) ** 2
        return Found(facts, energy, solution.qtensor.scale.numel()), solution.qtensor

    def joined(self, pieces: Sequence[QTensor]) -> QTensor:
        """The codes of all rows from those of the pieces."""
        if len(pieces) == 1:
            return pieces[0]
        whole = {name: torch.cat([piece.tensors()[name] for piece in pieces]) for name in pieces[0].tensors()}
        return QTensor.from_tensors(self.planned.grid, self.place.shape, self.block, whole)


def sharing(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """The same weights, those on two-level grids with the scale they share with others; these are read for it."""
    places = {w.planned.point.name: w.place for w in weights.values()}
    planned = [w.planned for w in weights.values() if w.planned.grid.two_level]
    scales = super_scales(lambda point: places[point.name].rows(0, point.shape[0]), planned)
    return {name: replace(w, super_scale=scales.get(w.planned.point.name)) for name, w in weights.items()}


def facts_of(pieces: Sequence[Found]) -> dict[str, Any]:
    """What is known of a weight from what is known of its pieces: errors count by energy, shares by blocks.

    >>> facts_of([Found({"error": 0.5}, 1.0, 4), Found({"error": 0.25}, 1.0, 4)])
    {'error': 0.375}
    """
    facts = [piece.facts for piece in pieces]
    energies, blocks = [piece.energy for piece in pieces], [piece.blocks for piece in pieces]
    found: dict[str, Any] = {}
    for key, first in facts[0].items():
        if isinstance(first, int):
            found[key] = sum(each[key] for each in facts)
        elif isinstance(first, dict):
            found[key] = {name: _mean([each[key][name] for each in facts], blocks) for name in first}
        else:
            found[key] = _mean([each[key] for each in facts], energies)
    return found


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights)) / (sum(weights) or 1.0)
