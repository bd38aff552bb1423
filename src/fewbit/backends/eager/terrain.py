# SPDX-License-Identifier: Apache-2.0
"""The way through a part of a model: its stages in the order they run, as far as items showed it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

ENTRY = ""
"""Where the state is what the part was called with."""


@dataclass
class Terrain:
    """What was seen.

    Args:
        stages: layers that read the same tensor, in the order they run; stacks of experts by the name of the tensor.
        states: of layers that write to the state, the module that reads it before, or `ENTRY`.
        stacks: of each stack of experts, its layer and its name there.
    """

    stages: list[tuple[str, ...]] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    stacks: dict[str, tuple[str, str]] = field(default_factory=dict)

    def layer(self, name: str) -> str:
        """The layer that a name of a stage belongs to."""
        return self.stacks[name][0] if name in self.stacks else name

    def reached(self) -> set[str]:
        """The layers that were seen."""
        return {self.layer(name) for names in self.stages for name in names}

    def learn(self, seen: Terrain) -> None:
        """What another item shows of layers that were not seen before; they are put where it met them.

        >>> way = Terrain([("a",), ("d",)])
        >>> way.learn(Terrain([("a",), ("b", "c"), ("d",)]))
        >>> way.stages
        [('a',), ('b', 'c'), ('d',)]
        """
        place, known = 0, {name for names in self.stages for name in names}
        for names in seen.stages:
            mine = next((i for i, each in enumerate(self.stages) if not set(each).isdisjoint(names)), None)
            new = tuple(name for name in names if name not in known)
            if mine is not None:
                self.stages[mine] += new
                place = mine + 1
            else:
                self.stages.insert(place, new)
                place += 1
        self.states = seen.states | self.states
        self.stacks |= seen.stacks

    def guess(self, layers: Collection[str]) -> None:
        """Put layers that no item reached where another of the same build, which has another number, was met.

        Of many experts a few items reach only some, and those to come may reach the others.

        >>> way = Terrain([("router",), ("experts.1.up",), ("experts.1.down",)])
        >>> way.guess(["experts.0.up", "experts.0.down", "experts.1.up", "experts.1.down", "other.3"])
        >>> way.stages
        [('router',), ('experts.0.up',), ('experts.0.down',), ('experts.1.up',), ('experts.1.down',)]
        """
        for name in layers:
            if name not in self.reached():
                self._guess(name, [each for each in layers if each not in self.reached()])

    def _guess(self, name: str, left: Collection[str]) -> None:
        parts, reached = name.split("."), self.reached()
        for at in reversed([at for at, part in enumerate(parts) if part.isdigit()]):
            number = int(parts[at])

            def renamed(other: str, to: str, at: int = at) -> str:
                each = other.split(".")
                return ".".join([*each[:at], to, *each[at + 1 :]])

            alike = [r.split(".") for r in reached if renamed(r, parts[at]) == name]
            if alike:
                numbers = [int(each[at]) for each in alike]
                nearest = max((n for n in numbers if n < number), default=min(numbers))
                start = ".".join([*parts[:at], str(nearest)])
                mine = [names for names in self.stages if any(f"{each}.".startswith(f"{start}.") for each in names)]
                place = self.stages.index(mine[-1]) + 1 if nearest < number else self.stages.index(mine[0])
                made = [tuple(new for each in names if (new := renamed(each, parts[at])) in left) for names in mine]
                self.stages[place:place] = [names for names in made if names]
                return
