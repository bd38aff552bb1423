# SPDX-License-Identifier: Apache-2.0
"""The samples of a batch, field by field, and errors that say which sample and which field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewbit.data.describe import describe
from fewbit.data.sample import Sample
from fewbit.errors import DataError


class Columns:
    """Every field of a batch as a list of values, one a sample. Whoever makes something of a field takes it out.

    Args:
        samples: dicts with the same fields.
        indices: their numbers in the dataset, for messages; else their places in the batch.

    Raises:
        DataError: something is not a dict, or lacks a field that others have.

    >>> columns = Columns([{"x": 1}, {"x": 2}])
    >>> columns.take("x"), "x" in columns
    ([1, 2], False)
    """

    def __init__(self, samples: Sequence[Any], indices: Sequence[int] | None = None):
        self._samples = samples
        self._indices = indices
        if not samples:
            raise DataError("a batch of no samples", code="batch-misfit", expected="one sample or more")
        for row, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                raise self.misfit(row, None, describe(sample), "a dict of fields")
        names = list(dict.fromkeys(name for sample in samples for name in sample))
        for row, sample in enumerate(samples):
            lacking = [name for name in names if name not in sample]
            if lacking:
                other = next(i for i, each in enumerate(samples) if lacking[0] in each)
                raise self.misfit(row, lacking[0], "nothing", f"what {self._name(other)} has there as well")
        self.values: dict[str, list[Any]] = {name: [sample[name] for sample in samples] for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __len__(self) -> int:
        return len(self._samples)

    def take(self, name: str) -> list[Any]:
        """The values of a field, which is then dealt with."""
        return self.values.pop(name)

    def misfit(self, row: int, field: str | None, found: str, expected: str, try_: str | None = None) -> DataError:
        """The error for a sample that does not fit into its batch.

        Args:
            row: its place in the batch.
            field: the field that is wrong.
            found: what there is.
            expected: what would fit.
            try_: what helps.
        """
        where = self._name(row) if field is None else f"{self._name(row)}, field {field!r}"
        what = f"{where} does not fit into a batch: there is {found}"
        return DataError(what, code="batch-misfit", where=where, expected=expected, try_=try_)

    def _name(self, row: int) -> str:
        sample = self._samples[row]
        place = f" ({sample.place})" if isinstance(sample, Sample) and sample.place.path else ""
        known = self._indices is not None
        return f"sample {self._indices[row]}{place}" if known else f"sample {row} of the batch{place}"  # type: ignore[index]
