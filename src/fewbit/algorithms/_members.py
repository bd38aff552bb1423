# SPDX-License-Identifier: Apache-2.0
"""Algorithms by name: members of the registry, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fewbit import registry
from fewbit.algorithms._base import STAGES, Solution
from fewbit.errors import UsageError, nearest
from fewbit.observers._base import observer_class


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that is known to be complete.

    Args:
        name: as a configuration says it.
        stage: when it runs, one of `STAGES`.
        needs: the observers of the layer's input it can use.
        solve: the function itself.
    """

    name: str
    stage: str
    needs: tuple[str, ...]
    solve: Callable[..., Solution]

    @property
    def parameters(self) -> tuple[str, ...]:
        """What `solve` takes beside the problem."""
        return tuple(inspect.signature(self.solve).parameters)[1:]

    def refuse_unknown(self, parameters: Mapping[str, Any], where: str) -> None:
        """Refuse parameters it does not have.

        Raises:
            UsageError: with the nearest one it has.
        """
        unknown = [name for name in parameters if name not in self.parameters]
        if unknown:
            raise UsageError(
                f"the algorithm {self.name!r} has no parameter {', '.join(map(repr, unknown))}",
                where=where,
                expected=nearest(unknown[0], self.parameters) if self.parameters else "no parameters",
            )


def algorithm(name: str) -> Algorithm:
    """The algorithm a name stands for: a member, or the user's own `"file.py:solve"`.

    A function of the user's may say `needs` (a tuple of observers' names) as an attribute.

    Raises:
        UsageError: there is none of this name; its stage or one of its observers is not known.

    >>> algorithm("scale_search").needs
    ('moments',)
    """
    if registry.is_reference(name):
        own = registry.load_reference(name)
        if not callable(own):
            raise UsageError(f"{name} is a {type(own).__name__}", where=name, expected="a function solve(problem)")
        found = Algorithm(name, "round", tuple(getattr(own, "needs", ())), own)
    else:
        member = registry.get("algorithms", name)
        found = Algorithm(name, member.STAGE, tuple(member.NEEDS), member.solve)
    if found.stage not in STAGES:
        raise UsageError(f"the algorithm {name!r} runs at stage {found.stage!r}", expected=nearest(found.stage, STAGES))
    for need in found.needs:
        observer_class(need)
    return found
