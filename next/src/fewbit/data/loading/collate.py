# SPDX-License-Identifier: Apache-2.0
"""`get_custom_data_collator`: samples as a batch of tensors, padded, with masks and labels that ignore the padding."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fewbit.data.loading.batching import BatchColumns, plain_values, signals, tokens
from fewbit.data.loading.batching_images import images
from fewbit.data.text.tokenizer import max_tokens, pad_id
from fewbit.errors import FewbitWarning, UsageError

if TYPE_CHECKING:
    from fewbit.data.loading.config import DatasetConfig

BATCH_SIZE = 8
SIGNALS = ("input_values", "input_features", "audio", "waveform", "speech", "signal")


@dataclass(frozen=True)
class Padding:
    """How samples of a batch become equally long.

    Args:
        to: `longest` of the batch, `max_length`, or `none`: they must be already.
        length: for `max_length`.
        multiple: lengths are multiples of this.
        side: where tokens are padded.
        token: padding token; masked out in masks and labels.
    """

    to: Literal["longest", "max_length", "none"] = "longest"
    length: int | None = None
    multiple: int = 1
    side: str = "right"
    token: int = 0

    def width(self, lengths: np.ndarray) -> int:
        """Tokens of a batch."""
        return self.rounded(self.length if self.to == "max_length" and self.length else int(lengths.max()))

    def rounded(self, size: int) -> int:
        """The next multiple.

        >>> Padding(multiple=8).rounded(11)
        16
        """
        return -(-size // self.multiple) * self.multiple


@dataclass(frozen=True)
class Collator:
    """Makes a batch of samples.

    Args:
        batch_size: samples per batch, read by the loader.
        padding: how samples become equally long.
        attention: of packed rows: `mask` gives a 4-D mask that every model takes; `positions` gives none, for
            FlashAttention, which finds the samples by their `position_ids`.
        targets: boxes, classes and masks as `lists`, or `padded` with an `object_mask`.
        ragged: fields whose sizes differ, and along which axis.

    >>> Collator()([{"input_ids": [5, 6]}, {"input_ids": [7]}])["attention_mask"].tolist()
    [[1, 1], [1, 0]]
    """

    batch_size: int = BATCH_SIZE
    padding: Padding = Padding()
    attention: Literal["mask", "positions"] = "mask"
    targets: Literal["lists", "padded"] = "lists"
    ragged: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, samples: Sequence[Any], locations: Sequence[str] | None = None) -> dict[str, Any]:
        """One batch.

        Args:
            samples: dicts with the same fields.
            locations: names of the samples, for messages.
        """
        columns = BatchColumns(samples, locations)
        batch: dict[str, Any] = {}
        if "input_ids" in columns:
            batch |= tokens(columns, self.padding, self.attention)
        if "pixel_values" in columns or "image" in columns:
            batch |= images(columns, self.padding, self.targets)
        for name in list(columns.values):
            if name in self.ragged or name in SIGNALS:
                alone = "attention_mask" not in batch
                batch |= signals(columns, name, self.ragged.get(name, 0), self.padding, alone)
        batch |= plain_values(columns, self.padding)
        if "label" in batch and "labels" not in batch:
            batch["labels"] = batch.pop("label")
        return batch


def get_custom_data_collator(
    dataset_config: DatasetConfig,
    batch_size: int | None = None,
    padding: Any = True,
    *,
    attention: Literal["mask", "positions"] = "mask",
    targets: Literal["lists", "padded"] = "lists",
    ragged: Mapping[str, int] | None = None,
) -> Collator:
    """A collator for the samples of a configuration.

    Any function from a list of samples to a batch can be used in its place.

    Args:
        dataset_config: from `generate_dataset_config`.
        batch_size: samples per batch; the configuration's by default, else 8.
        padding: `True` pads as the configuration says, to the longest of the batch by default; `longest`, `max_length`,
            `False`, or `{"multiple_of": k}` override it.
        attention: of packed rows, `mask` or `positions`.
        targets: boxes, classes and masks as `lists` or `padded`.
        ragged: fields whose sizes differ, and along which axis: `{"spectrum": 1}`.

    Raises:
        UsageError: an argument that does not fit.
    """
    settings = dataset_config.custom_config
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise _wrong("batch_size", batch_size, "an integer >= 1")
    for name, value, choices in (
        ("attention", attention, ("mask", "positions")),
        ("targets", targets, ("lists", "padded")),
    ):
        if value not in choices:
            raise _wrong(name, value, " or ".join(choices))
    setting = settings.padding if padding is True and settings.padding is not None else padding
    _note_override("batch_size", batch_size, settings.batch_size)
    _note_override("padding", None if padding is True else padding, settings.padding)
    size = batch_size or settings.batch_size or BATCH_SIZE
    rule = read_padding(setting, settings.padding_side, settings.max_length, _tokenizer(dataset_config))
    return Collator(size, rule, attention, targets, dict(ragged or {}))


def read_padding(setting: Any, side: str | None, max_length: int | None, tokenizer: Any) -> Padding:
    """Parse the `padding` argument."""
    multiple = 1
    if isinstance(setting, Mapping):
        multiple = setting.get("multiple_of")  # type: ignore[assignment]
        if setting.keys() != {"multiple_of"} or not isinstance(multiple, int) or multiple < 1:
            raise _wrong("padding", setting, "{'multiple_of': k} with k from 1 up")
        setting = True
    kinds: dict[Any, Literal["longest", "max_length", "none"]] = {
        True: "longest", None: "longest", "longest": "longest", "max_length": "max_length", False: "none",
        "none": "none",
    }  # fmt: skip
    if not isinstance(setting, bool | str | None) or setting not in kinds:
        raise _wrong("padding", setting, "True, 'longest', 'max_length', False or {'multiple_of': k}")
    kind = kinds[setting]
    length = (max_length or max_tokens(tokenizer)) if kind == "max_length" else None
    if kind == "max_length" and length is None:
        raise _wrong("padding", setting, "max_length in the configuration, or a tokenizer that has one")
    side = side or str(getattr(tokenizer, "padding_side", "right"))
    return Padding(kind, length, multiple, side, pad_id(tokenizer))


def _tokenizer(config: DatasetConfig) -> Any:
    """The tokenizer, if the data has to do with tokens."""
    steps = config.preprocessing_steps
    needs = steps is None and config.origin.preset.task is not None
    if needs or config.custom_config.tokenizer is not None or "tokenization" in (steps or ()):
        return config.tokenizer
    return None


def _note_override(name: str, call: Any, config: Any) -> None:
    if call is None or config is None or call == config or (call in ("longest",) and config is True):
        return
    message = f"{name}={call!r} of the call is used, not {config!r} of the configuration"
    warnings.warn(FewbitWarning(message, code="setting-overridden"), stacklevel=3)


def _wrong(name: str, value: Any, expected: str) -> UsageError:
    return UsageError(f"{name}={value!r}", code="collator", param=name, expected=expected, hint="correct the argument")
