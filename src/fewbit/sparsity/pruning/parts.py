# SPDX-License-Identifier: Apache-2.0
"""The items of a dataset in two parts: those that zeros are shared out by, and a few kept aside to judge that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fewbit.data.arrays.leading_axis import fixed_batch
from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw
from fewbit.data.signature import read_signature
from fewbit.engine.collect import HELD_OUT_EVERY, is_held_out
from fewbit.engine.evidence import Evidence
from fewbit.engine.questions import Question, questions
from fewbit.model.view import Item, ModelView

JUDGES = 4
"""Items that answers are compared on."""


class Parts:
    """What is read of a dataset, item by item; no item is in both parts.

    Args:
        view: of the model that is asked.
        evidence: the data, and how much of it may be read.
    """

    def __init__(self, view: ModelView, evidence: Evidence):
        self._signature, self._batch_size = view.signature(), evidence.batch_size
        self._dataset = _readable(view, evidence)
        first = list(islice(self._items(), JUDGES * HELD_OUT_EVERY))
        aside = [number for number in range(len(first)) if is_held_out(number)]
        # Of a few the last is kept aside; one alone cannot judge what it said itself.
        aside = aside or [len(first) - 1] * (len(first) > 1)
        self.judges: list[Item] = [first[number] for number in aside]
        self._aside = frozenset(aside)

    def others(self, most: int) -> Iterator[Item]:
        """The first so many items that are not kept aside."""
        return islice((item for number, item in enumerate(self._items()) if number not in self._aside), most)

    def questions(self, most: int) -> Iterator[Question]:
        """The same, with what is known of their samples."""
        asked = enumerate(questions(self._dataset, self._signature, self._batch_size))
        return islice((question for number, question in asked if number not in self._aside), most)

    def _items(self) -> Iterator[Item]:
        return self._dataset.inputs(self._signature, self._batch_size)


def _readable(view: ModelView, evidence: Evidence) -> Dataset:
    """As many samples as may be read, in whole items where a model takes nothing else."""
    assert evidence.dataset is not None
    batch, samples = fixed_batch(read_signature(view.signature())), evidence.samples
    wanted = None if samples is None else max(samples // batch, 1) * batch
    return draw(evidence.dataset, wanted, batch_size=evidence.batch_size)
