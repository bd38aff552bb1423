# SPDX-License-Identifier: Apache-2.0
"""Which layers lose most: each layer of the result is given what the original's layer reads, and its output compared.

So an error that only passes through a layer does not count as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Observer = Callable[[Any], None]
_MOST_TEXT = 84
"""Of a line of the screen."""


@dataclass
class LayerErrors:
    """Observes the original while it runs, and asks the result's layers what they make of the same inputs.

    Args:
        layers: names that both models have.
        replay: what a layer of the result gives for an input.
    """

    layers: Sequence[str]
    replay: Callable[[str, Any], Any]
    _inputs: dict[str, Any] = field(default_factory=dict)
    _sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    def observers(self) -> dict[str, Observer]:
        """For a session of the original, by value: `fc1.input`, `fc1.output`."""
        values: dict[str, Observer] = {}
        for layer in self.layers:
            values[f"{layer}.input"] = self._remember(layer)
            values[f"{layer}.output"] = self._compare(layer)
        return values

    def _remember(self, layer: str) -> Observer:
        def observe(value: Any) -> None:
            self._inputs[layer] = value

        return observe

    def _compare(self, layer: str) -> Observer:
        def observe(value: Any) -> None:
            x = self._inputs.pop(layer, None)
            other: Any = None if x is None else self.replay(layer, x)
            if not hasattr(value, "double") or getattr(other, "shape", None) != value.shape:
                return  # recurrent layers and attention return several tensors
            wanted = value.double()
            noise, signal = self._sums.get(layer, (0.0, 0.0))
            change = float((other.double().to(wanted.device) - wanted).square().sum())
            self._sums[layer] = noise + change, signal + float(wanted.square().sum())

        return observe

    def rows(self) -> list[dict[str, Any]]:
        """One row per layer: `error` relative to the energy of its output, and its share; the worst first."""
        rows = [{"name": layer, "error": noise / signal} for layer, (noise, signal) in self._sums.items() if signal]
        return rank_layers(rows)


def rank_layers(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with an `error`, the largest first, each with its share of the sum.

    >>> [(row["name"], row["share"]) for row in rank_layers([{"name": "a", "error": 1.0}, {"name": "b", "error": 3.0}])]
    [('b', 0.75), ('a', 0.25)]
    """
    measured = [dict(row) for row in rows if isinstance(row.get("error"), int | float)]
    total = sum(row["error"] for row in measured)
    for row in measured:
        row["share"] = row["error"] / total if total else 0.0
    return sorted(measured, key=lambda row: -row["error"])


def worst_layers(rows: Sequence[Mapping[str, Any]], count: int = 3) -> str:
    """`Conv.15 41% of the error, Conv.0 12%, MatMul.3 9%`; empty if nothing is known.

    >>> worst_layers(rank_layers([{"name": "a", "error": 1.0}, {"name": "b", "error": 3.0}]))
    'b 75% of the error, a 25%'
    """
    ranked = [row for row in rows if row.get("share", 0) >= 0.005][:count]
    parts = [f"{row['name']} {row['share']:.0%}" for row in ranked]
    text = f"{parts[0]} of the error" if parts else ""
    for part in parts[1:]:
        if len(text) + len(part) > _MOST_TEXT:
            break
        text += f", {part}"
    return text
