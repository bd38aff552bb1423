# SPDX-License-Identifier: Apache-2.0
"""Samples that nothing can be learned from, told by their numbers and files.

Whoever sees what is wrong with a batch knows the places in it, whoever reads the data knows which samples lie there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fewbit.errors import DataError

Name = Callable[[Sequence[int]], str]


class Unfit(DataError):
    """Some samples of a batch are wrong.

    Args:
        what: is wrong with them.
        rows: their places in the batch.
        of: how many places it has.
        parts: as of every error.
    """

    def __init__(self, what: str, *, rows: Sequence[int] = (), of: int = 0, **parts: Any):
        super().__init__(what, **{"code": "batch", **parts})
        self.rows, self.of = rows, of

    def at(self, where: str) -> DataError:
        """The same, with where it is."""
        return DataError(self.what, code=self.code, where=where, expected=self.expected, try_=self.try_)


@contextmanager
def samples_named(batch: Mapping[str, Any], items: Sequence[int], name: Name, where: str) -> Iterator[None]:
    """Within the block an `Unfit` is told with the samples that it is about; it costs nothing where there is none.

    Args:
        batch: what is looked at, or learned from.
        items: the numbers of its samples, or of the batch.
        name: says these in words.
        where: which data this is.

    Raises:
        DataError: in the place of `Unfit`, and of what a loss raises over labels that are not there.
    """
    try:
        yield
    except (Unfit, AttributeError, TypeError) as error:
        found = error if isinstance(error, Unfit) else without_label(batch)
        if found is None:
            raise
        wrong = [items[row] for row in found.rows] if found.of == len(items) else items
        shown = "; ".join(name([each]) for each in wrong) if len(wrong) in (1, 2) else name(wrong)
        if found.of != len(items):
            shown += f", row {', '.join(map(str, found.rows[:8]))} of the batch"
        raise found.at(f"{where}, {shown}") from error


@contextmanager
def told_accelerator(where: Callable[[], str]) -> Iterator[None]:
    """Within the block an assertion of an accelerator, which says nothing of what it found, is told with what helps.

    Args:
        where: the run is, if that happens.

    Raises:
        DataError: in the place of what PyTorch raises.
    """
    try:
        yield
    except RuntimeError as error:
        if "device-side assert" not in str(error):
            raise
        raise DataError(
            "the accelerator found a number that is outside of its table: a label that the model has no output for, or "
            "an id that it has no row for",
            code="batch",
            where=where(),
            expected="labels and ids that the model has",
            try_="device='cpu', where the same call says which sample it is",
        ) from error


def without_label(batch: Mapping[str, Any]) -> Unfit | None:
    """What is to be said of labels that are None; nothing where there are none such.

    >>> without_label({"labels": [1, None]}).rows
    [1]
    """
    labels = batch.get("labels", ())
    each = labels if isinstance(labels, list | tuple) else (labels,)
    rows = [row for row, label in enumerate(each) if label is None]
    if not rows:
        return None
    return Unfit(
        "a label is None",
        rows=rows,
        of=len(each),
        expected="a label in every sample that is learned from",
        try_="leave such rows out: [row for row in rows if row['label'] is not None]",
    )
