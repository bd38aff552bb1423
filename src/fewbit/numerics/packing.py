# SPDX-License-Identifier: Apache-2.0
"""Codes that do not fill bytes, as bytes: element 0 in the lowest bits of byte 0, along the last axis, no gaps.

A few codes fill a few bytes exactly: eight of 3 bits three bytes, two of 4 bits one. Two ways lead there, with the same
result. By words, all codes of such a group move at once inside one machine word: the fast way. By shifts, each byte is
put together from its codes: the way that a compiler can fuse with what comes after, and the one for wide codes.
"""

from __future__ import annotations

from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.tiles import TILE, in_one_piece

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_packed(dtype: Dtype) -> bool:
    """Whether codes of a type share bytes."""
    return dtype.bits not in (8, 16, 32)


def pack(codes: Tensor, dtype: Dtype) -> Tensor:
    """Codes `[…, n]` as bytes `[…, ceil(n * bits / 8)]`; types of whole bytes come back as they are.

    >>> pack(torch.tensor([1, -1, 7], dtype=torch.int8), Dtype.int4)
    tensor([241,   7], dtype=torch.uint8)
    """
    if not is_packed(dtype):
        return codes
    n, bits = codes.shape[-1], dtype.bits
    if in_one_piece(codes):
        return _pack(codes, bits)
    packed = torch.empty(*codes.shape[:-1], -(-n * bits // 8), dtype=torch.uint8)
    long, short = _rows(codes, packed, bits)
    step = max(TILE // long.shape[-1], 1)
    for start in range(0, len(long), step):
        short[start : start + step] = _pack(long[start : start + step], bits)
    return packed


def unpack(packed: Tensor, dtype: Dtype, n: int) -> Tensor:
    """The inverse of `pack`: `n` codes along the last axis, in `dtype.storage`."""
    if not is_packed(dtype):
        return packed
    if in_one_piece(packed):
        return _unpack(packed, dtype, n)
    codes = torch.empty(*packed.shape[:-1], n, dtype=dtype.storage)
    long, short = _rows(codes, packed, dtype.bits)
    step = max(TILE // long.shape[-1], 1)
    for start in range(0, len(long), step):
        long[start : start + step] = _unpack(short[start : start + step], dtype, long.shape[-1])
    return codes


def _rows(codes: Tensor, packed: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Both as `[rows, …]`, each row whole bytes: short ones where rows end with a byte, the tensor's own where not."""
    count, size = _group(bits)
    if codes.shape[-1] % count == 0:
        return codes.reshape(-1, count), packed.reshape(-1, size)
    return codes.reshape(-1, codes.shape[-1]), packed.reshape(-1, packed.shape[-1])


def _group(bits: int) -> tuple[int, int]:
    """The fewest codes that fill whole bytes, and how many bytes."""
    shared = gcd(bits, 8)
    return 8 // shared, bits // shared


def _by_shifts(x: Tensor, bits: int) -> bool:
    return bits > 8 or torch.compiler.is_compiling() or x.numel() == 0  # nothing cannot be seen as words


def _pack(codes: Tensor, bits: int) -> Tensor:
    count, _ = _group(bits)
    n = codes.shape[-1]
    codes = codes.reshape(-1).view(codes.shape)  # an axis of one may have any stride, which words do not fit into
    if bits > 8:
        codes = codes.to(torch.int32)  # torch can do little with unsigned 16-bit integers
    elif codes.element_size() > 1:
        codes = codes.to(torch.uint8)
    if n % count:
        codes = F.pad(codes, (0, -n % count))
    if _by_shifts(codes, bits):
        parts = _pack_by_shifts(codes.reshape(*codes.shape[:-1], codes.shape[-1] // count, count), bits)
    else:
        parts = _pack_by_words(codes, bits)
    return parts.flatten(-2)[..., : -(-n * bits // 8)]


def _unpack(packed: Tensor, dtype: Dtype, n: int) -> Tensor:
    bits = dtype.bits
    count, size = _group(bits)
    groups = -(-n // count)
    if packed.shape[-1] < groups * size:
        packed = F.pad(packed, (0, groups * size - packed.shape[-1]))
    parts = packed.contiguous().reshape(*packed.shape[:-1], groups, size)
    codes = (_unpack_by_shifts if _by_shifts(parts, bits) else _unpack_by_words)(parts, bits)
    codes = codes.flatten(-2)[..., :n]
    if dtype.is_integer and dtype.signed:
        sign = 1 << (bits - 1)
        codes = (codes.view(torch.int8) if bits < 8 else codes).bitwise_xor(sign).sub_(sign)
    return codes.to(dtype.storage)


def _pack_by_words(codes: Tensor, bits: int) -> Tensor:
    """Codes `[…, groups * count]` as bytes `[…, groups, size]`."""
    count, size = _group(bits)
    word = _aligned(codes, count).view(_WORDS[count])
    spacing, width = 8, bits
    while spacing < 8 * count:  # pairs of neighbours close up, then pairs of pairs
        low = _fields((1 << width) - 1, 2 * spacing, 4 * count // spacing)
        word = (word & low).bitwise_or_((word >> (spacing - width)).bitwise_and_(low << width))
        spacing, width = 2 * spacing, 2 * width
    return word.to(torch.uint8).unsqueeze(-1) if size == 1 else word.unsqueeze(-1).view(torch.uint8)[..., :size]


def _unpack_by_words(parts: Tensor, bits: int) -> Tensor:
    """Bytes `[…, groups, size]` as codes `[…, groups, count]`."""
    count, size = _group(bits)
    word = parts.to(_WORDS[count]) if size == 1 else F.pad(parts, (0, count - size)).view(_WORDS[count])
    spacing, width = 8 * count, bits * count
    while spacing > 8:  # halves move apart, then halves of halves
        spacing, width = spacing // 2, width // 2
        low = _fields((1 << width) - 1, 2 * spacing, 4 * count // spacing)
        word = (word & low).bitwise_or_((word << (spacing - width)).bitwise_and_(low << spacing))
    return word.view(torch.uint8)


def _fields(mask: int, spacing: int, count: int) -> int:
    """A mask repeated at equal distances."""
    return sum(mask << (spacing * i) for i in range(count))


def _aligned(codes: Tensor, size: int) -> Tensor:
    """The same tensor at an address where words of `size` bytes can be read."""
    codes = codes.contiguous()
    return codes.clone() if codes.storage_offset() % size else codes


def _pack_by_shifts(groups: Tensor, bits: int) -> Tensor:
    """Codes `[…, groups, count]` as bytes `[…, groups, size]`."""
    count, size = _group(bits)
    codes = (groups.to(torch.int32) & ((1 << bits) - 1)).unbind(-1)
    parts = []
    for byte in range(size):
        inside = [e for e in range(count) if -bits < e * bits - 8 * byte < 8]
        parts.append(_overlaid([codes[e] for e in inside], [e * bits - 8 * byte for e in inside]) & 0xFF)
    return torch.stack(parts, -1).to(torch.uint8)


def _unpack_by_shifts(parts: Tensor, bits: int) -> Tensor:
    """Bytes `[…, groups, size]` as codes `[…, groups, count]`."""
    count, _ = _group(bits)
    each = parts.to(torch.int32).unbind(-1)
    codes = []
    for element in range(count):
        inside = range(element * bits // 8, (element * bits + bits - 1) // 8 + 1)
        codes.append(_overlaid([each[b] for b in inside], [8 * b - element * bits for b in inside]) & ((1 << bits) - 1))
    stacked = torch.stack(codes, -1)
    return stacked if bits > 8 else stacked.to(torch.uint8)


def _overlaid(parts: list[Tensor], shifts: list[int]) -> Tensor:
    """The parts shifted left (right, where negative) and put on top of each other."""
    moved = [part << shift if shift >= 0 else part >> -shift for part, shift in zip(parts, shifts)]
    whole = moved[0]
    for part in moved[1:]:
        whole = whole | part
    return whole
