# SPDX-License-Identifier: Apache-2.0
"""What there is to judge by when formats are chosen: data, statistics of an earlier run, or neither."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw
from fewbit.data.findings import Progress
from fewbit.model.view import Item, ModelView

ITEMS = 16
"""Samples that are looked at: the order of layers, and nearly the size of the harm, is settled by a few."""


@dataclass(frozen=True)
class Evidence:
    """What there is to judge by.

    Args:
        dataset: inputs of the model.
        samples: how many may be read.
        batch_size: of samples without a batch axis.
        statistics: the folder of a store, looked at where there is no data.
        progress: shows how far it is.
    """

    dataset: Dataset | None = None
    samples: int | None = None
    batch_size: int = 1
    statistics: Path | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def few(self) -> Dataset | None:
        """A few samples, drawn from the whole dataset."""
        return None if self.dataset is None else draw(self.dataset, min(ITEMS, self.samples or ITEMS))

    def first(self, view: ModelView) -> Item | None:
        """The first item."""
        return None if self.dataset is None else next(iter(self.dataset.inputs(view.signature(), self.batch_size)))
