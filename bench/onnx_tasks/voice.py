# SPDX-License-Identifier: Apache-2.0
"""When somebody speaks: Silero VAD over a whole recording, convolutions and an LSTM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

TITLE = "voice activity (Silero)"
MAIN = "accuracy"
COUNTS = {"calibration": 60, "judging": 100, "final": 100}
FRAME, CONTEXT, FRAMES = 512, 64, 250


def model() -> Path:
    return assets.onnx_model("silero_vad_16k_sequence.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Eight seconds in which prompts and pauses take turns, in noise; the label says which frames are loud."""
    from . import _sound

    prompts = _sound.prompts(part)
    for _ in range(COUNTS[part]):
        clean = np.zeros(0)
        while len(clean) < FRAME * FRAMES:
            pause = np.zeros(int(random.integers(4000, 24000)))
            clean = np.concatenate([clean, pause, prompts[int(random.integers(len(prompts)))]])
        clean = clean[: FRAME * FRAMES]
        power = np.square(clean).reshape(FRAMES, FRAME).mean(1)
        level = power.max()
        noisy = clean + _sound.noise(random, len(clean)) * np.sqrt(level) * 10 ** (-random.uniform(15, 40) / 20)
        yield (
            (noisy * random.uniform(0.2, 0.9) / np.abs(noisy).max() * 32767).astype(np.int16),
            [int(p > level * 1e-3) - int(level * 1e-6 < p <= level * 1e-3) for p in power],
        )


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    """Frames of 512 samples, each with the 64 before it."""
    sound = np.concatenate([np.zeros(CONTEXT, np.float32), raw.astype(np.float32) / 32768])
    starts = np.arange(FRAMES)[:, None] * FRAME + np.arange(CONTEXT + FRAME)
    rest = np.zeros((1, 1, 128), np.float32)
    return {"input": sound[starts], "h": rest, "c": rest}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """The share of frames told right, unclear ones (label -1) left out, and as the float model tells them."""
    found, wanted = (np.array([outputs[0].ravel() > 0.5 for outputs in part]) for part in (answers, expected))
    truth = np.array(labels)
    return {
        "accuracy": float((found == truth)[truth >= 0].mean()),
        "agreement": float((found == wanted).mean()),
    }
