# SPDX-License-Identifier: Apache-2.0
"""Samples of prepared data as the inputs of a model, for whoever has to see what its layers read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit import registry
from fewbit.data.arrays.leading_axis import fixed_batch
from fewbit.data.config import DatasetConfig, generate_dataset_config
from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw
from fewbit.data.preparing.checking import keys_of
from fewbit.data.sample import Sample
from fewbit.data.signature import read_signature
from fewbit.data.source import known_length
from fewbit.data.text import as_inputs
from fewbit.sparsity.job import Job
from fewbit.sparsity.opening import Network
from fewbit.sparsity.use_cases._base import UseCase

_PICTURES = "pixel_values"
_OBJECTS = ("boxes", "classes", "polygons", "mask", "masks")


def calibration_of(data: Any, network: Network, use_case: UseCase, own: Mapping[str, Any], samples: int) -> Dataset:
    """The samples to look at, as inputs of the model without a batch axis; items of a loader as they are.

    Of files they are drawn at random, always the same ones: those that come first may all be of one class. Texts for a
    model that says the next token, and for a graph, are tokenized as `fewbit quantize` does it.

    Args:
        data: a configuration, or an object that `Dataset` takes.
        network: the model.
        use_case: what the data is for.
        own: options about samples: `seqlen`, `pack`, `text_column`.
        samples: how many are read.

    Raises:
        DataError: a first sample that the model does not take, with every reason.
    """
    how = {"seqlen": own["seqlen"], "pack": own["pack"]}
    if not isinstance(data, DatasetConfig):
        given, column = network.home or network.model, own["text_column"]
        made = as_inputs(Dataset(data), given, network.model, column=column, **how)
    elif "tokenization" in data.steps and (use_case.task in (None, "causal_lm") or network.is_graph):
        how["pack"] = own["pack"] or ("concatenate" if use_case.task == "causal_lm" else "pad")
        rows = Dataset(_rows_of(data).open("train").source, _joined, batched=False)
        made = as_inputs(rows, data.tokenizer(), network.model, **how)
    else:
        opened = data.open("train")
        made = Dataset(opened.source, AsInputs.of(network.model, use_case), batched=False)
        if known_length(made.source) is not None:
            made = draw(made, samples)
    made.validate(network.model)
    return made


def batch_of(model: Any, job: Job) -> int:
    """How many calibration samples a model is shown at a time: the number it is fixed to, else what the user says.

    Items have a batch axis of their own, and texts and pictures may differ in size: those are shown one by one.
    """
    fixed = fixed_batch(read_signature(model))
    kind = getattr(job.use_case, "kind", None)
    alike = kind == "arrays" or (kind == "pictures" and job.preprocessing.get("size") is not None)
    if fixed > 1 or not alike or getattr(job.calibration, "batched", True):
        return fixed
    return int(job.options.get("batch_size") or 1)


@dataclass(frozen=True)
class AsInputs:
    """Makes a prepared sample one that a model takes.

    Args:
        names: of the model's inputs.
        answers: what is not given to it.
        last: whether it takes pictures with the channels last.
    """

    names: tuple[str, ...]
    answers: frozenset[str]
    last: bool = False

    @classmethod
    def of(cls, model: Any, use_case: UseCase) -> AsInputs:
        """What a model takes."""
        inputs = read_signature(model).inputs
        task = None if use_case.task is None else registry.get("tasks", use_case.task)
        answers = {"label", "labels", *_OBJECTS, *getattr(task, "ANSWERS", ())}
        four = next((spec.shape for spec in inputs if spec.shape is not None and len(spec.shape) == 4), None)
        last = four is not None and four[3] in (1, 3, 4) and four[1] not in (1, 3, 4)
        return cls(tuple(spec.name for spec in inputs), frozenset(answers), last)

    def __call__(self, sample: Mapping[str, Any]) -> Sample:
        """The sample under the names of the model's inputs."""
        kept = {name: value for name, value in sample.items() if name not in self.answers and value is not None}
        if _PICTURES in kept and _PICTURES not in self.names and self.names:
            kept = {self.names[0]: kept[_PICTURES]}
        if self.last:
            kept = {name: np.moveaxis(np.asarray(v), 0, -1) if np.ndim(v) == 3 else v for name, v in kept.items()}
        return Sample(kept, place=getattr(sample, "place", None))


def _joined(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A prompt and its answer as the one text they are to a model."""
    if not {"prompt", "answer"} <= row.keys():
        return row
    return Sample({"text": row["prompt"] + row["answer"]}, place=getattr(row, "place", None))


def _rows_of(config: DatasetConfig) -> DatasetConfig:
    """The same data with nothing done to its rows."""
    known = {key.name for key in keys_of(config.origin, ())}
    steps = [step for step in config.steps if step == "sampling"]
    kept = {n: v for n, v in config.given.items() if n in known or (steps and n.startswith("sampling_"))}
    return generate_dataset_config(config.data, steps, kept)
