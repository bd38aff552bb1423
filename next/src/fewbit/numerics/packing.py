# SPDX-License-Identifier: Apache-2.0
"""Integers that do not fill bytes, as bytes: element 0 in the lowest bits of byte 0, along the last axis, no gaps.

A few integers fill a few bytes exactly: eight of 3 bits three bytes, two of 4 bits one. All of such a group move at
once inside one machine word, in steps that double their distance; a compiler gets plain shifts, which it can fuse.
"""

from __future__ import annotations

from math import gcd, prod

import numpy as np

from fewbit.numerics.ops import (
    NUMPY_CHUNK,
    Array,
    bitcast,
    cast,
    empty,
    is_compiling,
    is_numpy,
    namespace,
    on_cpu,
    pad_end,
)  # fmt: skip

_CHUNK = 4 * NUMPY_CHUNK  # bytes, and integers of one byte
_WORDS = {2: "int16", 4: "int32", 8: "int64"}


def pack(integers: Array, bits: int) -> Array:
    """Integers `[…, n]` as bytes `[…, ceil(n * bits / 8)]`; 8, 16 and 32 bits come back as they are.

    Args:
        integers: of one byte each, signed or not; only their lowest bits count.
        bits: 1 to 8, 16 or 32.

    >>> import numpy as np
    >>> pack(np.array([1, -1, 7], np.int8), 4).tolist()
    [241, 7]
    """
    if bits in (8, 16, 32):
        return integers
    n = integers.shape[-1]
    if _in_one_piece(integers):
        return _pack(integers, bits)
    packed = empty((*integers.shape[:-1], -(-n * bits // 8)), integers, "uint8")
    wide, narrow = _as_rows(integers, packed, bits)
    step = max(_CHUNK // wide.shape[-1], 1)
    for start in range(0, len(wide), step):
        narrow[start : start + step] = _pack(wide[start : start + step], bits)
    return packed


def unpack(packed: Array, bits: int, n: int, *, signed: bool) -> Array:
    """The inverse of `pack`: `n` integers along the last axis, int8 or uint8.

    >>> import numpy as np
    >>> unpack(np.array([241, 7], np.uint8), 4, 3, signed=True).tolist()
    [1, -1, 7]
    """
    if bits in (8, 16, 32):
        return packed
    if _in_one_piece(packed):
        return _unpack(packed, bits, n, signed)
    integers = empty((*packed.shape[:-1], n), packed, "int8" if signed else "uint8")
    wide, narrow = _as_rows(integers, packed, bits)
    step = max(_CHUNK // wide.shape[-1], 1)
    for start in range(0, len(wide), step):
        wide[start : start + step] = _unpack(narrow[start : start + step], bits, wide.shape[-1], signed)
    return integers


def _in_one_piece(x: Array) -> bool:
    return not on_cpu(x) or is_compiling(x) or prod(x.shape) <= _CHUNK


def _as_rows(integers: Array, packed: Array, bits: int) -> tuple[Array, Array]:
    """Both as `[rows, …]`, each row complete bytes: short rows if the tensor's rows end with a byte, else those."""
    count, size = _group(bits)
    if integers.shape[-1] % count == 0:
        return integers.reshape((-1, count)), packed.reshape((-1, size))
    return integers.reshape((-1, integers.shape[-1])), packed.reshape((-1, packed.shape[-1]))


def _group(bits: int) -> tuple[int, int]:
    """The fewest integers that fill complete bytes, and how many bytes."""
    shared = gcd(bits, 8)
    return 8 // shared, bits // shared


def _pack(integers: Array, bits: int) -> Array:
    (count, _), n = _group(bits), integers.shape[-1]
    integers = bitcast(cast(integers, "int8") if integers.dtype.itemsize > 1 else integers, "uint8")
    integers = pad_end(integers, [0] * (integers.ndim - 1) + [-n % count])
    pack_groups = _pack_by_shifts if _by_shifts(integers) else _pack_by_words
    groups = pack_groups(integers.reshape((*integers.shape[:-1], integers.shape[-1] // count, count)), bits)
    return groups.reshape((*groups.shape[:-2], groups.shape[-2] * groups.shape[-1]))[..., : -(-n * bits // 8)]


def _unpack(packed: Array, bits: int, n: int, signed: bool) -> Array:
    count, size = _group(bits)
    groups = -(-n // count)
    packed = pad_end(packed, [0] * (packed.ndim - 1) + [max(groups * size - packed.shape[-1], 0)])
    parts = packed.reshape((*packed.shape[:-1], groups, size))
    integers = (_unpack_by_shifts if _by_shifts(parts) else _unpack_by_words)(parts, bits)
    integers = integers.reshape((*parts.shape[:-2], groups * count))[..., :n]
    if not signed:
        return integers
    sign = 1 << (bits - 1)  # flipping the sign bit and subtracting it extends the sign
    return (bitcast(integers, "int8") ^ sign) - sign


def _by_shifts(x: Array) -> bool:
    return is_compiling(x) or prod(x.shape) == 0  # an empty array cannot be viewed as words


def _pack_by_words(groups: Array, bits: int) -> Array:
    """Integers `[…, groups, count]` as bytes `[…, groups, size]`."""
    count, size = _group(bits)
    word = bitcast(_aligned(groups, count), _WORDS[count])
    spacing, width = 8, bits
    while spacing < 8 * count:  # pairs of neighbors close up, then pairs of pairs
        low = _fields((1 << width) - 1, 2 * spacing, 4 * count // spacing)
        word = (word & low) | ((word >> (spacing - width)) & (low << width))
        spacing, width = 2 * spacing, 2 * width
    return cast(word & 0xFF, "uint8") if size == 1 else bitcast(word, "uint8")[..., :size]


def _unpack_by_words(parts: Array, bits: int) -> Array:
    """Bytes `[…, groups, size]` as integers `[…, groups, count]`."""
    count, size = _group(bits)
    if size == 1:
        word = cast(parts, _WORDS[count])
    else:
        word = bitcast(_aligned(pad_end(parts, [0] * (parts.ndim - 1) + [count - size]), count), _WORDS[count])
    spacing, width = 8 * count, bits * count
    while spacing > 8:  # halves move apart, then halves of halves
        spacing, width = spacing // 2, width // 2
        low = _fields((1 << width) - 1, 2 * spacing, 4 * count // spacing)
        word = (word & low) | ((word << (spacing - width)) & (low << spacing))
    return bitcast(word, "uint8")


def _fields(mask: int, spacing: int, count: int) -> int:
    """A mask repeated at equal distances."""
    return sum(mask << (spacing * index) for index in range(count))


def _aligned(x: Array, size: int) -> Array:
    """The same array, contiguous, at an address where words of `size` bytes can be read."""
    if is_numpy(x):
        # An axis of length 1 may have any stride; a copy has its own.
        return x if x.flags.c_contiguous and x.strides[-1] == x.itemsize else np.array(x, order="C")
    x = x.contiguous()
    return x.clone() if x.storage_offset() % size or x.stride(-1) != 1 else x


def _pack_by_shifts(groups: Array, bits: int) -> Array:
    """Integers `[…, groups, count]` as bytes `[…, groups, size]`."""
    count, size = _group(bits)
    wide = cast(groups, "int32") & ((1 << bits) - 1)
    parts = []
    for byte in range(size):
        inside = [element for element in range(count) if -bits < element * bits - 8 * byte < 8]
        parts.append(_overlay([wide[..., e] for e in inside], [e * bits - 8 * byte for e in inside]) & 0xFF)
    return cast(namespace(groups).stack(parts, -1), "uint8")


def _unpack_by_shifts(parts: Array, bits: int) -> Array:
    """Bytes `[…, groups, size]` as integers `[…, groups, count]`."""
    count, _ = _group(bits)
    wide, integers = cast(parts, "int32"), []
    for element in range(count):
        inside = range(element * bits // 8, (element * bits + bits - 1) // 8 + 1)
        moved = _overlay([wide[..., b] for b in inside], [8 * b - element * bits for b in inside])
        integers.append(moved & ((1 << bits) - 1))
    return cast(namespace(parts).stack(integers, -1), "uint8")


def _overlay(parts: list[Array], shifts: list[int]) -> Array:
    """The parts, each shifted left (right if negative), combined."""
    moved = [part << shift if shift >= 0 else part >> -shift for part, shift in zip(parts, shifts)]
    combined = moved[0]
    for part in moved[1:]:
        combined = combined | part
    return combined
