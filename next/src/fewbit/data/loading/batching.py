# SPDX-License-Identifier: Apache-2.0
"""Fields of several samples as tensors: tokens, signals, and everything else. Errors name the sample and the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.text.pack import block_mask
from fewbit.data.text.roles import IGNORED
from fewbit.errors import DataError

if TYPE_CHECKING:
    from fewbit.data.loading.collate import Padding

_PER_TOKEN = ("attention_mask", "token_type_ids", "position_ids", "special_tokens_mask")


class BatchColumns:
    """The samples of a batch field by field; a field is removed once it is collated.

    Args:
        samples: dicts with the same fields.
        locations: names of the samples, for messages.
    """

    def __init__(self, samples: Sequence[Any], locations: Sequence[str] | None = None):
        self._locations = locations
        if not samples:
            raise DataError(
                "a batch of no samples", code="batch-mismatch", expected="at least one", hint="check the data"
            )
        for number, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                raise self.mismatch(number, None, f"a {type(sample).__name__}", "a dict of fields")
        names = list(dict.fromkeys(name for sample in samples for name in sample))
        for number, sample in enumerate(samples):
            for name in names:
                if name not in sample:
                    raise self.mismatch(number, name, "nothing", "what the other samples have")
        self.values: dict[str, list[Any]] = {name: [sample[name] for sample in samples] for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def take(self, name: str) -> list[Any]:
        """Remove a field and return its values."""
        return self.values.pop(name)

    def mismatch(
        self, number: int, name: str | None, actual: str, expected: str, hint: str = "correct it"
    ) -> DataError:
        """The error for a sample that does not fit into its batch."""
        sample = f"sample {number} of the batch" if self._locations is None else self._locations[number]
        location = sample if name is None else f"{sample}, field {name!r}"
        return DataError(
            f"{location} does not fit into a batch: it is {actual}", code="batch-mismatch", where=location,
            expected=expected, hint=hint,
        )  # fmt: skip


def tokens(columns: BatchColumns, padding: Padding, attention: str) -> dict[str, Any]:
    """Fields with one entry per token, padded to one width; labels are -100 under the padding.

    Packed rows (with `position_ids`) get a block mask, or positions only.
    """
    import torch

    rows = [as_array(ids) for ids in columns.take("input_ids")]
    lengths = _token_counts(columns, rows, padding)
    width = padding.width(lengths)
    starts = width - lengths if padding.side == "left" else np.zeros_like(lengths)
    column_indices = np.arange(width)
    keep = (column_indices >= starts[:, None]) & (column_indices < (starts + lengths)[:, None])
    batch = {"input_ids": fill_rows(rows, keep, padding.token)}
    for name in [name for name in columns.values if _per_token(columns, name, lengths)]:
        value = IGNORED if name == "labels" else int(name == "special_tokens_mask")
        batch[name] = fill_rows([as_array(row) for row in columns.take(name)], keep, value)
    for name in ("start_positions", "end_positions"):  # they move with the tokens
        if name in columns:
            batch[name] = np.array(columns.take(name), np.int64) + starts
    result = {name: torch.from_numpy(array) for name, array in batch.items()}
    real = result.pop("attention_mask", torch.from_numpy(keep).long())
    positions = result.pop("position_ids", None)
    columns.values.pop("seq_lens", None)
    if positions is None:
        return result | {"attention_mask": real}
    padded = real == 0
    segments = 1 + (torch.diff(positions, dim=1, prepend=positions[:, :1]) != 1).cumsum(1)
    # Padding has its own positions, so that it is a separate segment.
    positions = torch.where(padded, padded.cumsum(1) - 1, positions)
    if attention == "positions":
        return result | {"position_ids": positions}
    mask = block_mask(segments.masked_fill(padded, 0), torch.float32)
    return result | {"position_ids": positions, "attention_mask": mask}


def signals(columns: BatchColumns, name: str, axis: int, padding: Padding, alone: bool) -> dict[str, Any]:
    """A field padded with zeros along one axis, its lengths, and a mask."""
    import torch

    arrays = [as_array(_samples_of(columns, name, number, value)) for number, value in enumerate(columns.values[name])]
    columns.take(name)
    arrays = [array.astype(np.float32) if array.dtype == np.float64 else array for array in arrays]
    first = arrays[0]
    for number, array in enumerate(arrays):
        if array.ndim != first.ndim or not 0 <= axis < array.ndim:
            raise columns.mismatch(
                number, name, f"of shape {list(array.shape)}", f"as many axes as {list(first.shape)}"
            )
        others = [i for i in range(array.ndim) if i != axis and array.shape[i] != first.shape[i]]
        if others:
            hint = f"ragged={{{name!r}: {others[0]}}} if axis {others[0]} is the one that differs"
            raise columns.mismatch(
                number, name, f"of shape {list(array.shape)}", f"{list(first.shape)} except axis {axis}", hint
            )
        if padding.to == "none" and array.shape != first.shape:
            raise columns.mismatch(
                number, name, f"of shape {list(array.shape)}", f"{list(first.shape)}", "padding=True"
            )
    lengths = np.array([array.shape[axis] for array in arrays], np.int64)
    shape = list(first.shape)
    shape[axis] = padding.rounded(int(lengths.max()))
    mask = (np.arange(shape[axis]) < lengths[:, None]).astype(np.int64)
    return {
        name: torch.from_numpy(fill_blocks(arrays, shape, 0)),
        "lengths" if alone else f"{name}_lengths": torch.from_numpy(lengths),
        "attention_mask" if alone else f"{name}_mask": torch.from_numpy(mask),
    }


def plain_values(columns: BatchColumns, padding: Padding) -> dict[str, Any]:
    """Numbers and arrays as tensors, padded if their sizes differ; anything else as lists."""
    import torch

    batch: dict[str, Any] = {}
    for name in list(columns.values):
        values = columns.values[name]
        arrays = [_numeric(value) for value in values]
        if all(array is None for array in arrays):
            batch[name] = columns.take(name)
        elif any(array is None for array in arrays):
            number = next(number for number, array in enumerate(arrays) if (array is None) != (arrays[0] is None))
            raise columns.mismatch(number, name, f"a {type(values[number]).__name__}", f"a {type(values[0]).__name__}")
        elif all(isinstance(value, torch.Tensor) for value in values) and len({value.shape for value in values}) == 1:
            batch[name] = torch.stack(columns.take(name))  # keeps types that numpy does not have
        elif len({array.shape for array in arrays if array is not None}) == 1:
            typed = isinstance(values[0], np.ndarray | np.generic)
            columns.take(name)
            stacked = np.stack([array for array in arrays if array is not None])
            batch[name] = torch.from_numpy(
                stacked.astype(np.float32) if stacked.dtype == np.float64 and not typed else stacked
            )
        else:
            batch |= signals(columns, name, 0, padding, alone=False)
            batch.pop(f"{name}_mask", None)
    return batch


def as_array(value: Any) -> np.ndarray:
    """A value as a numpy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return np.asarray(value.float() if "bfloat16" in str(value.dtype) else value)
    return np.asarray(value)


