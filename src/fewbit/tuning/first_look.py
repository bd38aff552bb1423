# SPDX-License-Identifier: Apache-2.0
"""Data held against model and task before anything is trained: every fault of the first batches, at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn

from fewbit.data.capturing.modes import evaluating
from fewbit.data.describe import describe
from fewbit.errors import DataError
from fewbit.tuning.calling import ARGS, inputs_of, run, takes
from fewbit.tuning.class_names import refuse_fewer
from fewbit.tuning.feeding import Feed, Part
from fewbit.tuning.tasks._base import beyond, logits_of
from fewbit.tuning.unfit_batch import told_with_batch
from fewbit.tuning.unfit_samples import samples_named, without_label

BATCHES = 2
"""How many batches are looked at."""

_UNREAD = "nothing in the batch is an input of the model"
_SAID = ("text", "prompt", "messages", "words", "question")
_TEXTS = (
    "texts become tokens in a configuration (fewbit.generate_dataset_config) with "
    "preprocessing_steps=['tokenization', 'padding'] (--step tokenization --step padding) and "
    "custom_config={'tokenizer': folder}"
)


def look(feed: Feed, model: nn.Module, task: Any, what: str) -> None:
    """Look at the first batches of some data.

    Args:
        feed: the data.
        model: that is to learn from it.
        task: what it learns.
        what: which data this is, in messages.

    Raises:
        DataError: everything that is wrong with them.
    """
    parts = list(islice(feed.epoch(0), BATCHES))
    if not parts:
        raise DataError(f"the {what} data has no batch", code="no-samples", expected="at least one")
    found: dict[str, str] = {}  # each fault once, with where it was first
    for part in parts:
        with samples_named(part.batch, part.items, feed.name, f"{what} data"):
            for fault in _faults(part, parts[0], model, task):
                found.setdefault(fault, feed.name(part.items))
    if found:
        raise DataError(
            "; ".join(found),
            code="batch",
            where=f"{what} data, {next(iter(found.values()))}",
            expected=f"batches for {type(model).__name__}, which takes {', '.join(sorted(takes(model))[:12])}",
            try_=_advice(found),
        )


def _advice(faults: Iterable[str]) -> str | None:
    """What helps against the faults of a batch, if it is known."""
    if any(fault.startswith(_UNREAD) and any(name in fault for name in _SAID) for fault in faults):
        return _TEXTS
    if any("'label'" in fault for fault in faults):
        return "custom_config={'columns': {'text': 'your column', 'label': 'another'}}"
    return None


def try_out(model: nn.Module, task: Any, batch: dict[str, Any], where: str, classes: list[str] | None = None) -> None:
    """Run a model on a batch once, as it is judged, and leave no trace of it.

    Args:
        model: on its device.
        task: what it learns.
        batch: on the same device.
        where: what is to be said of where the batch comes from.
        classes: of the data; of a model that is not of Hugging Face's only its answer says how many it has.

    Raises:
        DataError: the model does not take it, or does not answer what the task learns from.
        UsageError: the model tells fewer classes apart than the data has.
    """
    fits = told_with_batch(
        batch,
        "the model cannot be trained on the first batch",
        where=f"training data, {where}",
        expected=f"inputs that {type(model).__name__} takes, and answers of it that fit the labels",
        try_="a step of your own that makes a sample what the model takes: "
        "preprocessing_steps=['file.py:function'] (--step file.py:function)",
    )
    with fits, samples_named(batch, (), lambda _: where, "training data"), evaluating(model):
        outputs = run(model, batch, getattr(task, "ANSWERS", ("labels",)))
        if hasattr(task, "AXIS"):
            count = logits_of(outputs).shape[task.AXIS]
            refuse_fewer(model, classes, count)
            found = beyond(batch["labels"], count)  # a GPU would not say so, and be of no use afterwards
            if found is not None:
                raise found
        task.loss(outputs, batch)


def _faults(part: Part, first: Part, model: nn.Module, task: Any) -> Iterator[str]:
    batch = part.batch
    answers = getattr(task, "ANSWERS", ("labels",))
    lacking = sorted(first.batch.keys() ^ batch.keys())
    if lacking:
        yield f"batches differ: {', '.join(lacking)} is not in each of them"
    yield from _sizes(batch)
    args, named = inputs_of(model, batch, answers)
    if not args and not named:
        yield f"{_UNREAD}: there is {', '.join(batch) or 'nothing'}"
        return
    if "labels" in answers and len(answers) == 1 and "labels" not in batch:
        yield f"there are no labels: there is {', '.join(batch)}; expected 'label' or 'labels' in every sample"
        return
    lost = without_label(batch) if "labels" in answers and len(answers) == 1 else None
    if lost is not None:
        raise lost
    broken = [name for name, value in batch.items() if isinstance(value, Tensor) and _is_broken(name, value)]
    if broken:
        yield f"{', '.join(broken)} has values that are not finite"
    try:
        yield from getattr(task, "faults", lambda *_: [])(batch, model)
    except (AttributeError, TypeError, KeyError, IndexError, RuntimeError) as error:
        # What a task cannot even look at is not what it takes.
        yield f"the batch is not one for this task ({type(error).__name__}: {str(error)[:200]}): {describe(batch)}"


def _sizes(batch: dict[str, Any]) -> Iterator[str]:
    """Whether all tensors hold as many samples."""
    flat = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    flat |= {f"input {i}": value for i, value in enumerate(batch.get(ARGS, ())) if isinstance(value, Tensor)}
    rows = {name: len(value) for name, value in flat.items() if name in ("input_ids", "attention_mask", "labels")}
    rows |= {name: len(value) for name, value in flat.items() if name.startswith(("input ", "pixel_values"))}
    if len(set(rows.values())) > 1:
        yield "the tensors of a batch hold different numbers of samples: " + ", ".join(
            f"{name} {count}" for name, count in rows.items()
        )


def _is_broken(name: str, value: Tensor) -> bool:
    if not value.is_floating_point():
        return False
    return bool(value.isnan().any() if name.endswith("mask") else not value.isfinite().all())
