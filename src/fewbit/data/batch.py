# SPDX-License-Identifier: Apache-2.0
"""Samples and items: how many samples an item holds, cutting an item, making one item of several samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.tree import flatten, is_tensor, map_leaves
from fewbit.errors import DataError

Array = NDArray[Any]


def count_samples(item: Any) -> int:
    """How many samples a model input holds: the leading axis that most of its tensors share.

    A tensor whose leading axis differs is shared by the samples (a mask of shape `(1, 1, S, S)`); an input without
    any tensor counts as one.

    >>> count_samples({"ids": np.zeros((8, 5)), "mask": np.zeros((8, 5)), "bias": np.zeros((1, 5))})
    8
    """
    sizes = Counter(leaf.shape[0] for _, leaf in flatten(item) if is_tensor(leaf) and len(leaf.shape))
    return int(sizes.most_common(1)[0][0]) if sizes else 1


def whole_labels(values: Any, count: int) -> list[int] | None:
    """A column of class numbers as whole numbers; `None` if it is anything else.

    >>> whole_labels(np.array([0, 2, 1]), 3), whole_labels(["a", "b", "c"], 3)
    ([0, 2, 1], None)
    """
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # lists of tensors, tensors that are not on the CPU
        return None
    return found.tolist() if found.shape == (count,) and found.dtype.kind in "iu" else None


def cut(item: Any, samples: int) -> Any:
    """The first samples of an item; what its samples share stays whole.

    >>> cut((np.arange(8), np.zeros((1, 2))), 3)[0]
    array([0, 1, 2])
    """
    holds = count_samples(item)

    def shorten(leaf: Any) -> Any:
        return leaf[:samples] if is_tensor(leaf) and len(leaf.shape) and leaf.shape[0] == holds else leaf

    return map_leaves(shorten, item)


def stack(samples: Sequence[Mapping[str, Array]], numbers: Sequence[int] | None = None) -> dict[str, Array]:
    """Samples under the same names as one batch with a new leading axis.

    Args:
        samples: arrays by name, no batch axis.
        numbers: of the samples, for messages; from 0 if not given.
    """
    batch: dict[str, Array] = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        shapes = [value.shape for value in values]
        odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is not None:
            first, other = (0, odd) if numbers is None else (numbers[0], numbers[odd])
            raise DataError(
                f"samples differ: {name!r} is {shapes[0]} in sample {first} and {shapes[odd]} in sample {other}",
                code="batch-ragged",
                where=f"sample {other}, field {name!r}",
                expected="one shape in a batch",
                try_="batch_size=1, or pad or resize in a transform_fn",
            )
        batch[name] = np.stack(values)
    return batch
