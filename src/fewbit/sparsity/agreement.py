# SPDX-License-Identifier: Apache-2.0
"""How near a model's answers are to those of the model it was made from, where nothing says what is right."""

from __future__ import annotations

from typing import Any

from fewbit.data.arrays.leading_axis import fixed_batch
from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw
from fewbit.data.signature import read_signature
from fewbit.engine.judging import judge_for
from fewbit.engine.pairing import pairs
from fewbit.engine.run import view_of
from fewbit.errors import DataError
from fewbit.record import Record


def agreement(dense: Any, model: Any, data: Any, *, samples: int) -> dict[str, Any]:
    """The facts of `fewbit.compare`, without its look at layers.

    Args:
        dense: the model that shows what is wanted.
        model: the one that is judged.
        data: samples as inputs of both, as `Dataset` takes them; with labels the accuracy of classifiers is told too.
        samples: how many are asked at most.

    Raises:
        DataError: no sample, or answers of other shapes.
    """
    first, second = view_of(dense), view_of(model)
    size = fixed_batch(read_signature(first.signature()))
    dataset = draw(data if isinstance(data, Dataset) else Dataset(data), max(samples // size, 1) * size)
    judge = None
    for pair in pairs(dataset, first, second, batch_size=size):
        judge = judge or judge_for(pair, first, None, Record("measure"))
        judge.take(pair)
    if judge is None or not judge.samples:
        raise DataError("there is nothing to compare: no sample", code="no-samples", where="calibration")
    return {"kind": judge.kind, "samples": judge.samples, "verdict": judge.verdict(), **judge.facts()}
