# SPDX-License-Identifier: Apache-2.0
"""Inputs of a graph from the user's data: most to look at, a few kept aside to judge by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fewbit.backends.graph.view import GraphView
from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw
from fewbit.engine.item_places import ItemPlaces
from fewbit.errors import DataError
from fewbit.sparsity.calibration import batch_of
from fewbit.sparsity.job import Job
from fewbit.sparsity.shrinking.graph_sample import random_item

Feed = Mapping[str, Any]
_EACH, _MOST = 5, 8


class Items:
    """The calibration data of a job as inputs of a graph.

    Args:
        view: of the graph.
        job: with `calibration` and `samples`.

    Attributes:
        first: an item to see shapes by; random numbers where there is no data.
        judges: kept aside, once `looked_at` is through; what was looked at last where there is no more.
        places: of items, which errors name.

    Raises:
        DataError: data without a sample.
    """

    def __init__(self, view: GraphView, job: Job):
        data = job.calibration
        self._data = None if data is None else data if isinstance(data, Dataset) else Dataset(data)
        self._view, self._job = view, job
        self.judges: list[Feed] = []
        self.places = ItemPlaces()
        if self._data is None:
            self.first: Feed = random_item(view.model)
            return
        with self.places.told():
            first = next(iter(self._inputs(self._data)), None)
        if first is None:
            raise DataError("the calibration data hold no sample", where="calibration", expected="at least one")
        self.first = first

    def __bool__(self) -> bool:
        return self._data is not None

    def looked_at(self) -> Iterator[Feed]:
        """All but a few, which become `judges`."""
        assert self._data is not None
        self.judges, last = [], None
        batch = batch_of(self._view.signature(), self._job)
        taken = draw(self._data, max(self._job.samples // batch, 1) * batch)
        items = self._job.progress.track(self._inputs(taken), total=None, label="what layers read")
        for index, item in enumerate(items):
            if index % _EACH == _EACH - 1 and len(self.judges) < _MOST:
                self.judges.append(item)
            else:
                last = item
                yield item
        if not self.judges and last is not None:
            self.judges = [last]
        self._job.record.lines += taken.record.lines

    def _inputs(self, data: Dataset) -> Iterator[Feed]:
        signature = self._view.signature()
        yield from self.places.inputs(data, signature, batch_of(signature, self._job))
