# SPDX-License-Identifier: Apache-2.0
"""Random state that is seeded per call and leaves the caller's untouched, also with several threads."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_LOCK = threading.RLock()


def generator(*seeds: int) -> np.random.Generator:
    """A generator that depends on the given numbers only; draw from this wherever possible.

    >>> int(generator(0, 1).integers(100)) == int(generator(0, 1).integers(100))
    True
    """
    return np.random.Generator(np.random.PCG64([seed & 0xFFFFFFFF for seed in seeds]))


@contextmanager
def isolated(seed: int = 0) -> Iterator[None]:
    """Run code that draws from the global generators (Python, numpy, torch), and put their states back afterwards.

    The global generators are shared by all threads, so only one thread at a time is inside.
    """
    torch: Any = sys.modules.get("torch")
    with _LOCK:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        torch_state = None if torch is None else torch.random.get_rng_state()
        cuda = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        cuda_states = torch.cuda.get_rng_state_all() if cuda else None
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        if torch is not None:
            torch.random.manual_seed(seed) if cuda else torch.random.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            if torch is not None:
                torch.random.set_rng_state(torch_state)
            if cuda_states is not None:
                torch.cuda.set_rng_state_all(cuda_states)
