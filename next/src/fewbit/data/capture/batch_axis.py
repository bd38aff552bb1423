# SPDX-License-Identifier: Apache-2.0
"""Which inputs have the batch as their first axis, learned from calls.

The batch size is what most inputs of two or more axes have in common. An axis of 1 next to a larger batch is broadcast.
Any other size is no batch: the input is copied into every sample. A role once learned holds, so that a batch that
happens to be as long as a sequence changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fewbit.data.capture.arrays import Array
from fewbit.errors import DataError


class BatchAxis:
    """The batch axis of the inputs of one module.

    >>> import numpy as np
    >>> samples = BatchAxis().split({"x": np.zeros((8, 3, 4)), "mask": np.zeros((1, 4)), "scale": np.array(2.0)})
    >>> len(samples), {name: array.shape for name, array in samples[0].items()}
    (8, {'x': (3, 4), 'mask': (4,), 'scale': ()})
    """

    def __init__(self) -> None:
        self._batched: set[str] = set()
        self._shared: set[str] = set()

    def split(self, arrays: Mapping[str, Array]) -> list[dict[str, Array]]:
        """The samples of one call, without batch axis.

        Raises:
            DataError: inputs that were batched before disagree about the batch size.
        """
        sizes = {name: len(array) for name, array in arrays.items() if array.ndim and name not in self._shared}
        batch = self._batch_size(arrays, sizes)
        for name, size in sizes.items():
            if size == batch and batch > 1:
                self._batched.add(name)
            elif size not in (1, batch):
                if name in self._batched:
                    raise _mismatch(sizes)
                self._shared.add(name)
        return [
            {
                name: array if name in self._shared or not array.ndim else array[index if len(array) > 1 else 0]
                for name, array in arrays.items()
            }
            for index in range(batch)
        ]

    def _batch_size(self, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> int:
        batched_sizes = {size for name, size in sizes.items() if name in self._batched}
        if batched_sizes:
            larger = batched_sizes - {1}
            if len(larger) > 1:
                raise _mismatch(sizes)
            return larger.pop() if larger else 1
        votes = [size for name, size in sizes.items() if arrays[name].ndim > 1] or list(sizes.values())
        larger_votes = Counter(size for size in votes if size != 1)
        if not larger_votes:
            return 1
        size, count = larger_votes.most_common(1)[0]  # of several, the first in the signature
        return 1 if votes[0] == 1 and votes.count(1) > count else size


def _mismatch(sizes: Mapping[str, int]) -> DataError:
    return DataError(
        "the inputs of a call disagree about the batch size", code="batch-mismatch",
        where=", ".join(f"{name}: {size}" for name, size in sizes.items()),
        expected="the same first axis as in earlier calls, or 1", hint="record calls of one kind at a time",
    )  # fmt: skip
