# SPDX-License-Identifier: Apache-2.0
"""A source whose samples go through a function, one at a time, when they are read."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.describe import describe
from fewbit.data.randomness import Loan
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source, known_length
from fewbit.data.views import View
from fewbit.errors import DataError, FewbitError
from fewbit.record import Record

_FIRST = 10
"""How many of those that are left out are named in the record."""


class LeftOut:
    """Counts what is left out, each sample once however often it is read, in one line of the record.

    Args:
        record: gets the line when the first is left out.
        by: who leaves them out.
    """

    def __init__(self, record: Record, by: str):
        self._record, self._by = record, by
        self._seen: set[int] = set()
        self._line: dict[str, Any] = {}

    def count(self, index: int, place: Place, why: str, try_: str | None = None) -> None:
        """One more."""
        if index in self._seen:
            return
        self._seen.add(index)
        if not self._line:
            self._record.note("left-out", "", where=place, by=self._by, count=0, first=[])
            self._line = self._record.lines[-1]
        self._line["count"] = len(self._seen)
        self._line["reason"] = f"{self._by}: {len(self._seen):,} left out, the first: {self._line.get('why', why)}"
        self._line.setdefault("why", why)
        if try_ is not None:
            self._line.setdefault("try", try_)
        if len(self._line["first"]) < _FIRST:
            self._line["first"].append(f"{place}: {why}")

    def __len__(self) -> int:
        return len(self._seen)

    def nothing_left(self) -> DataError:
        """What is to say if nothing was not left out."""
        return DataError(
            f"{self._by}: not one of {len(self._seen):,} samples is left: {self._line['why']}",
            code="no-samples",
            where=self._line["where"],
            expected=f"at least one sample; the next: {'; '.join(self._line['first'][1:3]) or 'there is none'}",
            try_=self._line.get("try"),
        )


class Stepped(View):
    """Samples through a function.

    Args:
        inner: the samples.
        function: returns another sample, or none to leave it out; a `DataError` leaves it out too, if `forgives`.
        by: what the function is called in messages.
        drops: whether it may leave something out; if not, the length is known without reading.
        forgives: whether a `DataError` leaves a sample out, and does not end everything.
        of_user: whether it is not ours: its errors are told with its file and line, its random state is lent.
        lengths: how many tokens are left of so many, where that is known without reading.
    """

    def __init__(
        self,
        inner: Source,
        function: Callable[[Any], Any],
        by: str,
        *,
        drops: bool = True,
        forgives: bool = False,
        of_user: bool = False,
        lengths: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
    ):
        super().__init__(inner)
        self._function, self._by, self._drops = function, by, drops
        self._forgives, self._of_user, self._lengths = forgives, of_user, lengths
        self.left_out = LeftOut(inner.record, by)
        self._kept: NDArray[np.int64] | None = None

    def __iter__(self) -> Iterator[Any]:
        kept = []
        for index, element in enumerate(self.inner):
            made = self._made(element, index)
            if made is not None:
                kept.append(index)
                yield made
        if not kept and len(self.left_out):
            raise self.left_out.nothing_left()
        self._kept = np.array(kept, np.int64)

    def __len__(self) -> int:
        return len(self._indices()) if self._drops else len(self.inner)

    def get(self, index: int) -> Any:
        """The sample at an index among those that are left."""
        at = int(self._indices()[index]) if self._drops else index
        made = self._made(self.inner.get(at), at)
        if made is None:
            raise DataError(
                f"{self._by}: a sample is left out now and was not before", where=self.inner.place(at), code="unsteady"
            )
        return made

    def place(self, index: int) -> Place:
        """Where it comes from."""
        return self.inner.place(int(self._indices()[index]) if self._drops else index)

    def replan(self) -> None:
        """Look again at what is left out: the samples have changed."""
        self._kept = None

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sample, by reading them if need be."""
        known = getattr(self.inner, "lengths", None)
        if self._lengths is not None and not self._drops and known is not None:
            return self._lengths(known())
        return np.fromiter((len(sample["input_ids"]) for sample in self), np.int64)

    def _indices(self) -> NDArray[np.int64]:
        if self._kept is None:
            len(self.inner)  # raises what a stream has to say
            for _ in self:
                pass
        assert self._kept is not None
        return self._kept

    def _made(self, element: Any, index: int) -> Any:
        try:
            made = self._called(element, index)
        except DataError as error:
            if not self._forgives:
                if type(element) is dict:  # a row in memory, which does not know where it is
                    streams = known_length(self.inner) is None
                    place = Place(index=index) if streams else self.inner.place(index)
                    error.where = ", ".join(filter(None, (str(place), error.where)))
                raise
            self.left_out.count(index, self._place(element, index), error.what, error.try_ or _instead(error))
            return None
        if made is None:
            self.left_out.count(index, self._place(element, index), f"{self._by} returned none")
            return None
        if not isinstance(made, dict):
            raise DataError(
                f"{self._by} returned {describe(made)}",
                code="step-returns",
                where=self._place(element, index),
                expected="a dict, or None to leave the sample out",
            )
        return made if isinstance(made, Sample) else Sample(made, place=self._place(element, index))

    def _called(self, element: Any, index: int) -> Any:
        if not self._of_user:
            return self._function(element)
        try:
            with Loan(index).lend():
                return self._function(Sample(element, place=self._place(element, index)))
        except FewbitError:
            raise
        except Exception as error:  # whatever it is, it is told as what it is
            raise UserCodeError(
                f"{self._by} raised {type(error).__name__}: {error}",
                code="step-failed",
                where=f"sample {index} ({self._place(element, index)}), {_line_of(error)}",
                expected=f"a dict, or None, made from {describe(element)}",
            ) from error

    def _place(self, element: Any, index: int) -> Place:
        return element.place if isinstance(element, Sample) else self.inner.place(index)


class UserCodeError(DataError):
    """The user's own function raised something."""


def _instead(error: DataError) -> str | None:
    return None if error.expected is None else f"rows with {error.expected}"


def _line_of(error: BaseException) -> str:
    """File and line where the user's code raised."""
    ours = str(Path(__file__).parents[2])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "when it was called"
