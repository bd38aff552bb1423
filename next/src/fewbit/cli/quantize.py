# SPDX-License-Identifier: Apache-2.0
"""`fewbit quantize MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.cli.surface import Surface
from fewbit.options import options_of

_DATA_GROUPS = ("Data", "Images", "Text")


def run(values: dict[str, Any], surface: Surface) -> int:
    """Quantize a model and print the final screen."""
    from fewbit.api.quantize import quantize

    model = Path(values["model"])
    output = values["output"] or f"{model.stem}-{values['preset'].lower()}{model.suffix}"
    surface.output = str(output)
    names = [option.name for option in options_of("quantize") if option.group in _DATA_GROUPS]
    data = {name: values[name] for name in names if name in values["given"] and name not in ("data", "validation")}
    _, record = quantize(
        values["model"], values["data"], preset=values["preset"], ignore=values["ignore"], target=values["target"],
        threads=values["threads"], output=output, overwrite=values["overwrite"], progress=surface.progress(),
        return_record=True, **data,
    )  # fmt: skip
    return surface.result(record)
