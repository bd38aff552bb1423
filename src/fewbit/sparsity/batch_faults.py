# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a batch that a model is judged by, told of the model and the batch together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from fewbit.errors import DataError
from fewbit.tuning.tasks._base import NOTHING, class_faults, logits_of
from fewbit.tuning.unfit_batch import told_with_batch


def asked_about(batch: Mapping[str, Any], where: str) -> AbstractContextManager[None]:
    """Within the block what a model, or a task, raises over a batch that is not for it says which batch it was."""
    return told_with_batch(
        batch,
        f"the model cannot be asked about {where}",
        where=f"validation, {where}",
        expected="inputs that the model takes, and answers of it that fit the labels",
    )


def refuse_classes(outputs: Any, batch: Mapping[str, Any], where: str, classes: Sequence[str]) -> None:
    """Labels beside answers with a score a class: of more classes than there are scores for."""
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or bool((labels == NOTHING).all()):
        return
    scores = logits_of(outputs)
    if scores.ndim > 3 or scores.shape[:-1].numel() != labels.numel():
        return
    count = scores.shape[-1]
    found = class_faults(labels, count)
    if len(classes) > count:  # samples of the first ones may all come first
        shown = ", ".join(classes[:12]) + (" …" if len(classes) > 12 else "")
        found = [f"the data has {len(classes)} classes ({shown}), the model tells {count} apart"]
    if found:
        raise DataError(
            "; ".join(found),
            code="batch",
            where=f"validation, {where}",
            expected=f"labels from 0 to {count - 1}, one of the {count} classes that the model tells apart",
            try_="a model for these classes, or data with those of the model",
        )


def refuse_unlabelled(batch: Mapping[str, Any], task: Any) -> None:
    """A batch without anything that the task calls an answer."""
    names = {"labels", *getattr(task, "ANSWERS", ())}
    if not names & batch.keys():
        raise DataError(
            f"the data does not say what is right: it has {', '.join(n for n in batch if batch[n] is not None)}",
            code="no-labels",
            where="validation",
            expected=" or ".join(sorted(names)),
        )
