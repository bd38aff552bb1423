# SPDX-License-Identifier: Apache-2.0
"""Whatever a user gives as data, as what a run reads: a configuration, a dataset, a path, a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isfunction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewbit import registry
from fewbit.data.collate import Collator, get_custom_data_collator
from fewbit.data.config import DatasetConfig, generate_dataset_config
from fewbit.data.dataset import Dataset
from fewbit.data.loaders.loader import Loader
from fewbit.data.text.tokenizer import has_tokenizer, home_of
from fewbit.errors import FewbitError, UsageError
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
    """

    train: Feed
    validation: Feed | None
    batch_size: int
    task: str | None = None
    tokenizer: Any = None


def as_config(
    data: Any, model: Any, steps: Sequence[str] | None = None, custom_config: Mapping[str, Any] | None = None
) -> Any:
    """A path or a dataset's name as its configuration, with the tokenizer of the model; everything else as it is.

    Args:
        data: what the user gave; a `.yaml` or `.json` file may be a configuration, `"file.py:function"` returns what
            else may be given, and rows of numbers are data as they are.
        model: the model, or where it was opened from.
        steps: what is done to rows, if anybody says.
        custom_config: further options, if anybody says any.
    """
    if not isinstance(data, str | Path):
        return data
    if registry.is_reference(data):
        found = registry.load_reference(str(data))
        return found() if isfunction(found) else found
    more = dict(custom_config or {})
    place = Path(data).expanduser()
    if not more and steps is None and place.exists() and _is_numbers(place):
        return Dataset(place)
    config = _written(place)
    if config is not None:
        return config.replace(**more, **({} if steps is None else {"steps": steps})) if more or steps else config
    home = home_of(model)
    if home is not None and has_tokenizer(home):
        more = {"tokenizer": str(home), **more}
    return generate_dataset_config(str(data), steps, more)


def _is_numbers(place: Path) -> bool:
    """Whether the rows of a dataset are numbers and arrays of them, and nothing that has to be prepared."""
    try:
        row = next(iter(Dataset(place)), None)
    except FewbitError:  # what is wrong with it is told when it is opened as what it is
        return False
    # A folder of pictures is numbers too, but with splits of which one is to judge by: a configuration knows them.
    if not isinstance(row, Mapping) or "image" in row:
        return False
    return all(np.asarray(value).dtype.kind in "biuf" for value in row.values())


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
    train = opener.feed(data, sharing, learning=True)
    judged = None
    if config is not None and (validation == config or (validation is None and _keeps_aside(config))):
        judged = opener.feed(config, replace(sharing, accumulation=1), split="validation")
    elif validation is not None and validation is not False:
        judged = opener.feed(validation, replace(sharing, accumulation=1), split=None)
    tokenized = config is not None and "tokenization" in config.steps
    tokenizer = config.tokenizer() if config is not None and tokenized else None
    return Data(train, judged, options.batch_size, None if config is None else config.task, tokenizer)


@dataclass(frozen=True)
class _Opener:
    options: Options
    device: torch.device

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
