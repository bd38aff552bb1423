# SPDX-License-Identifier: Apache-2.0
"""A target says what a runtime can do, as data: one file here that defines `TARGET`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.config.presets import Preset, parse_preset
from fewbit.errors import UsageError, nearest


@dataclass(frozen=True)
class Target:
    """One runtime.

    Args:
        name: as the user types it.
        title: what people call it.
        aliases: what `int8`, `int4` ... become; canonical presets are themselves.
        presets: the canonical presets it can run.
    """

    name: str
    title: str
    aliases: Mapping[str, str]
    presets: frozenset[str]

    def resolve(self, preset: str) -> Preset:
        """What a preset means for this runtime.

        Raises:
            UsageError: the runtime cannot run it.
        """
        key = preset.lower().replace("-", "_")
        name = self.aliases.get(key, key)
        if name in self.presets:
            return parse_preset(name)
        possible = sorted(self.presets)
        raise UsageError(
            f"the preset {preset!r} is not available for {self.title} yet",
            code="preset-target",
            param="preset",
            expected=", ".join(nearest(preset, possible) or possible),
            hint=f"{{preset={possible[0]}}}",
        )
