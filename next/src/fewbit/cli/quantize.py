# SPDX-License-Identifier: Apache-2.0
"""`fewbit quantize MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.cli.surface import Surface
from fewbit.options import options_of

_NOT_PASSED = ("config", "set", "output")


def complete(values: dict[str, Any]) -> None:
    """Read the configuration and name the output: `MODEL-PRESET` in the current folder."""
    if values["config"] is not None or values["set"]:
        from fewbit.settings import read_file, set_by_path

        values["config"] = {} if values["config"] is None else read_file(values["config"])
        for path, value in (values["set"] or {}).items():
            set_by_path(values["config"], path, value)
    if values["output"] is None:
        settings = values["config"] or {}
        preset = values["preset"] if "preset" in values["given"] else settings.get("preset", values["preset"])
        model = Path(values["model"])
        values["output"] = settings.get("output") or f"{model.stem}-{str(preset).lower()}{model.suffix}"


def run(values: dict[str, Any], surface: Surface) -> int:
    """Quantize a model and print the final screen."""
    from fewbit.api.quantize import quantize

    names = [option.name for option in options_of("quantize") if option.python and option.name not in _NOT_PASSED]
    options = {name: values[name] for name in names if name in values["given"]}
    _, record = quantize(
        values["model"], config=values["config"], output=values["output"], progress=surface.progress(),
        return_record=True, **options,
    )  # fmt: skip
    return surface.result(record, verbose=values["verbose"])
