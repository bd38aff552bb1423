# SPDX-License-Identifier: Apache-2.0
"""Samples as a use case of the user's own makes them: its function is all there is between a row and the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.dataset import Dataset, open_dataset
from fewbit.data.text import open_text
from fewbit.sparsity.said import Said
from fewbit.sparsity.use_cases._base import UseCase

_KEPT_ASIDE = 0.1
_SEED = 0


def own_samples(data: Any, use_case: UseCase, said: Said) -> tuple[Dataset, Dataset | None]:
    """What to learn from, and what is kept aside to judge by: a split of the files', or a tenth.

    Args:
        data: a path or anything `Dataset` takes.
        use_case: whose function makes the samples.
        said: further options.
    """
    train, judged = _split(data, registry.load_reference(use_case.name), said.data)
    if not any(name in next(iter(train), {}) for name in ("label", "labels")):
        judged = None
    return _first(train, said.own["train_samples"]), _first(judged, said.own["val_samples"])


def all_samples(data: Any, use_case: UseCase, said: Said) -> Dataset:
    """Every sample of data that is given to judge by."""
    function = registry.load_reference(use_case.name)
    found: Dataset = _first(Dataset(_opened(data, said.data).source, function, batched=False), said.own["val_samples"])
    return found


def _split(data: Any, function: Any, options: Mapping[str, Any]) -> tuple[Dataset, Dataset | None]:
    whole = _opened(data, options)
    splits = set(whole.facts.get("splits") or ())
    if {"train", "val"} <= splits:
        parts = [_opened(data, options, split) for split in ("train", "val")]
    elif whole.batched:
        return Dataset(whole.source, function, batched=False), None
    else:
        ratio = options.get("validation_ratio", _KEPT_ASIDE)
        parts = list(whole.split(1 - ratio, ratio, seed=_SEED)) if ratio else [whole]
    made = [Dataset(part.source, function, batched=False) for part in parts]
    return made[0], made[1] if len(made) > 1 and len(made[1]) else None


def _opened(data: Any, options: Mapping[str, Any], split: str | None = None) -> Dataset:
    if not isinstance(data, str | Path):
        return data if isinstance(data, Dataset) else Dataset(data)
    how = {"format": options.get("format"), "policy": options.get("policy"), "split": split}
    source = open_text(data)
    return open_dataset(source, **how, **dict(options.get("reading") or {}))


def _first(data: Any, count: int | None) -> Any:
    return data if data is None or count is None else data.subset(count, seed=_SEED)
