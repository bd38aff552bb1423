# SPDX-License-Identifier: Apache-2.0
"""Rounding with error feedback: the columns of a weight are rounded one by one, later ones make up for earlier errors.

With the second moment of the inputs written as H = U D Uᵀ, U unit upper triangular, the output error of a row is

    (w - q) H (w - q)ᵀ = Σₖ Dₖ (eₖ + Σ_{j<k} eⱼ Uⱼₖ)²,   e = w - q,

so rounding wₖ + Σ_{j<k} eⱼ Uⱼₖ to the grid makes each term as small as the grid allows. This is GPTQ.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

_PANEL = 64
"""Columns rounded between two matrix products."""

Rounding = Callable[[Tensor], Tensor]
"""Maps values in units of the scale to the nearest values of the grid, in place if it likes."""


def round_columns(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    rounding: Rounding,
    order: Tensor,
    feedback: Tensor,
    *,
    group: int,
    integer: tuple[int, int] | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Round a weight column by column and let later columns make up for the errors of earlier ones.

    Args:
        weight: [out, in], float32.
        scale: [out, groups], float32.
        zero_point: of the same shape, float32, or `None` for zero.
        rounding: to the grid, in units of the scale, zero point added.
        order: [in], the order in which columns are rounded.
        feedback: [in, in], from `feedback_matrix`, in that order.
        group: columns that share a scale; the last group may be short.
        integer: lowest and highest integer, if the grid is a range of integers: a GPU then uses one kernel per panel.
        mask: [out, in], false for elements of a pruned weight that stay zero; the others compensate for them too.

    Returns:
        The rounded weight [out, in], on the grid.
    """
    fused = integer is not None and mask is None and weight.is_cuda and find_spec("triton") is not None
    columns = weight.shape[1]
    near = weight.T[order].contiguous()  # [in, out]: a column is contiguous
    values = torch.empty_like(near)
    for start in range(0, columns, _PANEL):
        stop = min(start + _PANEL, columns)
        groups = order[start:stop] // group
        step, base = scale.T[groups], weight.T[order[start:stop]]
        zero = torch.zeros_like(step) if zero_point is None else zero_point.T[groups]
        inside = feedback[start:stop, start:stop]
        if fused and integer is not None:
            from fewbit.algorithms._columns_triton import round_panel

            values[start:stop], errors = round_panel(near[start:stop], base, step, zero, inside, integer)
        else:
            present = None if mask is None else mask.T[order[start:stop]]
            values[start:stop], errors = _round_panel(near[start:stop], base, step, zero, inside, rounding, present)
        if stop < columns:
            near[stop:].addmm_(feedback[start:stop, stop:].T, errors)
    result = torch.empty_like(values)
    result[order] = values
    return result.T.contiguous()


def column_order(hessian: Tensor, group: int) -> Tensor:
    """Groups by the largest second moment in them, columns in a group by theirs, both descending: [in].

    With a short last group the columns stay in place.
    """
    if len(hessian) % group:
        return torch.arange(len(hessian), device=hessian.device)
    inside = hessian.diagonal().unflatten(0, (-1, group))
    groups = inside.amax(1).argsort(descending=True, stable=True)
    return (groups[:, None] * group + inside[groups].argsort(dim=1, descending=True, stable=True)).flatten()


def feedback_matrix(hessian: Tensor, order: Tensor, damping: float) -> Tensor:
    """U - I of H + damping · mean(diag H) · I = U D Uᵀ, columns in their order: [in, in], strictly upper triangular."""
    reverse = order.flip(0)
    upper = damped_cholesky(hessian[reverse][:, reverse], damping).flip(0, 1)
    return upper.div_(upper.diagonal().clone()).triu_(1)


def damped_cholesky(matrix: Tensor, damping: float) -> Tensor:
    """The lower Cholesky factor of a second moment + damping · mean of its diagonal, float32; overwrites `matrix`.

    On a CPU it is computed in float64. A GPU tries float32 first; where a few directions hold most of the energy that
    fails, and float64 does not.
    """
    diagonal = matrix.diagonal()
    mean = diagonal.mean().clamp_min(torch.finfo(torch.float32).tiny)
    diagonal.copy_(torch.where(diagonal > 0, diagonal, mean)).add_(damping * mean)
    if matrix.is_cuda:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not failed.item():
            return factor
        del factor
    wide = matrix.double()
    torch.linalg.cholesky(wide, out=wide)  # in place: a wide layer's matrix takes gigabytes
    return wide.float()


def _round_panel(
    near: Tensor, base: Tensor, step: Tensor, zero: Tensor, feedback: Tensor, rounding: Rounding, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Values and errors of a panel, all [columns, out]."""
    values, errors = torch.empty_like(near), torch.empty_like(near)
    for k in range(len(near)):
        column = near[k] if k == 0 else torch.addmv(near[k], errors[:k].T, feedback[:k, k])
        values[k] = rounding((column / step[k]).add_(zero[k])).sub_(zero[k]).mul_(step[k])
        if mask is not None:
            values[k] *= mask[k]
        errors[k] = base[k] - values[k]
    return values, errors
