# SPDX-License-Identifier: Apache-2.0
"""Columns of a weight, rounded one after the other: what each loses is handed on to those that come after it.

With U the upper Cholesky factor of H⁻¹ in the order of the columns, the best the columns after j can do about the error
e of column j is to move by -e U[j, after] / U[j, j] (E. Frantar et al., 2022). Columns are taken in panels: within one
they are corrected at once, what it did to all others follows in one product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Integer
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import dequantize, fake_quantize, quantize
from fewbit.numerics.rounding import RoundType

_PANEL = 128
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
    """U, float32, upper triangular: Uᵀ U is the inverse of the damped second moment, columns in their order.

    Returns:
        U, and the damping that made it one; raised where the one asked for did not.
    """
    ordered = gram[columns][:, columns].double()
    dead = ordered.diagonal() <= 0
    ordered.diagonal()[dead] = 1.0  # nothing that is known speaks for or against such a column
    mean = ordered.diagonal()[~dead].mean() if bool((~dead).any()) else ordered.new_ones(())
    eye = torch.eye(len(ordered), dtype=ordered.dtype, device=ordered.device)
    for time in range(_TIMES):
        now = damping * _RAISE**time
        lower, failed = torch.linalg.cholesky_ex(ordered + now * mean * eye)
        if not int(failed):
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not int(failed):
                return upper.float(), now
    return eye.float(), float("inf")


class Columns:
    """A weight whose columns are rounded one after the other.

    Args:
        weight: `[out, in]`.
        scales: of its blocks; they stay as they are.
        order: of the columns.
        upper: of `factor`.
        damping: that made it.
    """

    def __init__(self, weight: Tensor, scales: QParams, order: Tensor, upper: Tensor, damping: float):
        self._scales, self._order, self._upper = scales, order, upper
        self._whole = weight
        blocks = Blocks(tuple(weight.shape), scales.block[:2])
        ones = blocks.lay(torch.ones_like(weight))
        # Columns lie together: rows of the transposed weight.
        self._step = self._columns(ones * blocks.over(_flat(scales.step)))
        zero = scales.zero_point
        self._zero = None if zero is None else self._columns(ones * blocks.over(_flat(zero)))
        self._damping = damping

    def _columns(self, laid: Tensor) -> Tensor:
        return laid.reshape(self._whole.shape).T[self._order].contiguous()

    def rounded(self) -> Tensor:
        """The codes, `[out, in]`."""
        left = self._whole.T[self._order].contiguous()
        done = torch.empty_like(left)
        for start in range(0, len(left), _PANEL):
            end = min(start + _PANEL, len(left))
            lost = torch.empty_like(left[start:end])
            for at in range(start, end):
                done[at] = self._nearest(left[at], at)
                lost[at - start] = (left[at] - done[at]) / self._upper[at, at]
                if at + 1 < end:
                    left[at + 1 : end].addr_(self._upper[at, at + 1 : end], lost[at - start], alpha=-1)
            if end < len(left):
                left[end:].addmm_(self._upper[start:end, end:].T, lost, alpha=-1)
        return self._codes(done)

    def swept(self, codes: Tensor, gram: Tensor, sweeps: int) -> Tensor:
        """Codes of which each is the best for what the others are, as far as so many sweeps bring them."""
        ordered = gram[self._order][:, self._order]
        ordered = ordered + self._damping * ordered.diagonal().mean() * torch.eye(len(ordered), device=gram.device)
        done = self._values(codes)
        slope = ordered @ (done - self._whole.T[self._order])
        for _ in range(sweeps):
            for start in range(0, len(done), _PANEL):
                end = min(start + _PANEL, len(done))
                near, before = slope[start:end].clone(), done[start:end].clone()
                for at in range(start, end):
                    best = self._nearest(done[at] - near[at - start] / ordered[at, at], at)
                    near.addr_(ordered[start:end, at], best - done[at])
                    done[at] = best
                slope.addmm_(ordered[:, start:end], done[start:end] - before)
        return self._codes(done)

    def _nearest(self, column: Tensor, at: int) -> Tensor:
        """The values of the grid nearest to a column's."""
        grid, step = self._scales.grid, self._step[at]
        if isinstance(grid.dtype.value, Integer) and grid.rounding is RoundType.half_even and not grid.float_zero:
            codes = (column / step).round_()
            low, high = grid.dtype.lowest, grid.dtype.highest
            if self._zero is None:
                return codes.clamp_(low, high).mul_(step)
            zero = self._zero[at]
            return codes.add_(zero).clamp_(low, high).sub_(zero).mul_(step)
        return fake_quantize(column[:, None], self._scales_of(at))[:, 0]

    def _scales_of(self, at: int) -> QParams:
        zero = None if self._zero is None else self._zero[at][:, None]
        return QParams(self._scales.grid, (1, 1), self._step[at][:, None], zero)

    def _codes(self, done: Tensor) -> Tensor:
        """The codes of values that lie on the grid, `[out, in]`."""
        found = torch.empty_like(done)
        found[self._order] = done
        flat = QParams(self._scales.grid, (1, 1), *self._in_place())
        return quantize(found.T.contiguous(), flat)

    def _values(self, codes: Tensor) -> Tensor:
        flat = QParams(self._scales.grid, (1, 1), *self._in_place())
        return dequantize(codes, flat).T[self._order].contiguous()

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
