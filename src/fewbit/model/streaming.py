# SPDX-License-Identifier: Apache-2.0
"""A stream: the state that goes through a model, to which layers add and which norms and layers read.

Everyone who writes to it may be multiplied with an orthogonal matrix, and everyone who reads it with the transpose: the
model computes the same. A norm lets that through once its gains are in the weights of those who read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fewbit.model.structure import Link
from fewbit.model.view import Item

Turn = Callable[[Tensor], Tensor]
"""x to x Q along the last axis, Q orthogonal; computed in float64 and given in the type of x."""


@dataclass(frozen=True)
class Heads:
    """Values whose heads may be turned, each by itself.

    Args:
        link: from the layer that makes the values to those who read what attention makes of them.
        size: of a head.
    """

    link: Link
    size: int


@dataclass(frozen=True)
class Stream:
    """Everyone who has to do with a stream.

    Args:
        width: its channels.
        writers: layers whose output is added to it, tables included.
        readers: layers that read it as it is.
        norms: norms that read it, each with the layers that read what it makes of it.
        centred: whether a norm takes the mean away, so that Q has to keep it.
        heads: values beside it.
    """

    width: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    norms: Mapping[str, tuple[str, ...]]
    centred: bool = False
    heads: tuple[Heads, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers that read it, through a norm or as it is."""
        return (*self.readers, *(name for names in self.norms.values() for name in names))


class RotatingView(Protocol):
    """A view with `rotate` in `can`."""

    def stream(self, item: Item) -> Stream:
        """The stream of a model, as one item shows it.

        Raises:
            UsageError: there is none, or not all who have to do with it could be turned; with every reason.
        """

    def rotate(self, stream: Stream, by: Turn, heads: Mapping[int, Turn]) -> tuple[str, ...]:
        """Turn a stream and the heads beside it.

        Args:
            stream: of this model.
            by: the stream's turn.
            heads: the turns of heads, by their size; those of other sizes are left alone.

        Returns:
            The names of weights that were one tensor with others and are not any more.
        """
