# SPDX-License-Identifier: Apache-2.0
"""Experts that are layers of their own, each reached by some tokens only; those reached by too few wait.

They are settled at the end of their block, for what all experts beside them read. Experts are layers of one block whose
names differ in a number and whose weights are alike, where fewer tokens come than to other layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fewbit.engine.experts import are_few
from fewbit.engine.plan import WeightPlan
from fewbit.engine.second_moments import Gathered

Family = tuple[str, tuple[int, ...]]
Work = tuple[WeightPlan, Gathered]


def families(weights: Iterable[WeightPlan]) -> dict[str, Family]:
    """By the names of weights, the family of those that have others of their build beside them."""
    found: dict[Family, list[str]] = {}
    for w in weights:
        parts = w.point.layer.split(".")
        numbers = [place for place, part in enumerate(parts) if part.isdigit()]
        if numbers and w.point.stack == 0:
            parts[numbers[-1]] = "*"
            found.setdefault((f"{'.'.join(parts)}.{w.point.tensor}", w.point.shape), []).append(w.point.name)
    return {name: family for family, names in found.items() if len(names) > 1 for name in names}


@dataclass
class Scarce:
    """The experts of one block.

    Args:
        weights: of the block.

    Attributes:
        held: those that wait.
    """

    weights: Sequence[WeightPlan]
    held: list[Work] = field(default_factory=list)
    _most: int = 0
    _pools: dict[tuple[Family, ...], Gathered] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._families = families(self.weights)

    @property
    def experts(self) -> list[WeightPlan]:
        """The weights that may be some of several that tokens are sent to."""
        return [w for w in self.weights if w.point.name in self._families]

    def sees(self, weights: Sequence[WeightPlan], seen: Gathered) -> None:
        """What the weights of a stage read."""
        self._most = max(self._most, seen.tokens)
        names = tuple(dict.fromkeys(self._families[w.point.name] for w in weights if w.point.name in self._families))
        if names and seen.sides:
            self._pools.setdefault(names, Gathered()).absorb(seen.copy())

    def waits(self, w: WeightPlan, seen: Gathered, settled: bool | None) -> bool:
        """Let a weight wait, if it is an expert that was sent too few tokens; returns whether it does.

        Args:
            w: the weight.
            seen: what it was sent.
            settled: of one that an earlier run settled, whether it was by the tokens of others.
        """
        few = seen.tokens < self._most and are_few(seen.tokens, w.point.shape[1]) if settled is None else settled
        if few and w.point.name in self._families:
            self.held.append((w, Gathered(others=seen.tokens)))
            return True
        return False

    def ready(self, left: Iterable[WeightPlan]) -> list[Work]:
        """At the end of the block: those that waited, and experts that nothing came to, with what others read."""
        for w in left:
            if w.point.name in self._families and all(w is not held for held, _ in self.held):
                self.held.append((w, Gathered(others=0)))
        for w, seen in self.held:
            pool = next((p for names, p in self._pools.items() if self._families[w.point.name] in names), Gathered())
            seen.sides = pool.sides
        return self.held


class Sent:
    """What experts read by what a store knows.

    Args:
        stages: the names of the layers of each stage.
        seen: what was seen of a stage.
        weights: of the model.
    """

    def __init__(
        self, stages: Iterable[tuple[str, ...]], seen: Callable[[tuple[str, ...]], Gathered], weights: list[WeightPlan]
    ):
        self._get, self._families = seen, families(weights)
        self._stages: dict[Family, list[tuple[str, ...]]] = {}
        at = {layer: layers for layers in stages for layer in layers}
        for w in weights:
            if w.point.name in self._families and w.point.layer in at:
                self._stages.setdefault(self._families[w.point.name], []).append(at[w.point.layer])

    def of(self, w: WeightPlan, seen: Gathered) -> Gathered:
        """What a weight is settled for: what it read, or what all beside it did, if that was too little."""
        family = self._families.get(w.point.name)
        if family is None or not are_few(seen.tokens, w.point.shape[1]):
            return seen
        beside = [self._get(layers) for layers in self._stages[family]]
        if len({each.tokens for each in beside}) == 1:  # no experts: layers of several blocks that read every token
            return seen
        pool = Gathered(others=seen.tokens)
        for each in beside:
            pool.absorb(each.copy())
        return pool
