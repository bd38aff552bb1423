# SPDX-License-Identifier: Apache-2.0
"""Round-to-nearest quantization of a weight with symmetric scales: arrays in, arrays out."""

from __future__ import annotations

import numpy as np


def quantize_symmetric(weight: np.ndarray, bits: int, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Round a weight to the nearest integers, one scale per index of an axis.

    Args:
        weight: float array of any shape.
        bits: 2 to 8.
        axis: the output-channel axis, or `None` for one scale.

    Returns:
        The integers, int8, and the scales, float32, of shape [channels] or [].

    >>> quantize_symmetric(np.array([[1.0, -2.0], [0.5, 0.25]], np.float32), 8, 0)[0].tolist()
    [[64, -127], [127, 64]]
    """
    highest = 2 ** (bits - 1) - 1
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.abs(weight).max(axis=others, keepdims=axis is not None)
    scales = np.where(largest > 0, largest / highest, 1).astype(np.float32)
    integers = np.clip(np.rint(weight / scales), -highest, highest).astype(np.int8)
    return integers, scales.reshape(-1) if axis is not None else scales.reshape(())
