# SPDX-License-Identifier: Apache-2.0
"""Presets: what the user types, and what it becomes for a target."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fewbit.errors import UsageError, nearest
from fewbit.targets._base import Target


@dataclass(frozen=True)
class Preset:
    """A canonical preset.

    Args:
        name: `w8a16`.
        weight_bits: of the stored weights.
        weights_only: whether activations stay in float.
    """

    name: str
    weight_bits: int
    weights_only: bool

    @property
    def meaning(self) -> str:
        """For the start lines: "8-bit weights only"."""
        return f"{self.weight_bits}-bit weights only" if self.weights_only else f"{self.weight_bits}-bit weights and activations"


def resolve_preset(given: str, target: Target) -> Preset:
    """What a preset means for a target.

    Raises:
        UsageError: the target cannot run it.
    """
    key = given.lower().replace("-", "_")
    name = target.aliases.get(key, key)
    if name not in target.presets:
        possible = sorted(target.presets)
        raise UsageError(
            f"the preset {given!r} is not available for {target.title} yet",
            code="preset-target",
            param="preset",
            expected=", ".join(nearest(given, possible) or possible),
            hint=f"{{preset={possible[0]}}}",
        )
    match = re.fullmatch(r"w(\d+)a(\d+)", name)
    assert match is not None, name
    return Preset(name, int(match[1]), match[2] == "16")
