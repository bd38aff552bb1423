# SPDX-License-Identifier: Apache-2.0
"""Unsigned codes in words of 32 bits, as GPTQ and AWQ keep them, and those words read back bit by bit.

Both formats count codes and zero points from zero and multiply from the right: `[in, out]`, so what fewbit has as
`[out, in]` is transposed. Codes fill words from the lowest bit on, one code's bits may lie in two words (3 bits: 32
codes in 3 words).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor


def to_words(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes `[n, m]` as int32 `[n, m · bits / 32]`; a row fills whole words.

    >>> to_words(torch.tensor([[1, 2, 0, 0, 0, 0, 0, 15]], dtype=torch.uint8), 4).tolist()
    [[-268435423]]
    """
    rows = codes.clone(memory_format=torch.contiguous_format)  # a transposed column calls itself contiguous
    return pack(rows, Dtype[f"uint{bits}"]).contiguous().view(torch.int32)


def from_words(words: Tensor, bits: int) -> Tensor:
    """What `to_words` packed, found without it: every bit by itself, in the order they lie in memory.

    >>> from_words(torch.tensor([[-268435423]], dtype=torch.int32), 4).tolist()
    [[1, 2, 0, 0, 0, 0, 0, 15]]
    """
    raw: Any = np.ascontiguousarray(words.numpy()).astype("<i4", copy=False).view(np.uint8)
    stream = np.unpackbits(raw, axis=1, bitorder="little").reshape(len(raw), raw.shape[1] * 8 // bits, bits)
    codes = stream[..., 0].copy()
    for bit in range(1, bits):
        codes |= stream[..., bit] << bit
    return torch.from_numpy(codes)


def unsigned_codes(weight: QTensor) -> Tensor:
    """A weight's codes `[out, in]`, counted from zero, as uint8."""
    return _from_zero(weight.codes(), weight.grid.dtype)


def unsigned_zeros(weight: QTensor) -> Tensor:
    """The code that means zero in each group, `[out, groups]`, as uint8."""
    zero = weight.zero_point
    if zero is None:
        zero = torch.zeros(weight.scale.shape, dtype=torch.int8)
    return _from_zero(zero, weight.grid.dtype)


def half_scales(weight: QTensor) -> Tensor:
    """The scales `[out, groups]` in float16.

    Raises:
        UsageError: it does not have one of them.
    """
    if not fit_half(weight):
        raise UsageError(
            "a scale that float16 does not have; another would change values",
            expected="scales from 2^-17 to 65280",
            try_="compressed_tensors, which keeps it as it is",
        )
    return weight.qparams.scale.to(torch.float16)


def fit_half(weight: QTensor) -> bool:
    """Whether every scale is a number float16 has: float32 ones hardly ever, bfloat16 ones from 2^-17 up to 65280."""
    scale = weight.qparams.scale
    return bool(torch.equal(scale.to(torch.float16).float(), scale))


def _from_zero(codes: Tensor, dtype: Dtype) -> Tensor:
    lowest = int(dtype.lowest)
    return codes if lowest == 0 else (codes.to(torch.int16) - lowest).to(torch.uint8)
