# SPDX-License-Identifier: Apache-2.0
"""Label names of a deployed model, in the order of its outputs, and where they were taken from."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from torch import nn

from fewbit.sparsity.deploying.samples import Sample
from fewbit.sparsity.job import Job
from fewbit.tuning.class_names import TASKS, own_names, read_names
from fewbit.tuning.tasks._base import classes_of

MODEL, TRAINED, DATA = (
    "the model's own label names, in the order of its outputs",
    "the labels of the training data, in the order the model was trained with",
    "taken from the data, in the data's order: the model has no label names",
)
_ONE_LOGIT_EACH = ("sequence_classification", "image_classification")


@dataclass(frozen=True)
class Labels:
    """Label names by output index; `names` is empty if nothing is known, and `source` says why or where from."""

    names: tuple[str, ...] = ()
    source: str = ""


def labels_of(model: Any, samples: Sequence[Sample], job: Job) -> Labels:
    """The labels of a model: its own if it has some, else those of the data.

    Args:
        model: the model that is deployed, an `nn.Module` or an ONNX `ModelProto`.
        samples: with the model's outputs, by which the number of labels is checked.
        job: of the call, with the labels of the data and what was trained.
    """
    if not job.classes and job.task not in TASKS:
        return Labels()
    own = own_names(model) if isinstance(model, nn.Module) else _names_of_graph(model, job.home)
    if own:
        return Labels(tuple(own), MODEL)
    if not job.classes:
        return Labels()
    names = tuple(job.classes)
    count = _outputs(model, samples, job.task)
    if count is not None and count != len(names):
        return Labels((), f"the model has {count} outputs and no label names, the data has {len(names)} labels")
    return Labels(names, TRAINED if "train" in job.record.facts else DATA)


def _names_of_graph(model: Any, home: str | None) -> list[str] | None:
    """Label names of an ONNX model: its metadata (`names`, as Ultralytics writes it), or `config.json` next to it."""
    for entry in model.metadata_props:
        if entry.key == "names":
            try:
                found = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            names = read_names(dict(enumerate(found)) if isinstance(found, list) else found)
            if names:
                return names
    config = None if home is None else Path(home).expanduser().parent / "config.json"
    if config is None or not config.is_file():
        return None
    try:
        content = orjson.loads(config.read_bytes())
    except orjson.JSONDecodeError:
        return None
    return read_names(content.get("id2label")) if isinstance(content, Mapping) else None


def _outputs(model: Any, samples: Sequence[Sample], task: str | None) -> int | None:
    """Number of labels that the model tells apart; `None` if that cannot be read from its outputs."""
    if task in TASKS and isinstance(model, nn.Module) and (count := classes_of(model)) is not None:
        return count
    outputs = list(samples[0].outputs.values()) if samples else []
    if task not in _ONE_LOGIT_EACH or len(outputs) != 1 or outputs[0].ndim != 2 or outputs[0].shape[1] < 2:
        return None
    return int(outputs[0].shape[1])
