# SPDX-License-Identifier: Apache-2.0
"""Data that is named, as what a run reads: a configuration, a dataset, a loader; to learn from and to judge by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fewbit.data.collate import Collator, get_custom_data_collator
from fewbit.data.config import DatasetConfig
from fewbit.data.dataset import Dataset
from fewbit.data.loaders.loader import Loader
from fewbit.errors import DataError, UsageError
from fewbit.record import Record
from fewbit.tuning.class_names import classes_of_data
from fewbit.tuning.feeding import BatchFeed, Feed, SampleFeed, Sharing
from fewbit.tuning.labels_there import LabelsThere
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
    task = (None if config is None else config.task) or (_told_by(opened[0]) if opened else None)
    return Data(
        train,
        judged,
        options.batch_size,
        task,
        tokenizer,
        classes_of_data(opened[0], task) if opened else None,
        tuple(dataset.record for dataset in opened),
    )


def _told_by(dataset: Dataset) -> str | None:
    """The task of data that can be for nothing else: a folder of pictures a class."""
    return "image_classification" if dataset.classes and dataset.facts.get("format") == "image_folder" else None


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
            LabelsThere(**vars(collate)) if type(collate) is Collator else collate,
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
