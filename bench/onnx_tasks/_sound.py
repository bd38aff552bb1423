# SPDX-License-Identifier: Apache-2.0
"""Speech at 16 kHz made from spoken prompts, and noises to put it into."""

from __future__ import annotations

import io
import wave
from functools import cache

import numpy as np

import assets

RATE = 16000


@cache
def prompts(part: str) -> tuple[np.ndarray, ...]:
    """Every fourth prompt is kept to judge on."""
    every = sorted(assets.spoken_prompts().items())
    chosen = [data for i, (_, data) in enumerate(every) if (i % 4 == 3) == (part != "calibration")]
    return tuple(sound for sound in map(_sound, chosen) if len(sound) > RATE // 2)


def noise(random: np.random.Generator, count: int, kinds: int = 4) -> np.ndarray:
    """White, pink or brown noise, or a hum: one of the first `kinds` of these; of unit power."""
    kind = int(random.integers(kinds))
    if kind == 3:
        time = np.arange(count) / RATE
        hum = sum(np.sin(2 * np.pi * random.uniform(50, 400) * k * time) / k for k in range(1, 6))
        return hum / hum.std()
    spectrum = np.fft.rfft(random.normal(size=count))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1) ** (kind / 2)
    made = np.fft.irfft(spectrum, count)
    return made / made.std()


def _sound(data: bytes) -> np.ndarray:
    from scipy.signal import resample_poly

    with wave.open(io.BytesIO(data)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        return resample_poly(samples, RATE, file.getframerate())
