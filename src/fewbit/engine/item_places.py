# SPDX-License-Identifier: Apache-2.0
"""Where an item came from, said in errors that know only its number.

A model that is run over items counts them. Whoever hands them out knows the file and the sample of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fewbit.data.dataset import Dataset
from fewbit.data.fed import Fed
from fewbit.errors import DataError

_ITEM = re.compile(r"\bitem (\d+)")


class ItemPlaces:
    """The inputs of a model from a dataset, pass after pass; the places are those of the latest."""

    def __init__(self) -> None:
        self._fed: Fed | None = None

    def inputs(self, dataset: Dataset, model: Any, batch_size: int) -> Fed:
        """As `Dataset.inputs`."""
        self._fed = dataset.inputs(model, batch_size)
        return self._fed

    @contextmanager
    def told(self) -> Iterator[None]:
        """Name the sample where an error names an item by its number.

        Raises:
            DataError: the one that was raised, with the place.
        """
        try:
            yield
        except DataError as error:
            what, where = (text and _ITEM.sub(self._placed, text) for text in (error.what, error.where))
            if (what, where) == (error.what, error.where):
                raise
            raise DataError(
                str(what), code=error.code, where=where, expected=error.expected, try_=error.try_
            ) from error

    def place(self, item: int | None) -> str | None:
        """Where an item of the latest pass came from, if that is known."""
        return None if self._fed is None or item is None else self._fed.place(item)

    def _placed(self, found: re.Match[str]) -> str:
        return self.place(int(found[1])) or found[0]
