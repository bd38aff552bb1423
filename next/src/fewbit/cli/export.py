# SPDX-License-Identifier: Apache-2.0
"""`fewbit export MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.cli.surface import Surface
from fewbit.options import options_of


def complete(values: dict[str, Any]) -> None:
    """Name the output: `MODEL-FORMAT` in the current folder."""
    if values["output"] is None:
        name = (*values["format"], values["target"] or "compressed-tensors")[0]
        values["output"] = f"{Path(values['model']).stem}-{name.lower().replace('_', '-')}"


def run(values: dict[str, Any], surface: Surface) -> int:
    """Write or convert a model and print the final screen."""
    from fewbit.api.export import export

    names = [option.name for option in options_of("export") if option.python and option.name != "output"]
    options = {name: values[name] for name in names if name in values["given"]}
    _, record = export(values["model"], values["output"], progress=surface.progress(), return_record=True, **options)
    return surface.result(record, verbose=values["verbose"])
