# SPDX-License-Identifier: Apache-2.0
"""The values of a quantized checkpoint, made from the files of the float one as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fewbit.data.findings import Progress
from fewbit.engine.checkpoint_ahead import Ahead
from fewbit.engine.checkpoint_pieces import Found, Weight
from fewbit.modules.checkpoint_files import Place
from fewbit.modules.tensor_file import Entry
from fewbit.numerics.qtensor import QTensor

_BYTES = 16 << 20
"""Of a tensor that is copied, at a time."""

Result = tuple[Found | None, QTensor | Tensor]


class FileContents:
    """What an exporter asks for instead of a model; see `exporters._checkpoint_layout.Contents`.

    Args:
        tensors: the float checkpoint.
        weights: those of its tensors that become codes, by name.

    Attributes:
        weights: as given.
        missing: tensors that were asked for and are not there, or not of the dtype and shape that the model has.
        found: what is known of each weight's pieces, by the name it has in the model.
        narrow: weights whose scales need another dtype than was said, and whether it is a narrower one.
    """

    def __init__(self, tensors: Mapping[str, Place], weights: Mapping[str, Weight]):
        self._tensors, self.weights = tensors, weights
        self._dtypes: dict[str, torch.dtype] = {}
        self._order: list[str] = []
        self._progress = Progress()
        self._ahead: Ahead[Result] | None = None
        self.missing: list[str] = []
        self.found: dict[str, list[Found]] = {}
        self.narrow: dict[str, bool] = {}

    def codes(self, name: str) -> QTensor:
        """The codes of a weight."""
        weight = self.weights[name]
        return weight.joined([piece for piece in self._pieces(weight) if isinstance(piece, QTensor)])

    def floats(self, entry: Entry) -> Entry:
        """A tensor as it is in the files, or as its codes say it should be."""
        place, name = self._tensors.get(entry.name), entry.name
        if place is None or place.dtype is not entry.dtype or place.shape != entry.shape:
            self.missing.append(name)
            return entry
        if name not in self.weights:
            return replace(entry, pieces=partial(_copied, place))
        self._dtypes[name] = entry.dtype
        return replace(entry, pieces=partial(self._values, self.weights[name]))

    def begin(self, entries: Sequence[Entry], threads: int, progress: Progress) -> Ahead[Result]:
        """Start on the weights, in the order that entries will ask for them; to be closed when all are written."""
        asked = (name for entry in entries for name in (entry.name, _weight_of(entry)) if name in self.weights)
        order = dict.fromkeys(asked)
        self._order = list(order)
        self._ahead = Ahead((task for name in order for task in self._tasks(self.weights[name])), threads)
        self._progress, self.found = progress, {}
        return self._ahead

    def expected(self, entry: Entry) -> Entry:
        """The same tensor, with an eye on its dtype: that of scales depends on their values."""
        return entry if entry.pieces is not None else replace(entry, read=partial(self._read, entry))

    def _read(self, entry: Entry) -> Tensor:
        found = entry.read()
        if found.dtype is entry.dtype:
            return found
        name = self.weights[_weight_of(entry)].planned.point.name
        self.narrow[name] = found.dtype.itemsize < entry.dtype.itemsize
        return torch.zeros((), dtype=entry.dtype).expand(entry.shape)

    def _values(self, weight: Weight) -> Iterator[Tensor]:
        for piece in self._pieces(weight):
            assert isinstance(piece, Tensor)
            yield piece

    def _pieces(self, weight: Weight) -> Iterator[QTensor | Tensor]:
        """A weight's pieces, from those that were begun if it is its turn."""
        ahead = self._ahead if self._order[:1] == [weight.name] else None
        if ahead is not None:
            del self._order[0]
        for task in self._tasks(weight):
            found, piece = task() if ahead is None else ahead.take()
            if found is not None:
                self.found.setdefault(weight.planned.point.name, []).append(found)
            yield piece
        if ahead is not None:
            self._progress.advance("weights", len(self.weights) - len(self._order), len(self.weights))

    def _tasks(self, weight: Weight) -> Iterator[Callable[[], Result]]:
        dtype = self._dtypes.get(weight.name)
        for cut in weight.cuts():
            yield partial(weight.settle, *cut) if dtype is None else partial(_dequantized, weight, cut, dtype)


def _dequantized(weight: Weight, cut: tuple[int, int], dtype: torch.dtype) -> Result:
    found, codes = weight.settle(*cut)
    return found, codes.dequantize(dtype)


def _copied(place: Place) -> Iterator[Tensor]:
    if not place.shape:
        yield replace(place, shape=(1,)).rows(0, 1)
        return
    step = max(_BYTES // max(place.row_bytes, 1), 1)
    for start in range(0, place.shape[0], step):
        yield place.rows(start, min(start + step, place.shape[0]))


def _weight_of(entry: Entry) -> str:
    """The weight that a tensor beside others of a layer belongs to."""
    return f"{entry.name.rpartition('.')[0]}.weight"
