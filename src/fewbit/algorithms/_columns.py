# SPDX-License-Identifier: Apache-2.0
"""Columns of a weight, rounded one after the other: what each loses is made up for by those that come after it.

H = (I + F) D (I + F)ᵀ, F strictly upper triangular, the columns in their order. With e the errors of the columns
before column k, the best it can be rounded from is w[k] + e F[:, k] (J. Chee et al., 2023; the same that E. Frantar et
al., 2022, find from the factor of H⁻¹). Columns are taken in panels: what those before it did to a panel comes in one
product. Within a panel every operation is on one column, so what counts is how few there are, and rows of tensors that
are taken apart only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Dtype, Integer
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import dequantize, fake_quantize, quantize
from fewbit.numerics.rounding import RoundType

PANEL = 64
"""Columns that are taken together; a kernel holds no more."""
_BEYOND = 1e30
_RAISE, _TIMES = 10.0, 6  # where the damping is not enough, by how much it is raised, and how often


def in_order(gram: Tensor, width: int) -> Tensor:
    """The order in which columns are rounded: of a group those that matter most first, groups by the one that does.

    A group is done before the next one begins, so its scale is used while its columns are what they were found for.

    >>> in_order(torch.diag(torch.tensor([1.0, 2.0, 9.0, 3.0])), 2)
    tensor([2, 3, 1, 0])
    """
    weight = gram.diagonal()
    group = torch.arange(len(weight), device=weight.device) // max(1, width)
    most = torch.zeros(int(group[-1]) + 1, device=weight.device).scatter_reduce_(0, group, weight, "amax")
    inner = torch.argsort(weight, descending=True, stable=True)
    # By group, in the order of their most important columns; a stable sort keeps the order within a group.
    rank = torch.argsort(torch.argsort(most, descending=True, stable=True), stable=True)
    return inner[torch.argsort(rank[group[inner]], stable=True)]


def factor(gram: Tensor, columns: Tensor, damping: float) -> tuple[Tensor, float]:
    """F of the damped second moment, its columns in their order; float32, strictly upper triangular.

    Returns:
        F, and the damping that made it one; raised where the one asked for did not.
    """
    feedback, _, used = factors(gram, columns, damping)
    return feedback, used


def factors(gram: Tensor, columns: Tensor, damping: float) -> tuple[Tensor, Tensor, float]:
    """F and D of the damped second moment, its columns in their order; float32.

    Returns:
        F, strictly upper triangular; the diagonal of D: what the error of a column costs that those after it have made
        up for; and the damping that made them, raised where the one asked for did not.
    """
    backwards = columns.flip(0)  # from the last column on, so that the factor is upper triangular
    damped = gram[backwards][:, backwards].double()
    diagonal = damped.diagonal()
    dead = diagonal <= 0
    diagonal[dead] = 1.0  # nothing that is known speaks for or against such a column
    mean = diagonal[~dead].mean() if bool((~dead).any()) else damped.new_ones(())
    added = 0.0
    for time in range(_TIMES):
        now = damping * _RAISE**time
        diagonal.add_((now - added) * mean)
        added = now
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            upper = lower.float().flip(0, 1)
            sizes = upper.diagonal().clone()
            return upper.div_(sizes).triu_(1), sizes.square_(), now
    left = gram.diagonal()[columns].float().clamp(min=0) + float(mean)
    return torch.zeros_like(gram, dtype=torch.float32), left, float("inf")


class Columns:
    """A weight whose columns are rounded one after the other.

    Args:
        weight: `[out, in]`.
        scales: of its blocks; they stay as they are.
        order: of the columns.
        feedback: F of `factor`.
        damping: that made it.
        mask: where elements may be other than zero, `[out, in]`; none where all may.
    """

    def __init__(
        self,
        weight: Tensor,
        scales: QParams,
        order: Tensor,
        feedback: Tensor,
        damping: float,
        mask: Tensor | None = None,
    ):
        self._scales, self._order, self._feedback = scales, order, feedback
        self._whole = weight
        blocks = Blocks(tuple(weight.shape), scales.block[:2])
        ones = blocks.lay(torch.ones_like(weight))
        # Columns lie together: rows of the transposed weight.
        self._step = self._columns(ones * blocks.over(_flat(scales.step)))
        zero = scales.zero_point
        self._zero = None if zero is None else self._columns(ones * blocks.over(_flat(zero)))
        self._damping = damping
        self._code_type = _code_type(scales.grid)
        self._mask = None if mask is None else mask.T[order].to(weight.dtype).contiguous()

    def _columns(self, laid: Tensor) -> Tensor:
        return laid.reshape(self._whole.shape).T[self._order].contiguous()

    def rounded(self) -> Tensor:
        """The codes, `[out, in]`."""
        aim = self._whole.T[self._order].contiguous()
        done, lost = torch.empty_like(aim), torch.empty_like(aim)
        for start, end in self._panels():
            near = torch.addmm(aim[start:end], self._feedback[:start, start:end].T, lost[:start])
            before = self._feedback[start:end, start:end].T.contiguous()
            done[start:end], lost[start:end] = self._panel(start, near, before, aim[start:end])
        return self._codes(done)

    def swept(self, codes: Tensor, gram: Tensor, sweeps: int) -> Tensor:
        """Codes of which each is the best for what the others are, as far as so many sweeps bring them."""
        ordered = gram[self._order][:, self._order]
        ordered.diagonal().add_(self._damping * ordered.diagonal().mean())
        size = ordered.diagonal().clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        done = self.values(codes).T[self._order].contiguous()
        slope = ordered @ (done - self._whole.T[self._order])
        for _ in range(sweeps):
            for start, end in self._panels():
                # A column moves by its slope over its size; that of the next ones changes by how far it moved.
                near = done[start:end] - slope[start:end] / size[start:end]
                before = (ordered[start:end, start:end] / size[start:end]).tril_(-1)
                done[start:end], back = self._panel(start, near, before, done[start:end])
                slope.addmm_(ordered[:, start:end], back, alpha=-1)
        return self._codes(done)

    def _panels(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self._whole.shape[1], PANEL):
            yield start, min(start + PANEL, self._whole.shape[1])

    def _panel(self, start: int, near: Tensor, before: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        """Round the columns of a panel one after the other.

        Args:
            start: the first of them.
            near: what they are rounded from, but for the columns of the panel before them.
            before: what each of these adds, over its error; strictly lower triangular.
            base: what errors are counted from.

        Returns:
            The values, and the errors: base less values.
        """
        step, zero = (None if x is None else x[start : start + len(near)] for x in (self._step, self._zero))
        assert step is not None
        if self._code_type is not None and (kernel := _kernel(near)) is not None:
            if self._mask is not None:  # in such steps everything is nearest to zero
                step = step.masked_fill(self._mask[start : start + len(near)] == 0, _BEYOND)
            found: tuple[Tensor, Tensor] = kernel.panel(near, before, base, step, zero, self._code_type)
            return found
        values, errors = torch.empty_like(near), torch.zeros_like(near)
        snap = self._snap_integers if isinstance(self._code_type, tuple) else self._snap_others
        if self._scales.grid.dtype.is_cast:
            snap = self._as_it_is
        zeros: Sequence[Tensor | None] = [None] * len(near) if zero is None else zero.unbind()
        columns = zip(near.unbind(), values.unbind(), before.unbind(), base.unbind(), errors.unbind())
        scales = zip(step.unbind(), step.reciprocal().unbind(), zeros)
        masks = [None] * len(near) if self._mask is None else self._mask[start : start + len(near)].unbind()
        for (column, row, share, wish, error), (size, inverse, offset), mask in zip(columns, scales, masks):
            column.addmv_(errors.T, share)
            snap(column, size, inverse, offset, row)
            if mask is not None:
                row.mul_(mask)
            torch.sub(wish, row, out=error)
        return values, errors

    def _snap_integers(self, column: Tensor, step: Tensor, inverse: Tensor, zero: Tensor | None, out: Tensor) -> None:
        """Put the values of the grid nearest to a column's into `out`."""
        low, high = self._scales.grid.dtype.lowest, self._scales.grid.dtype.highest
        torch.mul(column, inverse, out=out)
        if zero is None:
            out.round_().clamp_(low, high).mul_(step)
        else:
            out.round_().add_(zero).clamp_(low, high).sub_(zero).mul_(step)

    def _snap_others(self, column: Tensor, step: Tensor, _: Tensor, zero: Tensor | None, out: Tensor) -> None:
        scales = QParams(self._scales.grid, (1, 1), step[:, None], None if zero is None else zero[:, None])
        out.copy_(fake_quantize(column[:, None], scales)[:, 0])

    def _as_it_is(self, column: Tensor, step: Tensor, inverse: Tensor, zero: Tensor | None, out: Tensor) -> None:
        out.copy_(column)

    def _codes(self, done: Tensor) -> Tensor:
        """The codes of values that lie on the grid, `[out, in]`."""
        found = torch.empty_like(done)
        found[self._order] = done
        flat = QParams(self._scales.grid, (1, 1), *self._in_place())
        return quantize(found.T.contiguous(), flat)

    def values(self, codes: Tensor) -> Tensor:
        """What codes stand for, `[out, in]`."""
        return dequantize(codes, QParams(self._scales.grid, (1, 1), *self._in_place()))

    def _in_place(self) -> tuple[Tensor, Tensor | None]:
        """Steps and zero points of every element, columns where they were."""
        found = []
        for part in (self._step, self._zero):
            if part is not None:
                whole = torch.empty_like(part)
                whole[self._order] = part
                found.append(whole.T.contiguous())
        return found[0], (found[1] if len(found) > 1 else None)


def _flat(part: Tensor) -> Tensor:
    """Scales of blocks as `[out blocks, in blocks]`."""
    return part.reshape(part.shape[:2])


def _code_type(grid: Grid) -> tuple[int, int] | str | None:
    """What a grid's codes are, where that is simple: the lowest and highest integer, or `"e2m1"`."""
    if grid.rounding is not RoundType.half_even or grid.float_zero:
        return None
    if isinstance(grid.dtype.value, Integer):
        return int(grid.dtype.lowest), int(grid.dtype.highest)
    return "e2m1" if grid.dtype is Dtype.fp4 else None


def _kernel(x: Tensor) -> ModuleType | None:
    return _cuda() if x.is_cuda else None


@cache
def _cuda() -> ModuleType | None:
    """The same as one kernel a panel; none where there is no compiler for it."""
    return import_module("fewbit.algorithms._columns_cuda") if find_spec("triton") else None
