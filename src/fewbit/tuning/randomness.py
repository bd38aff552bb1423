# SPDX-License-Identifier: Apache-2.0
"""The random state of a process, as values that a checkpoint holds; and a run that leaves the caller's as it was."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_global: Any = np.random


def take() -> dict[str, Any]:
    """The state of Python's, NumPy's and PyTorch's generators as JSON values."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = _global.get_state()
    # The device of this process alone: asking the others would take memory on each of them.
    devices = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, keys.tolist(), position, has_gauss, cached],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in devices],
    }


def put(state: dict[str, Any]) -> None:
    """Set the generators to what `take` gave; a device's only where there is one."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    _global.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_tensor(state["torch"]))
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state(_tensor(state["cuda"][0]))


@contextmanager
def private(seed: int) -> Iterator[None]:
    """Within the block everything is drawn from a seed; afterwards the caller's generators are where they were."""
    before = take()
    try:
        seed_all(seed)
        yield
    finally:
        put(before)


def seed_all(seed: int) -> None:
    """Start all generators of this process from a seed."""
    random.seed(seed)
    _global.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
