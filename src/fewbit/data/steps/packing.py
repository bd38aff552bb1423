# SPDX-License-Identifier: Apache-2.0
"""Several samples in one row of at most `max_length` tokens, without seeing one another.

A row has `input_ids`, `labels`, `position_ids` (from 0 in each sample) and `segments` (which sample, from 1). A batch
of rows gives the same sum of losses as the samples by themselves: see `_segments.block_mask` for the attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, is_count
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.data.steps._base import Context
from fewbit.data.steps._bins import best_fit
from fewbit.data.steps._held import hold
from fewbit.data.steps._lengths import lengths_of
from fewbit.data.steps._segments import join, token_columns
from fewbit.data.views import View
from fewbit.errors import DataError, UsageError
from fewbit.record import Record

AFTER = ("tokenization", "truncation", "masking", "filtering", "sampling", "augmentation")
NEEDS: tuple[str, ...] = ()
LONG = ("error", "split", "drop")
KEYS = (
    Key(
        "packing_buffer",
        None,
        "a whole number from 1 up, or none",
        lambda value: value is None or is_count(value),
        "how many samples, one after the other, may share rows; none: all of them",
    ),
    Key(
        "packing_long",
        "error",
        f"one of {', '.join(LONG)}",
        lambda value: value in LONG,
        "what becomes of a sample that is longer than a row",
    ),
)

_GOOD = 0.95


def apply(source: Source, context: Context) -> Source:
    """The source as rows.

    Raises:
        UsageError: no `max_length` is given.
    """
    capacity = context.options.get("max_length")
    if not is_count(capacity):
        raise UsageError(
            "packing does not know how long a row is",
            where="max_length",
            expected="a whole number of tokens from 1 up",
            try_="custom_config={'max_length': 1024}",
        )
    assert capacity is not None
    return Packed(hold(source, context.record), capacity, context.options, context.seed, context.record)


@dataclass(frozen=True)
class Plan:
    """What goes where.

    Args:
        pieces: `(n, 3)`: the sample, from which token, to which; the rows one after the other.
        ends: of each row, in pieces.
        columns: the fields of a row.
    """

    pieces: NDArray[np.int64]
    ends: NDArray[np.int64]
    columns: list[str]


class Packed(View):
    """Rows of samples; lengths are looked at when the first row is asked for.

    Args:
        inner: samples with `input_ids`, in any order.
        capacity: tokens of a row.
        options: `packing_buffer` and `packing_long`.
        seed: which of equally long samples share a row.
        record: told how full the rows are, and what did not go in.
    """

    def __init__(self, inner: Source, capacity: int, options: Mapping[str, Any], seed: int, record: Record):
        super().__init__(inner)
        self.capacity = capacity
        self._options, self._seed, self._record = options, seed, record
        self._made: Plan | None = None

    def __len__(self) -> int:
        return len(self._plan().ends)

    def get(self, index: int) -> Sample:
        """One row."""
        pieces = self._pieces(index)
        samples = [(self.inner.get(int(sample)), int(start), int(stop)) for sample, start, stop in pieces]
        return Sample(join(samples, self._plan().columns), place=self.place(index))

    def place(self, index: int) -> Place:
        """Where the first sample of a row comes from."""
        return self.inner.place(int(self._pieces(index)[0, 0]))

    def samples(self, index: int) -> list[int]:
        """Which samples are in a row, in order."""
        return [int(sample) for sample in self._pieces(index)[:, 0]]

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        plan = self._plan()
        sums = np.cumsum(plan.pieces[:, 2] - plan.pieces[:, 1])[plan.ends - 1]
        return np.diff(sums, prepend=0)

    def replan(self) -> None:
        """Look at the lengths again: the samples have changed."""
        if self._made is not None:
            self._made, self._record = None, Record("prepare")  # what was told stays told

    def _pieces(self, index: int) -> NDArray[np.int64]:
        plan = self._plan()
        return plan.pieces[plan.ends[index - 1] if index else 0 : plan.ends[index]]

    def _plan(self) -> Plan:
        if self._made is None:
            columns = self._columns()
            pieces = self._cut(lengths_of(self.inner))
            lengths = pieces[:, 2] - pieces[:, 1]
            window = self._options.get("packing_buffer") or max(1, len(pieces))
            rows = [
                [first + piece for piece in row]
                for first in range(0, len(pieces), window)
                for row in best_fit(lengths[first : first + window], self.capacity, self._seed)
            ]
            order = np.array([piece for row in rows for piece in row], np.int64)
            ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
            self._made = Plan(pieces[order], ends, columns)
            self._tell(int(lengths.sum()), len(pieces), len(rows))
        return self._made

    def _cut(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every sample as a piece, one that is too long as several or none."""
        long = np.flatnonzero(lengths > self.capacity)
        how = self._options.get("packing_long", "error")
        if len(long) and how == "error":
            raise DataError(
                f"{len(long):,} of {len(lengths):,} samples are longer than a row, one has {lengths.max():,} tokens",
                code="longer-than-row",
                where=", ".join(f"sample {index} ({lengths[index]:,} tokens)" for index in long[:3]),
                expected=f"at most max_length={self.capacity:,} tokens",
                try_="'truncation' before 'packing', or packing_long='split' or 'drop'",
            )
        fits = lengths > 0 if how == "split" else (lengths > 0) & (lengths <= self.capacity)
        self._left_out("empty", int((lengths == 0).sum()))
        if how == "drop":
            self._left_out("longer than a row", len(long))
        elif len(long):
            self._record.note("split", f"packing: {len(long):,} samples are longer than a row", count=len(long))
        whole = np.flatnonzero(fits)
        parts = -(-lengths[whole] // self.capacity)
        sample = np.repeat(whole, parts)
        nth = np.arange(len(sample)) - np.repeat(np.cumsum(parts) - parts, parts)
        start = nth * self.capacity
        return np.stack([sample, start, np.minimum(start + self.capacity, lengths[sample])], axis=1)

    def _columns(self) -> list[str]:
        """The fields of a row, as the first sample has them."""
        if not len(self.inner):
            return []
        sample: Mapping[str, Any] = self.inner.get(0)
        if "input_ids" not in sample:
            raise DataError(
                f"a sample has no tokens; it has {', '.join(sample)}",
                code="cannot-pack",
                where=self.inner.place(0),
                expected="input_ids",
                try_="put 'tokenization' before 'packing'",
            )
        columns = token_columns(sample)
        lost = [name for name in sample if name not in {*columns, "attention_mask", "position_ids"}]
        if lost:
            reason = f"packing: {', '.join(lost)} has no entry for each token and is not in the rows"
            self._record.note("fields-left-out", reason, fields=lost)
        return columns

    def _left_out(self, why: str, count: int) -> None:
        if count:
            self._record.note("left-out", f"packing: {count:,} samples are {why}", by="packing", why=why, count=count)

    def _tell(self, tokens: int, pieces: int, rows: int) -> None:
        useful = tokens / (rows * self.capacity) if rows else 1.0
        reason = f"{pieces:,} samples in {rows:,} rows of {self.capacity:,} tokens, {useful:.1%} of them used"
        if rows > 1 and useful < _GOOD:
            reason += "; a larger max_length or packing_buffer fills them better"
        self._record.note("packed", reason, samples=pieces, rows=rows, tokens=tokens, useful=useful)
