# SPDX-License-Identifier: Apache-2.0
"""A matrix whose kept weights make up for those that are gone: what it shall answer, and values for a mask.

Where it is known what the layer shall answer (`wanted`), the weight that answers best is what is pruned, as in `gptq`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fewbit.algorithms._answers import Answers
from fewbit.algorithms._columns import Columns
from fewbit.algorithms._moment import Moment, moment
from fewbit.algorithms._parallel import each
from fewbit.algorithms._prune import Matrix
from fewbit.algorithms._refit import can_refit, refit
from fewbit.algorithms._rows import best, lanes, mixed, stacked
from fewbit.algorithms._sparse_columns import in_runs
from fewbit.algorithms._support import refined
from fewbit.algorithms._support_columns import rounded_on_support
from fewbit.errors import UsageError
from fewbit.numerics.qtensor import QTensor

T = TypeVar("T")

_FINE = 8  # bits, above which no other value than the nearest is worth a look
_REFITS = {2: 2, 3: 2, 4: 1}  # by bits, how often scales are fitted to the codes


@dataclass(frozen=True)
class Effort:
    """How much is done.

    Args:
        damping: what is added to the diagonal of the second moment, as a share of its mean.
        pull: how far the weight may not move towards what is wanted: by how much of what a feature gives it is held
            back.
        refine: how many steps bring the kept weights to their best values.
        sweeps: how often every code is looked at once more, the others being what they are.
        apart: by which share features are taken not to go together.

    Raises:
        UsageError: a share that is not above zero, a number of times that is below.
    """

    damping: float
    pull: float
    refine: int
    sweeps: int
    apart: float = 0.0

    def __post_init__(self) -> None:
        for name, share in (("damping", self.damping), ("pull", self.pull)):
            if not 0 < share < float("inf"):
                raise UsageError(f"{name}={share!r}", where=name, expected="a number above zero, such as 0.05")
        if not 0 <= self.apart <= 1:
            raise UsageError(f"apart={self.apart!r}", where="apart", expected="a share from 0 to 1")
        for name, times in (("refine", self.refine), ("sweeps", self.sweeps)):
            if times < 0:
                raise UsageError(f"{name}={times!r}", where=name, expected="how many times, from 0 up")


def why_not(matrix: Matrix) -> str | None:
    """Why weights that are kept cannot make up for those that are gone; none if they can."""
    flat = matrix.flat
    seen = flat.statistics.get("gram")
    if seen is None or not int(seen["count"]):
        return "no second moment of the input is known"
    if len(seen["gram"]) != flat.weight.shape[1]:
        return (
            f"the second moment is that of {len(seen['gram'])} features, and a row has {flat.weight.shape[1]} weights"
        )
    if not bool(seen["gram"].isfinite().all()):
        return "the second moment of the input is not finite"
    return None


class Compensation:
    """A matrix, what it shall answer, and how hard is tried.

    Args:
        matrix: with the second moment of what it reads.
        effort: how much is done.
    """

    def __init__(self, matrix: Matrix, effort: Effort):
        self.matrix, self.effort = matrix, effort
        self._teach, self._judge = Answers(matrix.flat), Answers(matrix.flat, aside=True)
        order = in_runs(matrix.weight.shape[1], matrix.inputs, matrix.pattern, matrix.weight.device)
        self.moment: Moment = moment(matrix.flat, self._teach, order, effort.damping, effort.apart)
        self.aim = matrix.weight if self._teach.wanted is None else self._best()

    def _best(self) -> Tensor:
        known, pull = self.matrix.flat.shared, self.effort.pull
        if ("prune", "pull", pull) not in known:
            known["prune", "pull", pull] = self._teach.factor_by_feature(pull)
        factor, share = known["prune", "pull", pull]
        return self.by_lanes(lambda rows: self._teach.best(rows, factor, share))

    def by_lanes(self, work: Callable[[slice], Tensor]) -> Tensor:
        """A tensor whose rows are found apart, the same whatever the number of threads."""
        return torch.cat(self.parts(work))

    def parts(self, work: Callable[[slice], T]) -> list[T]:
        """What is found for some rows at a time, in their order."""
        weight, found = self.matrix.weight, dict[int, T]()

        def keep(at: int, rows: slice) -> None:
            found[at] = work(rows)

        each(keep, enumerate(lanes(len(weight), self.matrix.height, weight.device)), weight.device)
        return [part for _, part in sorted(found.items())]

    def settled(self, mask: Tensor, values: Tensor) -> QTensor:
        """The best there is for a mask, row by row on what was kept aside.

        Args:
            mask: where weights are kept, `[out, columns]`.
            values: what they might be; float, zero elsewhere.
        """
        parts = self.parts(lambda rows: self._settled(mask[rows], values[rows], rows))
        if self.matrix.is_float:
            return self.matrix.on_grid(torch.cat([part.dequantize() for part in parts]))
        return stacked(parts, tuple(values.shape))

    def _settled(self, mask: Tensor, values: Tensor, rows: slice) -> QTensor:
        aim, weight = self.aim[rows], self.matrix.weight[rows]
        values = values * mask
        better = refined(values, aim, mask, self.moment.gram, self.effort.refine)
        found = torch.stack([better, values, weight * mask])
        losses = torch.stack([self._judge.loss(choice, rows) for choice in found])
        values = found.gather(0, losses.argmin(0).expand_as(found[0].T).T[None])[0]
        plain = self.matrix.on_grid(values, rows)
        if self.matrix.is_float or plain.grid.dtype.bits > _FINE or plain.grid.dtype.is_cast:
            return plain
        return self._swept(plain, mask, values, rows)

    def _swept(self, plain: QTensor, mask: Tensor, values: Tensor, rows: slice) -> QTensor:
        """Codes of some rows whose errors cancel, where that is better than the nearest ones."""
        moment, aim, scales = self.moment, self.aim[rows], plain.qparams
        codes = rounded_on_support(values, aim, mask, scales, moment)
        work = Columns(aim, scales, moment.order, moment.feedback, 0.0, mask)
        codes = work.swept(codes, moment.gram, self.effort.sweeps)
        for _ in range(_REFITS.get(plain.grid.dtype.bits, 0) if can_refit(scales) else 0):
            scales = refit(work.values(codes), aim, moment.gram, scales)
            work = Columns(aim, scales, moment.order, moment.feedback, 0.0, mask)
            codes = work.swept(codes, moment.gram, 1)
        found = [plain, QTensor.from_codes(codes, scales)]
        losses = torch.stack([self._judge.loss(choice.dequantize(), rows) for choice in found])
        return mixed(found, best(losses, plain.block[0]))
