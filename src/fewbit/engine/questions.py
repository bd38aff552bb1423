# SPDX-License-Identifier: Apache-2.0
"""Items that a model is asked, with what they say of tokens, padding and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fewbit.data.arrays.input_names import ANSWERS
from fewbit.data.arrays.tensor_to_array import to_array
from fewbit.data.batch import count_samples
from fewbit.data.dataset import Dataset
from fewbit.data.signature import Signature, read_signature
from fewbit.data.signatures._items import take_labels
from fewbit.data.source import Source
from fewbit.data.views import View
from fewbit.errors import DataError
from fewbit.model.view import Item

_MASKS = {"decoder_input_ids": "decoder_attention_mask", "input_ids": "attention_mask"}
"""Token ids, a decoder's before an encoder's, and which of them are no padding."""


@dataclass(frozen=True)
class Question:
    """One item.

    Args:
        item: as the model takes it.
        named: its inputs by name.
        place: where it came from.
        labels: what its samples are, where the data says it in whole numbers, `[samples]`.
    """

    item: Item
    named: Mapping[str, Any]
    place: str
    labels: Tensor | None = None

    @property
    def samples(self) -> int:
        """How many samples it holds."""
        return count_samples(dict(self.named))

    def tokens(self, answer: Tensor | None = None) -> tuple[str, Tensor] | None:
        """The token ids `[samples, positions]` and their name; of several those that an answer has a row each for."""
        for name in _MASKS:
            ids = self.named.get(name)
            if ids is not None and len(ids.shape) == 2 and (answer is None or answer.shape[:2] == tuple(ids.shape)):
                return name, torch.as_tensor(ids).cpu()
        return None

    def real(self, answer: Tensor | None = None) -> Tensor | None:
        """Which positions are no padding, `[samples, positions]`; none where the answer has no positions of tokens."""
        found = self.tokens(answer)
        if found is None:
            return None
        mask = self.named.get(_MASKS[found[0]])
        if mask is None or tuple(mask.shape) != found[1].shape:
            return torch.ones(found[1].shape, dtype=torch.bool)
        return torch.as_tensor(mask).cpu() != 0


def questions(dataset: Dataset, model: Any, batch_size: int) -> Iterator[Question]:
    """The elements of a dataset as a model takes them.

    Args:
        dataset: of samples or items.
        model: what says which inputs it has.
        batch_size: how many samples an item holds, where they have no batch axis yet.

    Raises:
        DataError: no element, or one that does not fit.
    """
    read: list[Any] = []
    signature = read_signature(model)
    items = Dataset(_Overheard(dataset.source, read)).inputs(model, batch_size)
    read.clear()  # the first element was looked at beforehand
    for number, item in enumerate(items):
        named = named_inputs(item, signature)
        found = [_labels(element, signature, dataset.source) for element in read]
        known = [each for each in found if each is not None]
        labels = torch.cat(known) if known and len(known) == len(read) else _whole(named.get("labels"))
        read.clear()
        asked = Question(item, named, place=items.place(number) or f"item {number}")
        yield asked if labels is None or len(labels) != asked.samples else replace(asked, labels=labels)


class _Overheard(View):
    """The same elements, each also told to somebody who looks for labels."""

    def __init__(self, inner: Source, told: list[Any]):
        super().__init__(inner)
        self._told = told

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        for element in self.inner:
            self._told.append(element)
            yield element

    def get(self, index: int) -> Any:
        return self.inner.get(index)


def named_inputs(item: Item, signature: Signature) -> dict[str, Any]:
    """The inputs of an item that are tensors, by name."""
    args, kwargs = item if isinstance(item, tuple) else ((), item)
    values = {**dict(zip(signature.names, args)), **kwargs}
    return {name: value for name, value in values.items() if hasattr(value, "shape")}


def _labels(element: Any, signature: Signature, source: Source) -> Tensor | None:
    """What an element says its samples are."""
    if not source.batched and isinstance(element, Mapping):
        names = [name for name in element if name in (source.targets | ANSWERS) and name not in signature.names]
        return _whole(element[names[0]]) if len(names) == 1 else None
    labels = take_labels(element, signature)[1]
    return _whole(next(iter(labels.values())) if isinstance(labels, Mapping) and len(labels) == 1 else labels)


def _whole(value: Any) -> Tensor | None:
    """Whole numbers, `[samples]`; nothing where it is something else."""
    if value is None or isinstance(value, str | Mapping):
        return None
    try:
        array = to_array(value)
    except DataError:
        return None
    return torch.as_tensor(array.reshape(-1)) if array.ndim < 2 and array.dtype.kind in "iu" else None
