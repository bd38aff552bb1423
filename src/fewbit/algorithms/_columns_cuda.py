# SPDX-License-Identifier: Apache-2.0
"""A panel of columns as one kernel: rows do not know each other, so a program takes some rows through all columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_ROWS = 16  # to a program
_COLUMNS = 64  # of a panel at most


def panel(
    near: Tensor, before: Tensor, base: Tensor, step: Tensor, zero: Tensor | None, codes: tuple[int, int] | str
) -> tuple[Tensor, Tensor]:
    """See `Columns._panel`; steps and zero points are those of the panel's elements, `[columns, rows]`."""
    values, errors = torch.empty_like(near), torch.empty_like(near)
    columns, rows = near.shape
    low, high = codes if isinstance(codes, tuple) else (0, 0)
    _kernel[(triton.cdiv(rows, _ROWS),)](
        near.contiguous(), before.contiguous(), base.contiguous(), step.contiguous(),
        step if zero is None else zero.contiguous(), values, errors, rows, columns, low, high,
        HAS_ZERO=zero is not None, INTEGERS=isinstance(codes, tuple), COLUMNS=_COLUMNS, ROWS=_ROWS, num_warps=2,
    )  # fmt: skip
    return values, errors


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    near, before, base, step, zero, values, errors, rows, columns, low, high,
    HAS_ZERO: tl.constexpr, INTEGERS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    mine = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = mine < rows
    place = tl.arange(0, COLUMNS)
    lost = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for at in range(columns):
        share = tl.load(before + at * columns + place, mask=place < at, other=0.0)
        here = at * rows + mine
        x = tl.load(near + here, mask=inside, other=0.0) + tl.sum(lost * share[:, None], axis=0)
        size = tl.load(step + here, mask=inside, other=1.0)
        x = x / size
        if INTEGERS:
            x = libdevice.rint(x)
            if HAS_ZERO:
                offset = tl.load(zero + here, mask=inside, other=0.0)
                x = tl.minimum(tl.maximum(x + offset, low), high) - offset
            else:
                x = tl.minimum(tl.maximum(x, low), high)
        else:  # e2m1: halves below 2, ones below 4, twos up to 6
            far = tl.abs(x)
            unit = tl.where(far < 2.0, 0.5, tl.where(far < 4.0, 1.0, 2.0))
            far = tl.minimum(libdevice.rint(far / unit) * unit, 6.0)
            x = tl.where(x < 0, -far, far)
        x = x * size
        error = tl.load(base + here, mask=inside, other=0.0) - x
        tl.store(values + here, x, mask=inside)
        tl.store(errors + here, error, mask=inside)
        lost = tl.where(place[:, None] == at, error[None, :], lost)
