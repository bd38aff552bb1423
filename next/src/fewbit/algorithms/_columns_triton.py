# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""One panel of `round_columns` as a GPU kernel: a program holds some rows of the panel in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32
"""Rows of the weight per program."""


def round_panel(
    near: Tensor, base: Tensor, step: Tensor, zero: Tensor, feedback: Tensor, integer: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Values and errors of a panel on a grid of integers, all [columns, out]."""
    columns, rows = near.shape
    tensors = [tensor.contiguous() for tensor in (near, base, step, zero, feedback)]
    values, errors = torch.empty_like(tensors[0]), torch.empty_like(tensors[0])
    _kernel[(triton.cdiv(rows, _ROWS),)](
        *tensors, values, errors, rows, columns, float(integer[0]), float(integer[1]),
        triton.next_power_of_2(columns), _ROWS,
    )  # fmt: skip
    return values, errors


@triton.jit
def _kernel(
    near_at, base_at, step_at, zero_at, feedback_at, values_at, errors_at, rows, columns, low, high,
    PANEL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    column = tl.arange(0, PANEL)
    exists = column < columns
    near = tl.load(near_at + column[:, None] * rows + row[None, :], mask=exists[:, None] & inside[None, :], other=0.0)
    for k in range(columns):
        picked = tl.sum(tl.where((column == k)[:, None], near, 0.0), 0)
        at = k * rows + row
        base = tl.load(base_at + at, mask=inside, other=0.0)
        step = tl.load(step_at + at, mask=inside, other=1.0)
        zero = tl.load(zero_at + at, mask=inside, other=0.0)
        bounded = tl.minimum(tl.maximum(picked / step + zero, low), high)
        # adding and subtracting 1.5 * 2^23 rounds to the nearest integer, halves to even
        value = (((bounded + 12582912.0) - 12582912.0) - zero) * step
        error = base - value
        tl.store(values_at + at, value, mask=inside)
        tl.store(errors_at + at, error, mask=inside)
        weights = tl.load(feedback_at + k * columns + column, mask=exists, other=0.0)
        near += weights[:, None] * error[None, :]
