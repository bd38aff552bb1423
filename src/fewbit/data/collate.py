# SPDX-License-Identifier: Apache-2.0
"""`get_custom_data_collator`: from a list of samples to a batch of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fewbit.data.collating.columns import Columns
from fewbit.data.collating.padding import Padding, read_padding
from fewbit.data.collating.plain import join_plain
from fewbit.data.collating.ragged import SIGNALS, join_ragged
from fewbit.data.collating.text import Attention, join_text
from fewbit.data.collating.vision import PICTURES, Targets, join_vision
from fewbit.data.keys import is_count
from fewbit.data.preparing.frozen import thaw
from fewbit.errors import UsageError

BATCH_SIZE = 8
"""Of a batch, if nobody says."""


@dataclass(frozen=True)
class Collator:
    """Makes a batch of samples. It holds plain values only, so it goes into any worker process.

    `input_ids` and what goes with them are filled up to one width; `image` or `pixel_values` are stacked or put on one
    canvas, with boxes and masks; signals of different lengths get lengths and a mask; numbers and tensors are stacked;
    what is none of these stays a list. `label` becomes `labels`, as models of transformers call it.

    Args:
        batch_size: how many samples a loader gives it.
        padding: how rows of different lengths become one width.
        attention: of packed rows, a mask of four axes or positions alone; see `join_text`.
        targets: objects in pictures as lists, or filled up; see `join_vision`.
        ragged: the axis along which a field of yours differs from sample to sample.
        notes: what was assumed.

    >>> batch = Collator()([{"input_ids": [5, 6], "label": 1}, {"input_ids": [7], "label": 0}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist()
    ([[5, 6], [7, 0]], [[1, 1], [1, 0]], [1, 0])
    """

    batch_size: int = BATCH_SIZE
    padding: Padding = Padding()
    attention: Attention = "mask"
    targets: Targets = "lists"
    ragged: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __call__(self, samples: Sequence[Mapping[str, Any]], indices: Sequence[int] | None = None) -> dict[str, Any]:
        """The batch of some samples.

        Args:
            samples: dicts with the same fields, without a batch axis.
            indices: their numbers in the dataset, for messages.

        Raises:
            DataError: a sample that does not fit, with its number and the field.
        """
        columns = Columns(samples, indices)
        if "label" in columns and "labels" not in columns:
            columns.values["labels"] = columns.take("label")
        batch: dict[str, Any] = {}
        if any(name in columns for name in PICTURES):
            batch |= join_vision(columns, self.padding, self.targets)
        if "input_ids" in columns:
            batch |= join_text(columns, self.padding, self.attention)
        axes = {**SIGNALS, **self.ragged}
        signals = [name for name in columns.values if name in axes]
        alone = len(signals) == 1 and "attention_mask" not in {*columns.values, *batch}
        for name in signals:
            batch |= join_ragged(columns, name, axes[name], self.padding, alone)
        for name in list(columns.values):
            batch |= join_plain(columns, name, self.padding)
        return batch


def get_custom_data_collator(
    dataset_config: Any,
    batch_size: int | None = None,
    padding: bool | str | Mapping[str, int] | None = None,
    *,
    attention: Attention = "mask",
    targets: Targets = "lists",
    ragged: Mapping[str, int] | None = None,
) -> Collator:
    """What puts the samples of a configuration into batches.

    Args:
        dataset_config: from `generate_dataset_config`.
        batch_size: samples of a batch, of each process; if left out, the configuration's, else 8. Where both say
            something else this one holds, with a warning.
        padding: `True` or `"longest"`: up to the longest of a batch; `"max_length"`: up to the configuration's
            `max_length`; `{"multiple_of": k}`: up to a multiple; `False`: not at all, and lengths that differ are an
            error. If left out, the configuration's.
        attention: for packed rows: `"mask"`, right with every model of transformers; or `"positions"`, which costs
            nothing and is for flash attention, and for other models called with `use_cache=False`.
        targets: boxes, classes and masks of pictures as `"lists"`, or `"padded"` with an `object_mask`.
        ragged: fields of yours whose sizes differ, and along which axis: `{"spectrum": 1}`.

    Raises:
        UsageError: an argument that makes no sense.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(options={"batch_size": 4}, steps=())
    >>> get_custom_data_collator(config, padding={"multiple_of": 8}).batch_size
    4
    """
    options = dataset_config.options
    _check(batch_size, "batch_size", batch_size is None or is_count(batch_size), "a whole number from 1 up")
    _check(attention, "attention", attention in ("mask", "positions"), "'mask' or 'positions'")
    _check(targets, "targets", targets in ("lists", "padded"), "'lists' or 'padded'")
    tokenizer = _tokenizer(dataset_config)
    calls: dict[str, Any] = {"batch_size": batch_size, "padding": padding}
    says: dict[str, Any] = {}
    for name, call in calls.items():
        config = thaw(options.get(name))
        says[name] = config if call is None else call
        if None not in (call, config) and _normal(call) != _normal(config):
            warnings.warn(f"{name}={call!r} of the call holds, not {config!r} of the configuration", stacklevel=2)
    rule = read_padding(says["padding"], options.get("padding_side"), options.get("max_length"), tokenizer)
    size = says["batch_size"] or BATCH_SIZE
    return Collator(size, rule, attention, targets, dict(ragged or {}), _notes(tokenizer))


def _normal(value: Any) -> Any:
    return "longest" if value is True else value


def _tokenizer(config: Any) -> Any:
    """The tokenizer of a configuration that has to do with tokens."""
    if "tokenization" in config.steps or config.options.get("tokenizer") is not None:
        return config.tokenizer()
    return None


def _notes(tokenizer: Any) -> tuple[str, ...]:
    if tokenizer is None or tokenizer.pad_token_id is not None:
        return ()
    return ("the tokenizer has no token for padding; another fills up, which no mask and no label sees",)


def _check(value: Any, name: str, fits: bool, expected: str) -> None:
    if not fits:
        raise UsageError(f"{name}={value!r}", where=f"get_custom_data_collator, {name}", expected=expected)
