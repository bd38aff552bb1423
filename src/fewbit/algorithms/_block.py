# SPDX-License-Identifier: Apache-2.0
"""The problem of a `"tune"` algorithm: the weights of one block of a model, for what the block as a whole answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.qtensor import QTensor

Answers = Callable[[Mapping[str, Tensor], Sequence[int]], Tensor]
"""What a block answers to some items with some weights, `[positions, features]`; differentiable in the weights."""


@dataclass(frozen=True)
class BlockProblem:
    """Weights that are tuned together.

    Args:
        weights: the float weights by name, `[stack…, out, in, kernel…]`.
        start: the codes each of them has.
        run: what the block answers if its weights have these values (float32, by name), for these items.
        wanted: what it shall answer to these items.
        items: that teach, at least one.
        held_out: items that were kept aside to judge the result; may be none.
        name: what messages call the block.
    """

    weights: Mapping[str, Tensor]
    start: Mapping[str, QTensor]
    run: Answers
    wanted: Callable[[Sequence[int]], Tensor]
    items: Sequence[int]
    held_out: Sequence[int] = ()
    name: str = ""

    def check(self) -> None:
        """Refuse what cannot be tuned.

        Raises:
            UsageError: no weights or no items; codes of other weights, or of another shape.
        """
        found = {name: start.shape for name, start in self.start.items()}
        wanted = {name: tuple(weight.shape) for name, weight in self.weights.items()}
        if not wanted or not self.items or found != wanted:
            raise UsageError(
                f"codes of shapes {found} for weights of shapes {wanted}, and {len(self.items)} items",
                where=self.name or None,
                expected="codes of each weight, at least one of them, and at least one item",
            )


@dataclass(frozen=True)
class Tuned:
    """The codes of a block's weights, and what is worth recording of how they came about."""

    codes: Mapping[str, QTensor]
    facts: dict[str, Any] = field(default_factory=dict)
