# SPDX-License-Identifier: Apache-2.0
"""A target says what a runtime can do, as data: one file here that defines `TARGET`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
