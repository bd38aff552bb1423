# SPDX-License-Identifier: Apache-2.0
"""A mix: a configuration that leaves open which of several formats a layer gets, and how much of them there may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor

from fewbit.engine.plan import Plan, WeightPlan
from fewbit.engine.planning import make_plan
from fewbit.errors import UsageError
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.schemes.config import Config
from fewbit.schemes.layer import QuantizationConfig
from fewbit.schemes.spec import QuantizationSpec


@dataclass(frozen=True)
class Mix:
    """What each layer may become.

    Args:
        config: every layer in the narrowest format. Layers to which it gives another one have no choice.
        formats: by name, the narrowest first.
        bits: that a weight has at most on average, scales included; or none.
        ratio: the share of the weights that get the narrowest format, at least; or none.
    """

    config: Config
    formats: Mapping[str, QuantizationSpec]
    bits: float | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 <= self.ratio <= 1:
            raise UsageError(f"ratio={self.ratio}", where="ratio", expected="a number from 0 to 1")

    def open(self, view: ModelView) -> list[WeightPlan]:
        """The weights that there is a choice for, as they are in the narrowest format."""
        usual = self.config.global_quant_config
        spec = None if usual is None else usual.weight
        grid = spec.grid() if isinstance(spec, QuantizationSpec) else None
        planned = [w for w in make_plan(view, self.config).weights if w.point.role is Role.weight and w.grid == grid]
        return self.plan(view, next(iter(self.formats)), planned)

    def settled(self, chosen: Mapping[str, Iterable[Point]]) -> Config:
        """The configuration where the weights have the formats they are listed under."""
        entries = {name: QuantizationConfig(weight=spec) for name, spec in self.formats.items()}
        return self.config.with_layers(
            {layer: entries[name] for name, points in chosen.items() for point in points for layer in _users(point)}
        )

    def plan(self, view: ModelView, name: str, weights: Iterable[WeightPlan]) -> list[WeightPlan]:
        """Weights as they are in one of the formats."""
        points = [w.point for w in weights]
        made = by_user(make_plan(view, self.settled({name: points})))
        return [made[point.name] for point in points]

    def cost(self, w: WeightPlan, name: str) -> int:
        """What a weight in a format takes of the budget: bytes, or of a share the elements that are not narrow."""
        return w.bytes_after if self.bits is not None else w.point.elements * (name != next(iter(self.formats)))

    def budget(self, weights: Iterable[WeightPlan]) -> int:
        """The most that all weights may cost together."""
        elements = sum(w.point.elements for w in weights)
        if self.bits is not None:
            return floor(self.bits * elements / 8)
        return floor((1 - (self.ratio or 0.0)) * elements)


def by_user(plan: Plan) -> dict[str, WeightPlan]:
    """What weights become, by every name they go by."""
    return {name: w for w in plan.weights for name in (w.point.name, *w.point.users)}


def average_bits(weights: Iterable[WeightPlan]) -> float:
    """Bits a weight, scales included."""
    found = list(weights)
    return 8 * sum(w.bytes_after for w in found) / max(sum(w.point.elements for w in found), 1)


def _users(point: Point) -> list[str]:
    """Every layer that uses a weight: all of them must ask for the same."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in (point.name, *point.users)))
