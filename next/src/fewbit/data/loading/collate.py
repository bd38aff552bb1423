# SPDX-License-Identifier: Apache-2.0
"""`get_custom_data_collator`: samples as a batch of tensors, padded, with masks and labels that ignore the padding."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fewbit.data.text.pack import block_mask
from fewbit.data.text.roles import IGNORED
from fewbit.data.text.tokenizer import max_tokens, pad_id
from fewbit.errors import DataError, FewbitWarning, UsageError

if TYPE_CHECKING:
    from fewbit.data.loading.config import DatasetConfig

BATCH_SIZE = 8
SIGNALS = ("input_values", "input_features", "audio", "waveform", "speech", "signal")
_PER_TOKEN = ("attention_mask", "token_type_ids", "position_ids", "special_tokens_mask")
_RELATIVE = 1.001
"""Boxes with larger values are in pixels."""

Array = np.ndarray


def get_custom_data_collator(
    dataset_config: DatasetConfig,
    batch_size: int | None = None,
    padding: Any = True,
    *,
    attention: Literal["mask", "positions"] = "mask",
) -> Collator:
    """A collator for the samples of a configuration.

    Any function from a list of samples to a batch can be used in its place.

    Args:
        dataset_config: from `generate_dataset_config`.
        batch_size: samples per batch; the configuration's by default, else 8.
        padding: `True` pads as the configuration says, to the longest of the batch by default; `longest`, `max_length`,
            `False`, or `{"multiple_of": k}` override it.
        attention: of packed rows: a 4-D `mask` that every model takes, or `positions` only for FlashAttention, which
            finds the samples by their `position_ids`.

    Raises:
        UsageError: an argument that does not fit.
    """
    settings = dataset_config.custom_config
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise _wrong("batch_size", batch_size, "an integer >= 1")
    if attention not in ("mask", "positions"):
        raise _wrong("attention", attention, "mask or positions")
    for name, value, configured in (
        ("batch_size", batch_size, settings.batch_size),
        ("padding", None if padding is True else padding, settings.padding),
    ):
        if value is not None and configured is not None and value != configured:
            message = f"{name}={value!r} of the call is used, not {configured!r} of the configuration"
            warnings.warn(FewbitWarning(message, code="setting-overridden"), stacklevel=2)
    if padding is True and settings.padding is not None:
        padding = settings.padding
    steps = dataset_config.preprocessing_steps
    by_preset = steps is None and dataset_config.origin.preset.task is not None
    has_tokens = by_preset or settings.tokenizer is not None or "tokenization" in (steps or ())
    tokenizer = dataset_config.tokenizer if has_tokens else None
    rule = read_padding(padding, settings.padding_side, settings.max_length, tokenizer)
    return Collator(batch_size or settings.batch_size or BATCH_SIZE, rule, attention)


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

    def rounded(self, size: int) -> int:
        """The next multiple.

        >>> Padding(multiple=8).rounded(11)
        16
        """
        return -(-size // self.multiple) * self.multiple


def read_padding(setting: Any, side: str | None, max_length: int | None, tokenizer: Any) -> Padding:
    """The rule behind a `padding` argument."""
    multiple: Any = 1
    if isinstance(setting, Mapping):
        multiple = setting.get("multiple_of")
        if setting.keys() != {"multiple_of"} or not isinstance(multiple, int) or multiple < 1:
            raise _wrong("padding", setting, "{'multiple_of': k} with k from 1 up")
        setting = True
    kind: Any = ("longest" if setting else "none") if isinstance(setting, bool) else setting
    if not isinstance(kind, str) or kind not in ("longest", "max_length", "none"):
        raise _wrong("padding", setting, "True, 'longest', 'max_length', False or {'multiple_of': k}")
    length = max_length or max_tokens(tokenizer)
    if kind == "max_length" and length is None:
        raise _wrong("padding", setting, "max_length in the configuration, or a tokenizer that has one")
    side = side or str(getattr(tokenizer, "padding_side", "right"))
    to: Any = kind
    return Padding(to, length if kind == "max_length" else None, multiple, side, pad_id(tokenizer))


def _wrong(name: str, value: Any, expected: str) -> UsageError:
    return UsageError(f"{name}={value!r}", code="collator", param=name, expected=expected, hint="correct the argument")


@dataclass(frozen=True)
class Collator:
    """Makes a batch of samples.

    Args:
        batch_size: samples per batch, read by the loader.
        padding: how samples become equally long.
        attention: of packed rows, `mask` or `positions`.

    >>> Collator()([{"input_ids": [5, 6]}, {"input_ids": [7]}])["attention_mask"].tolist()
    [[1, 1], [1, 0]]
    """

    batch_size: int = BATCH_SIZE
    padding: Padding = Padding()
    attention: Literal["mask", "positions"] = "mask"

    def __call__(self, samples: Sequence[Any], locations: Sequence[str] | None = None) -> dict[str, Any]:
        """One batch.

        Args:
            samples: dicts with the same fields.
            locations: names of the samples, for messages.
        """
        fields = _Fields(samples, locations)
        batch: dict[str, Any] = {}
        if "input_ids" in fields.values:
            batch |= _tokens(fields, self.padding, self.attention)
        if "pixel_values" in fields.values or "image" in fields.values:
            batch |= _images(fields, self.padding)
        for name in list(fields.values):
            if name in SIGNALS:
                batch |= _signals(fields, name, self.padding, named="attention_mask" in batch)
            else:
                batch |= _plain(fields, name, self.padding)
        if "label" in batch and "labels" not in batch:
            batch["labels"] = batch.pop("label")
        return batch


class _Fields:
    """The samples of a batch field by field; a field is removed once it is collated."""

    def __init__(self, samples: Sequence[Any], locations: Sequence[str] | None):
        self._locations = locations or [f"sample {number} of the batch" for number in range(len(samples))]
        names = list(dict.fromkeys(name for sample in samples if isinstance(sample, Mapping) for name in sample))
        for number, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                raise self.mismatch(number, None, f"a {type(sample).__name__}", "a dict of fields")
            for name in names:
                if name not in sample:
                    raise self.mismatch(number, name, "nothing", "what the other samples have")
        self.values: dict[str, list[Any]] = {name: [sample[name] for sample in samples] for name in names}

    def take(self, name: str) -> list[Array]:
        """Remove a field and return its values as arrays; float64 becomes float32."""
        arrays = [_array(value) for value in self.values.pop(name)]
        return [array.astype(np.float32) if array.dtype == np.float64 else array for array in arrays]

    def mismatch(
        self, number: int, name: str | None, actual: str, expected: str, hint: str = "correct it"
    ) -> DataError:
        """The error for a sample that does not fit into its batch."""
        location = self._locations[number] + (f", field {name!r}" if name is not None else "")
        return DataError(
            f"{location} does not fit into a batch: it is {actual}", code="batch-mismatch", where=location,
            expected=expected, hint=hint,
        )  # fmt: skip


def _tokens(fields: _Fields, padding: Padding, attention: str) -> dict[str, Any]:
    """Fields with one entry per token, padded to one width; labels are -100 under the padding.

    Packed rows (with `position_ids`) get a block mask, or positions only.
    """
    import torch

    rows = fields.take("input_ids")
    for number, row in enumerate(rows):
        if row.ndim != 1 or row.dtype.kind not in "iu" or not len(row):
            actual = "empty" if row.ndim == 1 and not len(row) else f"of shape {list(row.shape)} and type {row.dtype}"
            hint = "add the step 'filtering'" if actual == "empty" else "correct it"
            raise fields.mismatch(number, "input_ids", actual, "one row of token ids", hint)
        longest = {"none": len(rows[0]), "max_length": padding.length}.get(padding.to)
        if longest is not None and (len(row) > longest or (padding.to == "none" and len(row) != longest)):
            hint = "padding=True, or the step 'packing'" if padding.to == "none" else "add the step 'truncation'"
            raise fields.mismatch(number, "input_ids", f"{len(row)} tokens long", f"{longest} tokens", hint)
    lengths = np.array([len(row) for row in rows], np.int64)
    width = padding.rounded(padding.length or int(lengths.max()))
    left = padding.side == "left"
    batch = {"input_ids": _stack(rows, (width,), padding.token, left)}
    for name in [name for name in fields.values if _per_token(fields, name, lengths)]:
        arrays = fields.take(name)
        fill = IGNORED if name == "labels" else int(name == "special_tokens_mask")
        batch[name] = _stack(arrays, (width, *arrays[0].shape[1:]), fill, left)
    batch = {name: array.astype(np.int64) if array.dtype.kind in "iub" else array for name, array in batch.items()}
    if "attention_mask" not in batch:
        batch["attention_mask"] = _stack([np.ones_like(row, np.int64) for row in rows], (width,), 0, left)
    for name in ("start_positions", "end_positions"):  # they move with the tokens
        if name in fields.values:
            batch[name] = np.array(fields.take(name), np.int64) + (width - lengths if left else 0)
    fields.values.pop("seq_lens", None)
    result = {name: torch.from_numpy(array) for name, array in batch.items()}
    if "position_ids" not in result:
        return result
    positions, padded = result["position_ids"], result.pop("attention_mask") == 0
    segments = 1 + (torch.diff(positions, dim=1, prepend=positions[:, :1]) != 1).cumsum(1)
    # Padding has its own positions, so that it is a separate segment.
    result["position_ids"] = torch.where(padded, padded.cumsum(1) - 1, positions)
    if attention == "mask":
        result["attention_mask"] = block_mask(segments.masked_fill(padded, 0))
    return result


def _per_token(fields: _Fields, name: str, lengths: Array) -> bool:
    """Whether a field has one entry per token."""
    values = fields.values[name]
    if name == "seq_lens" or any(isinstance(value, str) or np.ndim(value) not in (1, 2) for value in values):
        return False
    sizes = np.array([len(value) for value in values])
    if (sizes == lengths).all():
        return True
    several_labels = name == "labels" and (sizes == sizes[0]).all()
    if several_labels or name not in (*_PER_TOKEN, "labels"):
        return False
    number = int(np.argmax(sizes != lengths))
    raise fields.mismatch(number, name, f"{sizes[number]} entries long", f"{lengths[number]}, one per token")


def _images(fields: _Fields, padding: Padding) -> dict[str, Any]:
    """`pixel_values` [batch, channels, height, width] on one canvas, and what is marked in the images.

    `pixel_mask` only if an image is smaller than the canvas. Segmentation masks are -100 outside their image; boxes,
    classes and masks of objects are lists of tensors in the measures of the canvas.
    """
    import torch

    name = "pixel_values" if "pixel_values" in fields.values else "image"
    values = fields.values.pop(name)
    images = [_channels_first(value, name) for value in values]
    for number, image in enumerate(images):
        if image.ndim != 3 or 0 in image.shape:
            expected = "height, width and channels of one image"
            raise fields.mismatch(number, name, f"of shape {list(image.shape)}", expected)
        if len(image) != len(images[0]) or (padding.to == "none" and image.shape != images[0].shape):
            hint = "padding=True, or the step 'rescaling' with image_size"
            raise fields.mismatch(number, name, f"of shape {list(image.shape)}", f"{list(images[0].shape)}", hint)
    sizes = [image.shape[1:] for image in images]
    canvas = tuple(padding.rounded(max(lengths)) for lengths in zip(*sizes))
    batch: dict[str, Any] = {"pixel_values": torch.from_numpy(_stack(images, (len(images[0]), *canvas), 0))}
    if any(size != canvas for size in sizes):
        batch["pixel_mask"] = torch.from_numpy(_stack([np.ones(size, np.int64) for size in sizes], canvas, 0))
    for name in [name for name in ("mask", "masks", "boxes", "classes") if name in fields.values]:
        arrays = fields.take(name)
        for number, array in enumerate(arrays):
            fits = array.shape[-2:] == sizes[number] if "mask" in name else array.shape[1:] == (4,) or name == "classes"
            if not fits and len(array):
                expected = "[objects, 4]" if name == "boxes" else f"the size of its image, {list(sizes[number])}"
                raise fields.mismatch(number, name, f"of shape {list(array.shape)}", expected)
        if name == "mask":
            batch["masks"] = torch.from_numpy(_stack([array.astype(np.int64) for array in arrays], canvas, IGNORED))
        elif name == "masks":
            shapes = [(len(array), *canvas) for array in arrays]
            batch[name] = [torch.from_numpy(_stack([array], shape, 0)[0]) for array, shape in zip(arrays, shapes)]
        elif name == "boxes":
            scales = [np.array([*size[::-1]] * 2, np.float32) / np.array([*canvas[::-1]] * 2) for size in sizes]
            batch[name] = [torch.from_numpy(_canvas_boxes(boxes, scale)) for boxes, scale in zip(arrays, scales)]
        else:
            batch[name] = [torch.from_numpy(array.astype(np.int64).reshape(-1)) for array in arrays]
    return batch


def _channels_first(value: Any, name: str) -> Array:
    """One image as [channels, height, width]; whole numbers of an `image` are divided by 255."""
    array = _array(value)
    first = name == "pixel_values" or hasattr(value, "detach")
    if array.ndim == 2:
        array = array[None] if first else array[:, :, None]
    if array.ndim == 3 and not first:
        array = array.transpose(2, 0, 1)
    if array.dtype == np.uint8 and name == "image":
        return array.astype(np.float32) / np.float32(255)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _canvas_boxes(boxes: Array, scale: Array) -> Array:
    """Relative boxes shrink when the canvas is larger than their image; a user's own may be in pixels."""
    boxes = boxes.astype(np.float32).reshape(-1, 4)
    relative = not len(boxes) or float(np.abs(boxes).max()) <= _RELATIVE
    return np.asarray(boxes * scale, np.float32) if relative else boxes