def fill_rows(rows: Sequence[np.ndarray], keep: np.ndarray, value: int) -> np.ndarray:
    """Rows of tokens where `keep` is true, and a fill value everywhere else."""
    flat = np.concatenate(rows)
    flat = flat.astype(np.int64) if flat.dtype.kind in "iub" else flat.astype(np.float32)
    filled = np.full((*keep.shape, *flat.shape[1:]), value, flat.dtype)
    filled[keep] = flat
    return filled


def fill_blocks(blocks: Sequence[np.ndarray], shape: Sequence[int], value: float) -> np.ndarray:
    """Arrays of different sizes, each at the start of its entry in the batch.

    >>> fill_blocks([np.ones((1, 2)), np.ones((2, 1))], (2, 2), 0).tolist()
    [[[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]]
    """
    filled = np.full((len(blocks), *shape), value, blocks[0].dtype)
    for target, block in zip(filled, blocks):
        target[tuple(map(slice, block.shape))] = block
    return filled


def _token_counts(columns: BatchColumns, rows: Sequence[np.ndarray], padding: Padding) -> np.ndarray:
    for number, row in enumerate(rows):
        if row.ndim != 1:
            raise columns.mismatch(number, "input_ids", f"of shape {list(row.shape)}", "one row of tokens")
        if not len(row):
            raise columns.mismatch(number, "input_ids", "empty", "at least one token", "add the step 'filtering'")
        if row.dtype.kind not in "iu":
            raise columns.mismatch(number, "input_ids", f"of type {row.dtype}", "integers")
        if padding.to == "max_length" and padding.length and len(row) > padding.length:
            hint = "add the step 'truncation', or raise max_length"
            raise columns.mismatch(number, "input_ids", f"{len(row)} tokens long", f"at most {padding.length}", hint)
        if padding.to == "none" and len(row) != len(rows[0]):
            hint = "padding=True, or the step 'packing'"
            raise columns.mismatch(number, "input_ids", f"{len(row)} tokens long", f"{len(rows[0])} tokens", hint)
    return np.array([len(row) for row in rows], np.int64)


def _per_token(columns: BatchColumns, name: str, lengths: np.ndarray) -> bool:
    """Whether a field has one entry per token."""
    values = columns.values[name]
    if name == "seq_lens" or not all(np.ndim(value) if not isinstance(value, str) else 0 for value in values):
        return False
    sizes = np.array([len(value) for value in values])
    if (sizes == lengths).all():
        return all(np.ndim(value) < 3 for value in values)
    several = name not in _PER_TOKEN and (sizes == sizes[0]).all()  # several labels per text
    if several or name not in (*_PER_TOKEN, "labels"):
        return False
    number = int(np.argmax(sizes != lengths))
    raise columns.mismatch(number, name, f"{sizes[number]} entries long", f"{lengths[number]}, one per token")


def _numeric(value: Any) -> np.ndarray | None:
    """Numbers as an array; `None` for anything else."""
    if isinstance(value, str | bytes | Mapping) or value is None:
        return None
    try:
        array = as_array(value)
    except (ValueError, TypeError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _samples_of(columns: BatchColumns, name: str, number: int, value: Any) -> Any:
    """A signal, also as `{"array": …, "sampling_rate": …}`; all of a batch have one rate."""
    if not isinstance(value, Mapping):
        return value
    first = columns.values[name][0]
    rate = first.get("sampling_rate") if isinstance(first, Mapping) else None
    if value.get("sampling_rate") != rate:
        raise columns.mismatch(number, name, f"at {value.get('sampling_rate')} Hz", f"{rate} Hz", "resample it")
    return value["array"]
