# SPDX-License-Identifier: Apache-2.0
"""What the algorithms that turn a stream are asked, and what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fewbit.algorithms._orthogonal import Orthogonal
from fewbit.errors import UsageError
from fewbit.numerics.grid import Grid


@dataclass(frozen=True)
class StreamProblem:
    """A state that goes through a model, to which layers add and from which others read.

    Args:
        width: its channels.
        heads: the sizes that heads of values have; none if no values are to be turned.
        centred: whether norms that read it take its mean away, so that the mean has to stay what it is.
        grids: what the layers that read it are rounded to: their inputs and their weights.
        name: what messages call it.
    """

    width: int
    heads: Sequence[int] = ()
    centred: bool = False
    grids: Sequence[Grid] = ()
    name: str = ""

    def check(self) -> None:
        """Refuse what is no stream.

        Raises:
            UsageError: a size below one.
        """
        if min([self.width, *self.heads]) < 1:
            raise UsageError(
                f"a stream of {self.width} channels and heads of {list(self.heads)}",
                where=self.name or None,
                expected="sizes from one up",
            )


@dataclass(frozen=True)
class Rotation:
    """What the stream and the heads of values are multiplied with; none to leave them alone.

    Args:
        stream: for the stream.
        heads: for heads, by their size.
        facts: plain data.
    """

    stream: Orthogonal | None = None
    heads: Mapping[int, Orthogonal] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
