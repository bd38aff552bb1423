# SPDX-License-Identifier: Apache-2.0
"""One call of `sparsify`: everything its stages work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewbit.data.findings import Progress
from fewbit.record import Record


@dataclass
class Job:
    """What the stages of a recipe share; the model goes from one to the next and is not in here.

    Args:
        mode: `one-shot`, `training-aware` or `sparse-transfer`.
        use_case: a `UseCase`, read from a member of `use_cases`.
        task: the task of `fewbit.tuning` that it trains and measures by; none where there is none.
        dense: the model as it was given, which shows what is wanted; never changed.
        data: what the user gave, as `finetune` takes it: a path, a `DatasetConfig`, a `Dataset`, a loader.
        calibration: samples as inputs of the model, as `quantize` takes them: a path or a `Dataset`.
        validation: to judge by, like `data`; none where nothing is kept aside.
        samples: how many calibration samples are read.
        record: takes a line about everything that was done.
        progress: shows how far it is.
        work: a folder for what is finished, from which the same call goes on if it is stopped; none if nothing is kept.
        options: more that the user said, by name: `batch_size`, `seqlen`, `device` ….
        teacher: a model that shows how it is done, if the user named one; none otherwise.
        metric: the number that results are judged by, one of the task's: `accuracy`, `map`, `loss` …; none if no task.
        asked: whether the user named the metric; if not, it is the usual one, and may be left out with a note.
        classes: the names of the classes in the order of their numbers, if the data has any.
        preprocessing: what is done to a row before the model sees it, as JSON values.
        home: where the model was opened from: its folder or file, or `"file.py:function"`; none if it was an object.
        factory: `"file.py:function"` that builds the model, if there is one.
    """

    mode: str
    use_case: Any
    task: str | None
    dense: Any
    data: Any
    calibration: Any
    validation: Any = None
    samples: int = 128
    record: Record = field(default_factory=lambda: Record("sparsify"))
    progress: Progress = field(default_factory=Progress)
    work: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    teacher: Any = None
    metric: str | None = None
    asked: bool = False
    classes: list[str] | None = None
    preprocessing: dict[str, Any] = field(default_factory=dict)
    home: str | None = None
    factory: str | None = None
