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


def float_model(path: str, factory: str | None) -> Any:
    """The model at a path, which must be one that is still to be quantized."""
    from fewbit.modules.opening import open_model
    from fewbit.modules.quantized import is_quantized

    network = open_model(path, factory)
    done = next((name for name, module in network.named_modules() if is_quantized(module)), None)
    if done is not None:
        raise UsageError(
            f"the model is quantized already, such as {done or 'the whole of it'}",
            where=path,
            expected="the float model it was made from",
        )
    return network
