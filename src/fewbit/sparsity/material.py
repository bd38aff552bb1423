# SPDX-License-Identifier: Apache-2.0
"""The data of one call, whatever it was given as: to learn from, to judge by, and as the inputs of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.config import DatasetConfig, generate_dataset_config
from fewbit.data.dataset import Dataset
from fewbit.data.findings import Progress
from fewbit.data.source import known_length
from fewbit.errors import UsageError
from fewbit.record import Record
from fewbit.sparsity.calibration import calibration_of
from fewbit.sparsity.checking import check_data, first_row
from fewbit.sparsity.choosing import use_case_for
from fewbit.sparsity.data_faults import refuse_format, refuse_texts
from fewbit.sparsity.opening import Network
from fewbit.sparsity.own_samples import all_samples, own_samples
from fewbit.sparsity.picture_range import picture_range
from fewbit.sparsity.said import Said
from fewbit.sparsity.use_cases._base import UseCase
from fewbit.tuning.class_names import classes_of_data
from fewbit.tuning.configuring import as_config, for_model

_ANSWERS = ("label", "labels", "boxes", "mask", "masks", "start_positions")
_OF_PICTURES = ("image_size", "image_mean", "image_std")


@dataclass(frozen=True)
class Material:
    """What a call works with.

    Args:
        use_case: what it is for.
        data: to learn from, as `finetune` takes it; none if there is no data.
        validation: to judge by; none if nothing is kept aside or says what is right; False if not wanted.
        calibration: inputs of the model; none if there is no data.
        classes: the names of the classes.
        preprocessing: what is done to rows, as JSON values.
    """

    use_case: UseCase
    data: Any = None
    validation: Any = None
    calibration: Dataset | None = None
    classes: list[str] | None = None
    preprocessing: dict[str, Any] = field(default_factory=dict)


def gather(
    network: Network,
    data: Any,
    validation: Any,
    use_case: UseCase | None,
    said: Said,
    *,
    samples: int,
    record: Record,
    progress: Progress,
) -> Material:
    """Check the data, find what it is for, and prepare it.

    Args:
        network: the model.
        data: what the user gave; none for none.
        validation: to judge by; none for what the data keeps aside, False for nothing.
        use_case: what it is for; found by looking if none.
        said: further options.
        samples: how many calibration samples are read.
        record: takes what was found and assumed.
        progress: shows how far it is.

    Raises:
        UsageError: a use case that does not read such data.
        DataError: faults in the data.
    """
    data = Dataset(data) if hasattr(data, "__next__") else data  # which can be gone through once only
    look = first_row(data) if data is not None else (None, None)
    why = "as was said"
    if use_case is None:
        task = data.task if isinstance(data, DatasetConfig) else None
        use_case, why = use_case_for(network.model, look[0], look[1], task)
        record.note("use-case", why, where=use_case.name)
    if data is None:
        return Material(use_case)
    refuse_format(use_case, look[0], data, why)
    refuse_texts(network, use_case, look[1], said, why)
    about: dict[str, Any] = {"options": said.data, "record": record, "progress": progress}
    check_data(data, use_case, network.model, **about)
    if validation is not None and validation is not False:
        check_data(validation, use_case, network.model, **about)
    for name, each in (("train_samples", data), ("val_samples", validation)):
        if said.own[name] is not None and each is not None and each is not False and _is_stream(each):
            record.note("first-samples", "a stream does not say how long it is: its first ones are taken", where=name)
    find = _of_function if registry.is_reference(use_case.name) else _of_steps
    made, judged = find(data, validation, network, use_case, said, look)
    calibration = calibration_of(made, network, use_case, said.own, samples)
    return Material(
        use_case,
        made,
        judged,
        calibration,
        classes_of_data(made.open("train"), use_case.task) if isinstance(made, DatasetConfig) else None,
        _preprocessing(made, use_case, network, said.own),
    )


def _of_function(
    data: Any, validation: Any, network: Network, use_case: UseCase, said: Said, look: tuple[str | None, Any]
) -> tuple[Any, Any]:
    """What to learn from and to judge by, as a function of the user's makes it."""
    made, kept = own_samples(data, use_case, said)
    if validation is None or validation is False:
        return made, kept if validation is None else False
    return made, all_samples(validation, use_case, said)


