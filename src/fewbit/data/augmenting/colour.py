# SPDX-License-Identifier: Apache-2.0
"""Other light: brightness, contrast and saturation of a picture."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIGHT = np.array([0.299, 0.587, 0.114], np.float32)


def jitter(pixels: NDArray[np.uint8], strength: float, rng: random.Random) -> NDArray[np.uint8]:
    """A picture `(H, W)` or `(H, W, channels)`, each of the three by a factor from `1 - strength` to `1 + strength`.

    Of four channels the last is transparency and stays; of one or two the saturation does.

    >>> jitter(np.full((1, 1, 3), 100, np.uint8), 0.0, random.Random(0)).tolist()
    [[[100, 100, 100]]]
    """
    brightness, contrast, saturation = (1 + strength * (2 * rng.random() - 1) for _ in range(3))
    layers = pixels.reshape(*pixels.shape[:2], -1)
    shown = 3 if layers.shape[2] >= 3 else 1
    colours: NDArray[Any] = layers[:, :, :shown].astype(np.float32) * np.float32(brightness)
    middle = (colours @ _LIGHT if shown == 3 else colours[:, :, 0]).mean()
    colours = middle + (colours - middle) * np.float32(contrast)
    if shown == 3:
        grey = (colours @ _LIGHT)[:, :, None]
        colours = grey + (colours - grey) * np.float32(saturation)
    out = layers.copy()
    out[:, :, :shown] = np.clip(np.rint(colours), 0, 255).astype(np.uint8)
    return out.reshape(pixels.shape)
