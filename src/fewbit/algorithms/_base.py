# SPDX-License-Identifier: Apache-2.0
"""What an algorithm is.

A member is a file with

- `STAGE`: when it runs, one of `STAGES`;
- `NEEDS`: the statistics it can use;
- `solve(problem, **parameters)`: a pure function of tensors. What the problem is, and the result, goes by the stage.

`"rotate"` turns the state that goes through a model: `solve(StreamProblem) -> Rotation`, once, before anything else; it
    needs no statistics.
`"prepare"` changes the float model: `solve(LinkProblem) -> Rescaling`, one link at a time. `NEEDS` are names of
    `fewbit.model.watch`, asked about the input of the link's consumers.
`"round"` settles one weight at a time: `solve(Problem) -> Solution`. `NEEDS` are names of observers; they are fed with
    the layer's input in one pass for all, from rows `[features, positions]`, and come back in `Problem.statistics`.
`"prune"` settles one weight with zeros in it: the same, with `Problem.pattern`; see below.
`"tune"` settles the weights of a block together. It is asked twice: for each weight as `"round"` is, with the same
    `NEEDS`, for the codes it begins with; and when the block is through, `solve(BlockProblem) -> Tuned`.
`"correct"` makes up for what rounding did: `solve(BiasProblem) -> Shift`, one layer at a time. `NEEDS` are names of
    `fewbit.model.watch`, asked about the layer's input (`taps`, `windows`) or output (`sum`, `count`).

Without data the statistics are simply not there, and the algorithm works without or says what it needs.

Every error in the facts is relative and squared. Of a `Solution` it is the sum of h (w - ŵ)² over the sum of h w², with
h the importance or, under names that begin with `held_out`, what was kept aside. An algorithm keeps promise 4 block by
block: neither of the two is above that of plain rounding. Where it knows the whole second moment H of the input, and
not only its diagonal h, both are errors of the output, (w - ŵ) H (w - ŵ)ᵀ, row by row, under names that begin with
`output` and `held_out_output`. Where it is told what the layer shall answer (`wanted`), it is to lose less against that
than plain rounding does, and names what it saves of it, over the energy of the output, `…_saved`. What other stages
give is kept only where it lowers the error they estimate or measure.
It gives the same bytes whatever the number of threads.

An algorithm of stage `"prune"` gives a weight with exactly the zeros that `Problem.pattern` asks for; the others are
codes of `Problem.grid`, which is `Dtype.float32` where weights stay floats. The other weights may make up for what is
gone. Its promise is that of `magnitude`: no row is farther from what it shall answer, on what was kept aside, than with
the smallest weights at zero and the others as they are (rounded to the grid). Where zeros are counted over the weight,
rows of two choices together would not have as many: there the promise is that of the weight as a whole. The facts have
`zeros`, how many there are, and errors beside those of `…_magnitude`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._bias import BiasProblem, OutputMeans, Shift, Taps
from fewbit.algorithms._block import BlockProblem, Tuned
from fewbit.algorithms._link import Activation, LinkProblem, Operand, Rescaling
from fewbit.algorithms._stream import Rotation, StreamProblem
from fewbit.errors import DataError, UsageError
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.sparsity import Pattern

__all__ = [
    "Activation",
    "BiasProblem",
    "BlockProblem",
    "LinkProblem",
    "Operand",
    "OutputMeans",
    "PROBLEMS",
    "Problem",
    "Rescaling",
    "Rotation",
    "STAGES",
    "Seen",
    "Shift",
    "Solution",
    "StreamProblem",
    "Taps",
    "Tuned",
]

STAGES = ("rotate", "prepare", "round", "prune", "tune", "correct")
"""When an algorithm can run, in that order."""

Seen = Mapping[str, Mapping[str, Tensor]]
"""States of observers, by the observer's name."""


@dataclass(frozen=True)
class Problem:
    """One weight to settle.

    Args:
        weight: float, `[stack…, out, in, kernel…]`.
        grid: the grid it shall lie on.
        block: the block shape of its scales.
        importance: E[x²] of the input feature each element is multiplied with, broadcastable to `weight`; or none.
        held_out: the same from samples that were kept aside to judge the result; or none.
        statistics: what the observers in `NEEDS` saw; those that saw nothing are not there.
        held_out_statistics: the same from the samples that were kept aside.
        name: what messages call the weight.
        super_scale: that of a two-level grid, if it is known already; such weights share it.
        shared: what an algorithm found out and is the same for all weights that read the same input.
        pattern: which elements may be zero, and how many are; none where nothing is asked to be.
    """

    weight: Tensor
    grid: Grid
    block: tuple[int, ...]
    importance: Tensor | None = None
    held_out: Tensor | None = None
    statistics: Seen = field(default_factory=dict)
    held_out_statistics: Seen = field(default_factory=dict)
    name: str = ""
    super_scale: Tensor | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    pattern: Pattern | None = None

    @property
    def blocks(self) -> Blocks:
        """How the weight is cut."""
        return Blocks(tuple(self.weight.shape), self.block)

    def check(self) -> None:
        """Refuse what no scale can be found for.

        Raises:
            DataError: a value is not finite.
            UsageError: shapes that do not fit together.
        """
        if len(self.block) != self.weight.ndim or not self.weight.ndim:
            raise UsageError(
                f"a block of shape {list(self.block)} for a weight of shape {list(self.weight.shape)}",
                where=self.name or None,
                expected="as many axes, at least one",
            )
        for name, values in (("weight", self.weight), ("importance", self.importance), ("held_out", self.held_out)):
            if values is not None:
                self._check_values(name, values)

    def _check_values(self, name: str, values: Tensor) -> None:
        shape = self.weight.shape
        fits = values.ndim <= len(shape) and all(a in (1, b) for a, b in zip(values.shape[::-1], shape[::-1]))
        if not fits:
            raise UsageError(
                f"{name} of shape {list(values.shape)} for a weight of shape {list(shape)}",
                where=self.name or None,
                expected="a shape that can be broadcast to the weight's",
            )
        # The extremes are not finite if anything is not; one reduction and no temporary.
        if values.numel() and not bool(torch.isfinite(torch.stack(values.detach().aminmax())).all()):
            bad = (~torch.isfinite(values)).nonzero()
            raise DataError(
                f"{len(bad)} of {values.numel()} values of the {name} are not finite, the first at {bad[0].tolist()}",
                where=self.name or None,
                expected="numbers that are neither NaN nor infinite",
                try_="leave this layer out, or look at how the model was trained or saved",
            )


@dataclass(frozen=True)
class Solution:
    """The settled weight, and what is worth recording of how it came about."""

    qtensor: QTensor
    facts: dict[str, Any] = field(default_factory=dict)


PROBLEMS: dict[
    str, type[Problem] | type[StreamProblem] | type[LinkProblem] | type[BlockProblem] | type[BiasProblem]
] = {
    "rotate": StreamProblem,
    "prepare": LinkProblem,
    "round": Problem,
    "prune": Problem,
    "tune": BlockProblem,
    "correct": BiasProblem,
}
"""What the algorithms of each stage are asked."""
