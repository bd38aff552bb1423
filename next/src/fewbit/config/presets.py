# SPDX-License-Identifier: Apache-2.0
"""Canonical presets: what a number format means, whatever the target."""

from __future__ import annotations

import re
from dataclasses import dataclass


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
        return f"{self.weight_bits}-bit weights {'only' if self.weights_only else 'and activations'}"


def parse_preset(name: str) -> Preset:
    """Read a canonical name.

    >>> parse_preset("w8a16").meaning
    '8-bit weights only'
    """
    match = re.fullmatch(r"w(\d+)a(\d+)", name)
    assert match is not None, name
    return Preset(name, int(match[1]), match[2] == "16")
