# SPDX-License-Identifier: Apache-2.0
"""A target says what a runtime can do, as data: one file here that defines `TARGET`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.config.presets import Preset, canonical_name, parse_preset
from fewbit.errors import UsageError, nearest

_GROUP = re.compile(r"g(-1|\d+)")


@dataclass(frozen=True)
class Target:
    """One runtime.

    Args:
        name: as the user types it.
        title: what people call it.
        aliases: what `int8`, `int4` ... become; canonical presets are themselves.
        presets: the canonical presets it can run, without group sizes.
        format: the checkpoint format it loads; empty if it loads the kind of file that came in.
        reads: other checkpoint formats that it loads too.
        loading: Python code that loads a checkpoint, with `{path}` for the literal of its path; for the model card.
    """

    name: str
    title: str
    aliases: Mapping[str, str]
    presets: frozenset[str]
    format: str = ""
    reads: tuple[str, ...] = ()
    loading: str = ""

    def resolve(self, preset: str) -> Preset:
        """What a preset means for this runtime.

        Raises:
            UsageError: there is no such preset, or the runtime cannot run it.
        """
        key = canonical_name(preset)
        name = self.aliases.get(key, key)
        if _GROUP.sub("", name) in self.presets:
            return parse_preset(name)
        possible = sorted(self.presets)
        raise UsageError(
            f"{self.title} cannot run the preset {preset!r}", code="preset-target", param="preset",
            expected=", ".join(nearest(preset, possible) or possible), hint=f"{{preset={possible[0]}}}",
        )  # fmt: skip
