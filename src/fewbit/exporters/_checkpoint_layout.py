# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint laid out: every tensor with its name, dtype and shape, its bytes yet to be made.

The values may come from somewhere else than the model: from the files of a float checkpoint, while they are read. The
model then has stand-ins of the same dtypes and shapes, and `Contents` gives the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fewbit.modules.tensor_file import Entry
from fewbit.numerics.qtensor import QTensor


class Contents(Protocol):
    """Where values come from, if not from the model; names are those of a float checkpoint."""

    def codes(self, name: str) -> QTensor:
        """The codes of a weight."""

    def floats(self, entry: Entry) -> Entry:
        """A tensor that is written as floats, with its values."""


@dataclass(frozen=True)
class Laid:
    """A checkpoint but for the bytes of its tensors.

    Args:
        entries: every tensor; those of one weight follow one another.
        content: what the manifest shall say.
    """

    entries: list[Entry]
    content: dict[str, Any]


class Together:
    """Tensors that are made at once and taken one by one: kept until then, and no longer.

    Args:
        make: gives all of them.

    >>> import torch
    >>> both = Together(lambda: {"a": torch.zeros(2), "b": torch.ones(1)})
    >>> both.take("b"), both.take("a")
    (tensor([1.]), tensor([0., 0.]))
    """

    def __init__(self, make: Callable[[], dict[str, Tensor]]):
        self._make = make
        self._left: dict[str, Tensor] = {}

    def take(self, name: str) -> Tensor:
        """One of them."""
        if name not in self._left:
            self._left = self._make()
        return self._left.pop(name)
