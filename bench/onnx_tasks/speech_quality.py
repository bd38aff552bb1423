# SPDX-License-Identifier: Apache-2.0
"""How good people would find a recording: DNSMOS, a CNN that computes its spectrogram inside the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

TITLE = "speech quality (DNSMOS)"
MAIN = "ordering"
COUNTS = {"calibration": 40, "judging": 60, "final": 60}
LENGTH = 144160


def model() -> Path:
    return assets.onnx_model("dnsmos_sig_bak_ovr.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, float]]:
    """Nine seconds of prompts in noise; the label is how many decibels the speech is above it."""
    from . import _sound

    prompts = _sound.prompts(part)
    for _ in range(COUNTS[part]):
        speech = np.concatenate([prompts[i] for i in random.integers(len(prompts), size=20)])[:LENGTH]
        speech = np.resize(speech, LENGTH)
        decibels = float(random.uniform(-5, 30))
        mixed = speech + _sound.noise(random, LENGTH, kinds=2) * speech.std() * 10 ** (-decibels / 20)
        yield (mixed * random.uniform(0.1, 0.9) / np.abs(mixed).max() * 32767).astype(np.int16), decibels


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_1": raw[None].astype(np.float32) / 32768}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """The share of pairs at least 5 dB apart whose overall score is in order; how near the scores are to float."""
    found, wanted = (np.array([outputs[0][0] for outputs in part]) for part in (answers, expected))
    apart = np.subtract.outer(labels, labels)
    better = np.subtract.outer(found[:, 2], found[:, 2]) > 0
    agreement = 1 - np.abs(found - wanted).mean() / 4  # scores go from 1 to 5
    return {"ordering": float(better[apart > 5].mean()), "agreement": float(agreement)}