def _of_steps(
    data: Any, validation: Any, network: Network, use_case: UseCase, said: Said, look: tuple[str | None, Any]
) -> tuple[Any, Any]:
    """What to learn from and to judge by, as the steps of the use case make it."""
    made = _prepared(data, network, use_case, said, look)
    seed = said.own["seed"]
    made = _limited(made, {"train": said.own["train_samples"], "validation": said.own["val_samples"]}, seed)
    if validation is False:
        return made, False
    if validation is not None:
        judged = _prepared(validation, network, use_case, said, first_row(validation))
        return made, _limited(judged, {"all": said.own["val_samples"]}, seed)
    if not isinstance(made, DatasetConfig):
        return made, None
    if not _answers(made) or not _keeps_aside(made):
        return made.replace(validation_ratio=0), None  # without answers nobody can be judged by it
    return made, made


def _prepared(data: Any, network: Network, use_case: UseCase, said: Said, look: tuple[str | None, Any]) -> Any:
    """Paths, rows and pictures as a configuration; everything else as it is."""
    row = look[1]
    pictured = isinstance(row, Mapping) and "image" in row
    keys = dict(said.data) | ({"task": use_case.task} if use_case.task else {})
    if said.own["text_column"] is not None:
        keys = {"columns": {"text": said.own["text_column"]}} | keys
    steps = None
    if use_case.kind == "pictures" and pictured:
        wanted = {name: keys.pop(name) for name in _OF_PICTURES if name in keys}
        steps, keys = use_case.steps, keys | picture_range(network.model, network.home, wanted)
    if isinstance(data, DatasetConfig):
        return for_model(data.replace(**said.data) if said.data else data, use_case.task, network.model)
    home = network.home or network.model
    if pictured and not isinstance(data, str | Path):
        return generate_dataset_config(data, steps, keys)
    made = as_config(data, home, steps, keys)
    return for_model(made, use_case.task, network.model) if use_case.task else made


def _limited(data: Any, counts: Mapping[str, int | None], seed: int) -> Any:
    """So many samples of each split, drawn by the seed: those that come first may all be of one class.

    Of a stream, whose end nobody knows, they are the first ones; `gather` says so.
    """
    wanted = {split: count for split, count in counts.items() if count is not None}
    if not wanted:
        return data
    if isinstance(data, DatasetConfig):
        return data.replace(steps=["sampling", *data.steps], sampling_counts=wanted)
    count = counts.get("train") or counts.get("all")
    if count is None:
        return data
    whole = Dataset(data)
    return whole.subset(count, seed=None if _is_stream(whole) else seed)


def _is_stream(data: Any) -> bool:
    return not isinstance(data, DatasetConfig | str | Path) and known_length(Dataset(data).source) is None


def _answers(config: DatasetConfig) -> bool:
    """Whether samples say what is right."""
    sample = next(iter(config.open("train")), None)
    return isinstance(sample, Mapping) and any(name in sample for name in _ANSWERS)


def _keeps_aside(config: DatasetConfig) -> bool:
    """Whether there is a sample to judge by: of a single row nothing can be cut off."""
    try:
        return next(iter(config.open("validation")), None) is not None
    except UsageError:  # the files have no such split, and nothing is to be cut off
        return False


def _preprocessing(data: Any, use_case: UseCase, network: Network, own: Mapping[str, Any]) -> dict[str, Any]:
    """What is done to a row before the model sees it."""
    found: dict[str, Any] = {"kind": use_case.kind}
    if not isinstance(data, DatasetConfig):
        return found
    found["steps"] = [step for step in data.steps if step != "sampling"]
    if "rescaling" in data.steps:
        said = {name: data.options.get(name) for name in _OF_PICTURES}
        mean, std = said["image_mean"] or [0.0], said["image_std"] or [1.0]
        size = said["image_size"]
        found |= {
            "size": [size, size] if isinstance(size, int) else None if size is None else list(size),
            "scale": 1 / 255, "mean": list(mean), "std": list(std), "layout": "channels first", "colours": "RGB",
        }  # fmt: skip
    if "tokenization" in data.steps:
        found |= {"tokenizer": "beside the model", "max_length": data.options.get("max_length")}
        found |= {"seqlen": own["seqlen"]} if use_case.task == "causal_lm" else {}
    return found