def _signals(fields: _Fields, name: str, padding: Padding, *, named: bool) -> dict[str, Any]:
    """A field padded with zeros along its first axis, its lengths, and a mask."""
    import torch

    values = fields.values[name]
    rates = [value.get("sampling_rate") if isinstance(value, Mapping) else None for value in values]
    for number, rate in enumerate(rates):
        if None not in (rate, rates[0]) and rate != rates[0]:
            raise fields.mismatch(number, name, f"at {rate} Hz", f"{rates[0]} Hz", "resample it")
    fields.values[name] = [value["array"] if isinstance(value, Mapping) else value for value in values]
    arrays = fields.take(name)
    first = arrays[0]
    for number, array in enumerate(arrays):
        if not array.ndim or array.shape[1:] != first.shape[1:] or (padding.to == "none" and len(array) != len(first)):
            hint = "padding=True" if array.shape[1:] == first.shape[1:] else "only the first axis may differ"
            raise fields.mismatch(number, name, f"of shape {list(array.shape)}", f"{list(first.shape)}", hint)
    lengths = np.array([len(array) for array in arrays], np.int64)
    width = padding.rounded(int(lengths.max()))
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    return {
        name: torch.from_numpy(_stack(arrays, (width, *first.shape[1:]), 0)),
        f"{name}_lengths" if named else "lengths": torch.from_numpy(lengths),
        f"{name}_mask" if named else "attention_mask": torch.from_numpy(mask),
    }


