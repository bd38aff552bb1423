# SPDX-License-Identifier: Apache-2.0
"""Where the output of a layer goes: every operation of one forward is watched, and what it reads marks what it writes.

A mark is a *piece*: some channels of one layer's output, those that one operation read of it. A fused projection is
read in pieces (queries, keys, values), and only one of them may be what another layer depends on. Marks belong to
memory, not to tensors, so views and operations in place need no special care.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Piece:
    """Channels of a layer's output that were read together."""

    source: str
    channels: tuple[int, ...]

    def meets(self, other: Piece) -> bool:
        """Whether two pieces have a channel in common."""
        return self.source == other.source and not set(self.channels).isdisjoint(other.channels)


@dataclass(frozen=True)
class _Origin:
    source: str
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    features: int
    dtype: torch.dtype

    def channels(self, view: Tensor) -> tuple[int, ...]:
        """The channels that a view of this output shows."""
        count = self.shape[self.features]
        inside = view.storage_offset() - self.offset
        if view.dtype is not self.dtype or view.numel() == self.shape.numel() or inside < 0:
            return tuple(range(count))
        axes = [count if axis == self.features % len(self.shape) else 1 for axis in range(len(self.shape))]
        numbers = torch.empty_strided(self.shape, self.stride, dtype=torch.int32)
        numbers.copy_(torch.arange(count, dtype=torch.int32).reshape(axes))
        return tuple(sorted(set(numbers.as_strided(view.shape, view.stride(), inside).flatten().tolist())))


class Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches one forward.

    Attributes:
        pieces: every piece that was read; a set of marks is an integer with one bit a piece.
        leaked: marks of what became a number of Python, where nobody can follow it.
        inside: above zero within a layer, where nothing is followed: a layer is one step.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pieces: list[Piece] = []
        self.leaked = 0
        self.inside = 0
        self._known: dict[Any, int] = {}
        self._marks: dict[int, int] = {}
        self._origins: dict[int, _Origin] = {}
        self._alive: dict[int, Any] = {}  # memory that is marked must not be used again for something else

    def begin(self, source: str | None, out: Tensor, features: int) -> None:
        """From here on, whatever reads `out` reads this layer's output, and nothing that went into the layer."""
        with _disable_current_modes():
            place = self._place(out)
            self._marks.pop(place, None)
            self._origins.pop(place, None)
            if source is not None:
                dtype, offset = out.dtype, int(out.storage_offset())
                self._origins[place] = _Origin(source, out.shape, out.stride(), offset, features, dtype)

    def marks(self, x: Tensor) -> int:
        """The marks of a tensor that is being read."""
        with _disable_current_modes():
            return self._read(x)

    def identity(self, x: Tensor, features: int) -> tuple[int, ...]:
        """Equal for two tensors that show the same features of the same memory, unchanged in between."""
        with _disable_current_modes():
            place = self._place(x)
            return (place, int(x.storage_offset()), x._version, x.numel(), x.shape[features], x.stride(features))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the default imports the compiler: seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.inside:
            return out
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        places = {_storage(x)[0] for x in read}
        into = [x for x in made if _storage(x)[0] not in places] + _written(func, args, kwargs)
        if into or not made:
            marks = 0
            for x in read:
                marks |= self._read(x)
            for x in into if marks else ():
                place = self._place(x)
                self._marks[place] = self._marks.get(place, 0) | marks
            if not made:
                self.leaked |= marks
        return out

    def _place(self, x: Tensor) -> int:
        place, storage = _storage(x)
        self._alive[place] = storage
        return place

    def _read(self, x: Tensor) -> int:
        place, _ = _storage(x)
        marks = self._marks.get(place, 0)
        origin = self._origins.get(place)
        if origin is None:
            return marks
        view = (origin, x.dtype, x.shape, x.stride(), x.storage_offset())
        if view not in self._known:
            piece = Piece(origin.source, origin.channels(x))
            if piece not in self.pieces:
                self.pieces.append(piece)
            self._known[view] = 1 << self.pieces.index(piece)
        return marks | self._known[view]


def _storage(x: Tensor) -> tuple[int, Any]:
    try:
        storage = x.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without memory of their own
        return id(x), x
    return storage._cdata, storage


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments an operation writes to."""
    found: list[Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found
