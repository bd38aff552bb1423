# SPDX-License-Identifier: Apache-2.0
"""Whatever a user gives as data, as what a run reads: a configuration, a dataset, a path, a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewbit import registry
from fewbit.data.collate import Collator, get_custom_data_collator
from fewbit.data.config import DatasetConfig, generate_dataset_config
from fewbit.data.dataset import Dataset
from fewbit.data.kinds import comes_from
from fewbit.data.loaders.loader import Loader
from fewbit.data.presets.custom_dataset import are_numbers
from fewbit.data.text.tokenizer import has_tokenizer, home_of
from fewbit.errors import DataError, FewbitError, UsageError
from fewbit.record import Record
from fewbit.tuning.choosing import tasks_of
from fewbit.tuning.feeding import BatchFeed, Feed, SampleFeed, Sharing
from fewbit.tuning.options import Options


@dataclass(frozen=True)
class Data:
    """What a run reads.

    Args:
        train: to learn from.
        validation: to judge by; none if there is none.
        batch_size: samples that a process runs at a time.
        task: what it is for, if the data knows.
        tokenizer: that made it, if there was one.
        classes: the names of its classes in the order of their numbers, if it has any.
        records: what was assumed, repaired and left out, in the data to learn from and in that to judge by.
    """

    train: Feed
    validation: Feed | None
    batch_size: int
    task: str | None = None
    tokenizer: Any = None
    classes: list[str] | None = None
    records: tuple[Record, ...] = ()

    def notes(self) -> list[dict[str, Any]]:
        """What became of the rows, so far as they were read: each line once."""
        found: list[dict[str, Any]] = []
        for record in self.records:
            found += [line for line in record.lines if line not in found]
        return found


def as_config(
    data: Any, model: Any, steps: Sequence[str] | None = None, custom_config: Mapping[str, Any] | None = None
) -> Any:
    """A path or a dataset's name as its configuration, with the tokenizer of the model; everything else as it is.

    Args:
        data: what the user gave; a `.yaml` or `.json` file may be a configuration, `"file.py:function"` returns what
            else may be given; of lists and Hugging Face datasets, those with texts have to be prepared.
        model: the model, or where it was opened from.
        steps: what is done to rows, if anybody says.
        custom_config: further options, if anybody says any.
    """
    if _are_texts(data):
        return generate_dataset_config(data, steps, _with_tokenizer(model, dict(custom_config or {})))
    if not isinstance(data, str | Path):
        return data
    if registry.is_reference(data):
        found = registry.load_reference(str(data))
        return as_config(found() if isfunction(found) else found, model, steps, custom_config)
    more = dict(custom_config or {})
    place = Path(data).expanduser()
    if steps is None and place.exists() and _is_numbers(place):
        return generate_dataset_config(str(data), (), more)
    config = _written(place)
    if config is not None:
        return config.replace(**more, **({} if steps is None else {"steps": steps})) if more or steps else config
    return generate_dataset_config(str(data), steps, _with_tokenizer(model, more))


def _with_tokenizer(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    home = home_of(model)
    return {"tokenizer": str(home), **options} if home is not None and has_tokenizer(home) else options


def _are_texts(data: Any) -> bool:
    """Whether an object is rows that have to be prepared: a list of dicts, or a Hugging Face dataset, with texts."""
    if not isinstance(data, list) and not comes_from(data, "datasets.arrow_dataset.Dataset"):
        return False
    row = data[0] if len(data) else None
    return isinstance(row, Mapping) and "input_ids" not in row and any(isinstance(v, str) for v in row.values())


def for_model(data: Any, task: str | None, model: nn.Module) -> Any:
    """A configuration that does not say what its samples are for, with what the model is trained to do.

    Args:
        data: a configuration; anything else stays as it is.
        task: the user's word, if there is one.
        model: whose class is for a task, if it is one of transformers'.
    """
    if not isinstance(data, DatasetConfig) or data.task is not None:
        return data
    task = task or next(iter(tasks_of(model)), None)
    return data if task is None else data.replace(task=task)


def _is_numbers(place: Path) -> bool:
    """Whether the rows of a dataset are numbers and arrays of them, and nothing that has to be prepared."""
    try:
        row = next(iter(Dataset(place)), None)
    except FewbitError:  # what is wrong with it is told when it is opened as what it is
        return False
    if not isinstance(row, Mapping) or "image" in row:  # of which a configuration knows what to do
        return False
    return are_numbers(row)


def _written(place: Path) -> DatasetConfig | None:
    """The configuration that a file is; none if it is rows, or no file."""
    if place.suffix not in (".yaml", ".yml", ".json") or not place.is_file():
        return None
    with place.open(encoding="utf-8", errors="replace") as file:
        if "dataset_name" not in file.read(4096):
            return None
    read = DatasetConfig.from_json if place.suffix == ".json" else DatasetConfig.from_yaml
    return read(place.read_bytes())


def open_data(
    data: Any,
    validation: Any,
    options: Options,
    *,
    given: set[str],
    device: torch.device,
    rank: int = 0,
    world: int = 1,
) -> Data:
    """The feeds of a run.

    Args:
        data: what `finetune` takes, configurations instead of paths.
        validation: the same, to judge by; none takes what the configuration of the data keeps aside; False takes
            nothing.
        options: of the run.
        given: the options that the user said; others may be what the data says.
        device: where batches go.
        rank: which process this is.
        world: how many there are.
    """
    size = None if "batch_size" in given else _batch_size(data)
    if size is not None:
        options = replace(options, batch_size=size)
    config = data if isinstance(data, DatasetConfig) else None
    if (
        config is not None
        and validation is not None
        and validation != config
        and "validation_ratio" not in config.given
    ):
        data = config.replace(validation_ratio=0)  # nothing has to be kept aside
    sharing = Sharing(options.batch_size, options.accumulation, rank, world)
    opener = _Opener(options, device)
    opened = opener.opened
    train = opener.feed(data, sharing, learning=True)
    judged = None
    if config is not None and (validation == config or (validation is None and _keeps_aside(config))):
        judged = _to_judge(partial(opener.feed, config, replace(sharing, accumulation=1), split="validation"))
    elif validation is not None and validation is not False:
        validation = _numbered_alike(validation, opener.opened)
        judged = _to_judge(partial(opener.feed, validation, replace(sharing, accumulation=1), split=None))
    tokenized = config is not None and "tokenization" in config.steps
    tokenizer = config.tokenizer() if config is not None and tokenized else None
    return Data(
        train,
        judged,
        options.batch_size,
        None if config is None else config.task,
        tokenizer,
        opened[0].classes if opened else None,
        tuple(dataset.record for dataset in opened),
    )


def _numbered_alike(validation: Any, opened: Sequence[Dataset]) -> Any:
    """Data to judge by whose classes have the numbers they have in the data to learn from."""
    classes = opened[0].classes if opened else None
    if (
        not classes
        or not isinstance(validation, DatasetConfig)
        or validation.options.get("classes", classes) is not None
    ):
        return validation
    return validation.replace(classes=classes)


def _to_judge(opened: Callable[[], Feed]) -> Feed:
    """The data to judge by; what is wrong with it is told with which data it is."""
    try:
        return opened()
    except DataError as error:
        raise DataError(
            f"the data to judge by: {error.what}",
            code=error.code,
            where=error.where,
            expected=error.expected,
            try_=error.try_ or "validation=DATA (--validation DATA), or False for none",
        ) from error


@dataclass(frozen=True)
class _Opener:
    options: Options
    device: torch.device
    opened: list[Dataset] = field(default_factory=list)

    def feed(self, data: Any, sharing: Sharing, *, learning: bool = False, split: str | None = "train") -> Feed:
        options = self.options
        if isinstance(data, torch.utils.data.DataLoader):
            return BatchFeed(data, sharing, seed=options.seed)
        collate: Any = Collator(sharing.batch_size)
        if isinstance(data, DatasetConfig):
            collate = get_custom_data_collator(data.replace(batch_size=sharing.batch_size))
            data = data.open(split)
        elif isinstance(data, Loader):
            data, collate = data.dataset, data.collator
        dataset = data if isinstance(data, Dataset) else Dataset(data)
        self.opened.append(dataset)
        if dataset.batched:
            return BatchFeed(dataset, sharing, seed=options.seed)
        return SampleFeed(
            dataset,
            collate,
            sharing,
            device=self.device,
            seed=options.seed,
            shuffle=options.shuffle and learning,
            workers=options.workers,
        )


def _batch_size(data: Any) -> int | None:
    """What the data says of the size of a batch."""
    if isinstance(data, DatasetConfig):
        said: int | None = data.options["batch_size"]
        return said
    return data.batch_size if isinstance(data, Loader) else None


def _keeps_aside(config: DatasetConfig) -> bool:
    """Whether a configuration has samples that are not to be learned from."""
    try:
        config.open("validation")
    except UsageError:  # the files have no such split, and nothing is to be cut off
        return False
    return True
