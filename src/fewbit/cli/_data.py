# SPDX-License-Identifier: Apache-2.0
"""What `--data`, `--transform` and `--batch-size` mean, the same for every command that has them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fewbit import registry
from fewbit.cli._reference import load_function
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.data.dataset import Dataset


def open_data(data: str, transform: str | None) -> Dataset:
    """The dataset at a path, or the one that `file.py:name` is or returns.

    Raises:
        UsageError: no such path, file or name, a function that takes arguments.
    """
    from fewbit.data.dataset import Dataset
    from fewbit.data.objects.spool import SpoolWarning

    change = None if transform is None else load_function(transform, returns="a model input", takes=("a row",))
    source = _referred(data) if registry.is_reference(data) else data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpoolWarning)  # the record says it too, and is printed
        return Dataset(source, change)


def check_batch_size(dataset: Dataset, batch_size: int) -> None:
    """Refuse to batch what comes in batches already, and what cannot be put into one.

    Raises:
        UsageError: a batch size for a loader, for inputs a transform made, for texts.
    """
    if batch_size > 1 and dataset.batched:
        raise UsageError(
            f"--batch-size {batch_size} for data that have a batch axis of their own",
            where="--batch-size",
            expected="1: what a loader, a transform or the tokenizer gives is one model input, and is run as it is",
            try_="leave it out, or make the batches in file.py:function",
        )


def _referred(text: str) -> Any:
    """What a reference names; a function or class is called for it."""
    found = registry.load_reference(text)
    holds_data = hasattr(found, "__iter__") or hasattr(found, "__getitem__")
    if isinstance(found, type) or not holds_data:
        return load_function(text, returns="a dataset, a loader or a list")()
    return found
