# SPDX-License-Identifier: Apache-2.0
"""Numbers of at most eight bytes, recognised in one 64-bit word each: most numbers in most tables are that short."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


def _each(byte: int) -> np.uint64:
    """A word of eight equal bytes."""
    return np.uint64(byte * 0x0101010101010101)


_HIGH, _ZEROS, _SIX, _POINTS, _LOW = (_each(byte) for byte in (0xF0, 0x30, 0x06, 0x2E, 0x7F))
_KEPT = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_PADDED = ~_KEPT & _ZEROS
_ONE, _SEVEN, _BYTE, _FIRST, _FLIP = (np.uint64(number) for number in (1, 7, 8, 0xFF, 0x2E ^ 0x30))


def words_of(view: NDArray[np.uint8]) -> Words:
    """The eight bytes that begin at each position, the first of them lowest; no copy is made."""
    return np.ndarray((max(0, len(view) - 7),), "<u8", view, strides=(1,))


def all_digits(word: Words) -> NDArray[np.bool_]:
    """Whether all eight bytes are digits."""
    found: NDArray[np.bool_] = ((word & _HIGH) == _ZEROS) & (((word + _SIX) & _HIGH) == _ZEROS)
    return found


def short_numbers(word: Words, size: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which words begin with a plain number of the given size, and which of those have a decimal point.

    Args:
        word: eight bytes each, shape (n,).
        size: how many of them count, 1 to 8, shape (n,).

    Numbers with an exponent are not looked for.

    >>> word = words_of(np.frombuffer(b"-0.5,xxx42,xxxxx007,xxxx", np.uint8))[[0, 8, 16]]
    >>> [found.tolist() for found in short_numbers(word, np.array([4, 2, 3]))]
    [[True, True, False], [True, False, False]]
    """
    minus = (word & _FIRST) == ord("-")
    word, size = np.where(minus, word >> _BYTE, word), size - minus
    word = (word & _KEPT[size]) | _PADDED[size]
    other = word ^ _POINTS
    points = ~(((other & _LOW) + _LOW) | other | _LOW)  # the top bit of each byte that is a point
    pointed = points != 0
    digits = all_digits(word ^ ((points >> _SEVEN) * _FLIP)) & ((points & (points - _ONE)) == 0)
    padded = ((word & _FIRST) == ord("0")) & (size > 1) & (((word >> _BYTE) & _FIRST) != ord("."))
    return digits & ~padded & (size > pointed), pointed