def _plain(fields: _Fields, name: str, padding: Padding) -> dict[str, Any]:
    """Numbers and arrays as tensors, padded if their sizes differ; anything else as lists."""
    import torch

    values = fields.values[name]
    arrays = [_numeric(value) for value in values]
    numeric = [array for array in arrays if array is not None]
    if not numeric:
        return {name: fields.values.pop(name)}
    if len(numeric) < len(arrays):
        number = next(number for number, array in enumerate(arrays) if (array is None) != (arrays[0] is None))
        raise fields.mismatch(number, name, f"a {type(values[number]).__name__}", f"a {type(values[0]).__name__}")
    if len({array.shape for array in numeric}) > 1:
        padded = _signals(fields, name, padding, named=True)
        del padded[f"{name}_mask"]
        return padded
    fields.values.pop(name)
    if all(isinstance(value, torch.Tensor) for value in values):
        return {name: torch.stack(values)}  # keeps types that numpy does not have
    stacked = np.stack(numeric)
    typed = isinstance(values[0], np.ndarray | np.generic)
    return {name: torch.from_numpy(stacked if typed or stacked.dtype != np.float64 else stacked.astype(np.float32))}


def _stack(arrays: Sequence[Array], shape: Sequence[int], value: float, left: bool = False) -> Array:
    """Arrays of different sizes, each at the start (or the left end: at the end) of its entry in the batch.

    >>> _stack([np.ones(1), np.ones(2)], (3,), 0, left=True).tolist()
    [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    """
    stacked = np.full((len(arrays), *shape), value, np.result_type(*arrays))
    for entry, array in zip(stacked, arrays):
        start = len(entry) - len(array) if left else 0
        entry[(slice(start, start + len(array)), *map(slice, array.shape[1:]))] = array
    return stacked


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return np.asarray(value.float() if "bfloat16" in str(value.dtype) else value)
    return np.asarray(value)


def _numeric(value: Any) -> Array | None:
    """Numbers as an array; `None` for anything else."""
    if isinstance(value, str | bytes | Mapping) or value is None:
        return None
    try:
        array = _array(value)
    except (ValueError, TypeError):
        return None
    return array if array.dtype.kind in "biuf" else None
