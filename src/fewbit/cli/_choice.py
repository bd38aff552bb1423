# SPDX-License-Identifier: Apache-2.0
"""What the commands that quantize have in common: which configuration, and which model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.cli._reference import load_function
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


def network(model: str, factory: str | None) -> Any:
    """The model that the command line names.

    Raises:
        UsageError: nothing there that can be opened, a factory for something that needs none.
        DataError: a file that is damaged, or does not fit the factory's model.
    """
    from fewbit.modules.manifest import is_export
    from fewbit.modules.opening import open_model

    place = Path(model).expanduser()
    if factory is not None and (registry.is_reference(model) or (place.is_dir() and not is_export(place))):
        raise UsageError(f"--factory for {model}, which says itself how it is built", where="--factory")
    reference = model if registry.is_reference(model) else factory
    if reference is not None:
        load_function(reference, returns="the model")
    return open_model(model, factory)
