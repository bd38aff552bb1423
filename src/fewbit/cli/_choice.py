# SPDX-License-Identifier: Apache-2.0
"""What the commands that quantize have in common: which configuration, and which model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.errors import UsageError


def configuration(preset: str | None, config: Path | None) -> Any:
    """The `Config` that `--preset` or `--config` asks for; `w8a8` when neither is given.

    Raises:
        UsageError: both, an unknown preset, a file with faults (all of them).
    """
    from fewbit.schemes.config import Config
    from fewbit.schemes.presets import preset as preset_config

    if preset is not None and config is not None:
        raise UsageError("both --preset and --config were given", expected="one of the two")
    return Config.load(config) if config is not None else preset_config(preset or "w8a8")
