# SPDX-License-Identifier: Apache-2.0
"""What a model, or a task, raises over a batch that is not for it, as an error that says which batch it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fewbit.data.describe import describe
from fewbit.errors import DataError
from fewbit.tuning.out_of_memory import is_out_of_memory


@contextmanager
def told_with_batch(
    batch: Mapping[str, Any], what: str, *, where: str, expected: str, try_: str | None = None
) -> Iterator[None]:
    """Within the block what a model raises over a batch is told with the batch; that there is no room is not its fault.

    Args:
        batch: that the model is given.
        what: cannot be done with it.
        where: it comes from.
        expected: what would have been right.
        try_: the next thing to do.

    Raises:
        DataError: in the place of what the model raises.

    >>> with told_with_batch({"x": 1}, "the model cannot be asked", where="data, row 3", expected="pictures"):
    ...     raise ValueError("2 channels")
    Traceback (most recent call last):
    fewbit.errors.DataError: the model cannot be asked: ValueError: 2 channels
      where:    data, row 3: x 1
      expected: pictures
    """
    try:
        yield
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        shapes = ", ".join(f"{name} {describe(value)}" for name, value in batch.items())
        raise DataError(
            f"{what}: {type(error).__name__}: {str(error)[:300]}",
            code="batch",
            where=f"{where}: {shapes}",
            expected=expected,
            try_=try_,
        ) from error
