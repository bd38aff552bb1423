# SPDX-License-Identifier: Apache-2.0
"""Rotation (QuaRot, Ashkboos et al., arXiv 2404.00456): Hadamard matrices spread outlier channels over all channels.

The rotations are multiplied into the weights, so they cost nothing at run time. Groups that share a power of two lose
by outliers from other groups (arXiv 2511.04214): there only the channels of a group are mixed. Groups with scales under
a global scale, as in NVFP4, hold their outliers alone (arXiv 2509.23202) and are not rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isqrt, sqrt
from typing import Any

import numpy as np

from fewbit.algorithms._base import Rotation, RotationProblem
from fewbit.errors import UsageError
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.rounding import uniform


class RandomizedHadamard:
    """Spreads outlier channels by randomized Hadamard matrices; for 4-bit activations."""

    name = "rotation"
    stage = "rotation"
    statistics: frozenset[str] = frozenset()
    requires = None
    settings: Mapping[str, Any] = {"block": None, "seed": 0}

    def rotate(self, problem: RotationProblem, *, block: int | None = None, seed: int = 0) -> Rotation:
        """Rotations of a residual stream and of value heads.

        Args:
            problem: their sizes and grids.
            block: channels that are mixed with one another; by default all, or those of an MX group.
            seed: of the random signs.

        >>> ALGORITHM.rotate(RotationProblem(576, heads=[64])).facts
        {'block': 576, 'heads': {64: 64}}
        """
        if block is not None and block < 1:
            raise UsageError(
                f"block = {block!r} for rotation", code="rotation-block", where="block",
                expected="a number of channels", hint="block=32",
            )  # fmt: skip
        if block is None and problem.grids and all(grid.two_level for grid in problem.grids):
            return Rotation(None, {}, {"reason": "small groups under a global scale hold their outliers alone"})
        block = block or min([_mixed_channels(grid) for grid in problem.grids], default=problem.width)
        stream, stream_block = spreading_matrix(problem.width, block, centered=problem.centered, seed=seed)
        heads = {size: spreading_matrix(size, block, seed=seed + 1) for size in sorted(set(problem.heads))}
        facts = {"block": stream_block, "heads": {size: order for size, (_, order) in heads.items()}}
        return Rotation(stream, {size: matrix for size, (matrix, _) in heads.items()}, facts)


def spreading_matrix(width: int, block: int, *, centered: bool = False, seed: int = 0) -> tuple[np.ndarray, int]:
    """An orthogonal matrix with Hadamard blocks on its diagonal, and the order of the blocks.

    Args:
        width: of the matrix.
        block: largest order of a block; the largest with a Hadamard matrix that divides this and the width is taken.
        centered: preserve the mean of the channels: H D Hᵀ with signs D instead of D H.
        seed: of the signs.

    >>> matrix, order = spreading_matrix(12, 12)
    >>> order, bool(np.allclose(matrix @ matrix.T, np.eye(12)))
    (12, True)
    """
    block = min(block, width)
    orders = [order for order in range(block, 0, -1) if width % order == 0 and block % order == 0]
    order = next(order for order in orders if hadamard(order) is not None)
    basis = hadamard(order)
    assert basis is not None
    signs = np.where(uniform((width,), seed, np.zeros(1)) < 0.5, -1.0, 1.0)
    if centered:
        signs[::order] = 1.0  # of the direction (1, …, 1), the first row of every block
    matrix = np.zeros((width, width))
    for start in range(0, width, order):
        part, own = slice(start, start + order), signs[start : start + order]
        scaled = basis / sqrt(order)
        matrix[part, part] = (scaled * own) @ scaled.T if centered else own[:, None] * scaled
    return matrix, order


@cache
def hadamard(order: int) -> np.ndarray | None:
    """A matrix of ±1 with orthogonal rows, the first row and column all 1; `None` if no formula here gives one.

    Powers of two are Sylvester's; the rest of an order is Paley's (1933): a prime plus one, or twice that.

    >>> hadamard(2).tolist(), hadamard(18)
    ([[1.0, 1.0], [1.0, -1.0]], None)
    """
    if order < 1:
        return None
    if order & (order - 1) == 0:
        return np.ones((1, 1)) if order == 1 else np.kron(_half(order), np.array([[1.0, 1.0], [1.0, -1.0]]))
    matrix = _paley(order)
    if matrix is None and order % 2 == 0 and (half := hadamard(order // 2)) is not None:
        matrix = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), half)
    return matrix


def _half(order: int) -> np.ndarray:
    half = hadamard(order // 2)
    assert half is not None
    return half


def _paley(order: int) -> np.ndarray | None:
    """From quadratic residues modulo a prime q: order q + 1 if q = 3 modulo 4, 2 (q + 1) if q = 1 modulo 4."""
    if order % 4 == 0 and _is_prime(order - 1):
        return _normalized(_residues(order - 1, -1.0) + np.eye(order))
    half = order // 2
    if order % 4 == 0 and half % 4 == 2 and _is_prime(half - 1):
        matrix = np.kron(_residues(half - 1, 1.0), np.array([[1.0, 1.0], [1.0, -1.0]]))
        return _normalized(matrix + np.kron(np.eye(half), np.array([[1.0, -1.0], [-1.0, -1.0]])))
    return None


def _residues(prime: int, side: float) -> np.ndarray:
    """±1 where the difference of row and column is a square modulo the prime or not, 0 on the diagonal; bordered."""
    numbers = np.arange(prime)
    character = np.full(prime, -1.0)
    character[numbers * numbers % prime] = 1.0
    character[0] = 0.0
    matrix = np.zeros((prime + 1, prime + 1))
    matrix[1:, 1:] = character[(numbers[:, None] - numbers) % prime]
    matrix[0, 1:], matrix[1:, 0] = 1.0, side
    return matrix


def _normalized(matrix: np.ndarray) -> np.ndarray:
    """With a first row and column of 1."""
    matrix = matrix * matrix[:1]
    return np.asarray(matrix * matrix[:, :1])


def _is_prime(number: int) -> bool:
    return number > 2 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def _mixed_channels(grid: QuantizationGrid) -> int:
    """How many channels may be mixed for a grid."""
    grouped = grid.granularity is QSchemeType.per_group and grid.group_size > 0
    return grid.group_size if grouped and grid.scale_type.is_power else 1 << 62


ALGORITHM = RandomizedHadamard()
