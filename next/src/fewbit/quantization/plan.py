# SPDX-License-Identifier: Apache-2.0
"""What happens to each layer, decided before any data is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fewbit.backends._base import Graph, Layer
from fewbit.config.presets import Preset
from fewbit.errors import ModelError, UsageError, nearest


@dataclass(frozen=True)
class LayerPlan:
    """The decision for one layer; `reason` says why it stays in float."""

    layer: Layer
    quantized: bool
    reason: str = ""

    def row(self) -> dict[str, Any]:
        """For the record."""
        return {"name": self.layer.name, "type": self.layer.type, "quantized": self.quantized, "reason": self.reason}


@dataclass(frozen=True)
class Plan:
    """Every layer of a model with its decision."""

    preset: Preset
    layers: tuple[LayerPlan, ...]

    def __repr__(self) -> str:
        count = sum(plan.quantized for plan in self.layers)
        return f"Plan({len(self.layers)} layers: {count} {self.preset.name}, {len(self.layers) - count} float)"


def make_plan(graph: Graph, preset: Preset, ignore: Sequence[str] = ()) -> Plan:
    """Decide for each layer.

    Args:
        graph: of the model.
        preset: resolved for the target.
        ignore: exact names, globs, `re:` expressions, `type:` operators.

    Raises:
        UsageError: an entry of `ignore` matches nothing.
        ModelError: nothing would be quantized.
    """
    unmatched = [entry for entry in ignore if not any(_matches(entry, layer) for layer in graph.layers)]
    if unmatched:
        similar = nearest(unmatched[0], [layer.name for layer in graph.layers])
        raise UsageError(
            f"no layer matches {unmatched[0]!r}", code="layer-unknown", param="ignore",
            expected=", ".join(similar) or "a layer of the model", hint="`fewbit plan MODEL -v` lists every layer",
        )  # fmt: skip
    plans = tuple(
        LayerPlan(layer, quantized=not (ignored := [e for e in ignore if _matches(e, layer)]),
                  reason=f"ignored by {ignored[0]!r}" if ignored else "")
        for layer in graph.layers
    )  # fmt: skip
    if not any(plan.quantized for plan in plans):
        raise ModelError(
            "nothing would be quantized", code="nothing-quantized",
            expected="at least one Conv, Gemm or MatMul with a constant weight",
            hint="remove {ignore}" if ignore else "another model, or another {preset}",
        )  # fmt: skip
    return Plan(preset, plans)


def _matches(pattern: str, layer: Layer) -> bool:
    if pattern.startswith("re:"):
        return re.fullmatch(pattern[3:], layer.name) is not None
    if pattern.startswith("type:"):
        return layer.type == pattern[5:]
    return layer.name == pattern or fnmatchcase(layer.name, pattern)
