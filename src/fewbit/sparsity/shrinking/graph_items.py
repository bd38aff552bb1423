# SPDX-License-Identifier: Apache-2.0
"""Inputs of a graph from the user's data: most to look at, a few kept aside to judge by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fewbit.backends.graph.view import GraphView
from fewbit.data.dataset import Dataset
from fewbit.sparsity.job import Job
from fewbit.sparsity.shrinking.graph_sample import random_item

Feed = Mapping[str, Any]
_EACH, _MOST = 5, 8


class Items:
    """The calibration data of a job as inputs of a graph.

    Args:
        view: of the graph.
        job: with `calibration`, `samples` and perhaps `batch_size` among its options.

    Attributes:
        first: an item to see shapes by; random numbers where there is no data.
        judges: kept aside, once `looked_at` is through; what was looked at where there is no more.
    """

    def __init__(self, view: GraphView, job: Job):
        data = job.calibration
        self._data = None if data is None else data if isinstance(data, Dataset) else Dataset(data)
        self._view, self._job = view, job
        self.judges: list[Feed] = []
        self.first: Feed = random_item(view.model) if self._data is None else next(iter(self._inputs()))

    def __bool__(self) -> bool:
        return self._data is not None

    def looked_at(self) -> Iterator[Feed]:
        """All but a few, which become `judges`."""
        self.judges, last = [], None
        for index, item in enumerate(self._job.progress.track(self._inputs(), total=None, label="what layers read")):
            if index % _EACH == _EACH - 1 and len(self.judges) < _MOST:
                self.judges.append(item)
            else:
                last = item
                yield item
        if not self.judges and last is not None:
            self.judges = [last]

    def _inputs(self) -> Iterator[Feed]:
        assert self._data is not None
        batch = int(self._job.options.get("batch_size") or 1)
        yield from self._data.subset(self._job.samples).inputs(self._view.signature(), batch)
