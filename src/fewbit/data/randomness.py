# SPDX-License-Identifier: Apache-2.0
"""Lending random state to user code, and taking it back.

A shuffled loader or a random augmentation draws from Python's, NumPy's and PyTorch's global generators.
Read through a `Loan` it draws from private ones instead: the caller's state stays where it was, and every
pass over the data starts from the same private state and so sees the same samples.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fewbit.errors import FewbitError

_global: Any = np.random  # its stubs leave out the two functions that swap the global generator


class Loan:
    """Private random state for one pass over user code.

    Args:
        seed: where the private generators start.
        generators: further torch generators the user code owns (a loader's `generator=`); each starts from its own
            present state and is put back to it.

    Cost: some 25 µs a loan, most of it Python's own 625-word state.
    """

    def __init__(self, seed: int = 0, generators: Iterable[Any] = ()):
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.MT19937(seed)
        self._torch: Any = None
        self._seed = seed
        self._generators = [(generator, generator.get_state()) for generator in generators]

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Within the block the global generators are the private ones."""
        python, numpy = random.getstate(), _global.get_bit_generator()
        random.setstate(self._python)
        _global.set_bit_generator(self._numpy)
        torch = sys.modules.get("torch")
        if torch is not None:
            outer = torch.get_rng_state()
            if self._torch is None:
                self._torch = torch.Generator().manual_seed(self._seed).get_state()
            torch.set_rng_state(self._torch)
        outside = [generator.get_state() for generator, _ in self._generators]
        for generator, state in self._generators:
            generator.set_state(state)
        try:
            yield
        finally:
            self._generators = [(generator, generator.get_state()) for generator, _ in self._generators]
            for (generator, _), state in zip(self._generators, outside):
                generator.set_state(state)
            if torch is not None:
                self._torch = torch.get_rng_state()
                torch.set_rng_state(outer)
            self._python = random.getstate()
            random.setstate(python)
            _global.set_bit_generator(numpy)

    def iterate(
        self, start: Callable[[], Iterable[Any]], failed: Callable[[int, Exception], Exception]
    ) -> Iterator[Any]:
        """Start user code and step through it, lending for each step.

        Args:
            start: gives the iterable; called when the first element is asked for.
            failed: makes the error to raise instead of the user code's own, given the element's number; errors of
                fewbit's own pass as they are.
        """
        iterator: Iterator[Any] | None = None
        index = 0
        while True:
            with self.lend():
                try:
                    iterator = iter(start()) if iterator is None else iterator
                    element = next(iterator)
                except StopIteration:
                    return
                except FewbitError:
                    raise
                except Exception as error:
                    raise failed(index, error) from error
            yield element
            index += 1
