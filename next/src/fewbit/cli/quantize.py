# SPDX-License-Identifier: Apache-2.0
"""`fewbit quantize MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.cli.surface import Surface


def run(values: dict[str, Any], surface: Surface) -> int:
    """Quantize a model and print the final screen."""
    from fewbit.api.quantize import quantize

    model = Path(values["model"])
    output = values["output"] or f"{model.stem}-{values['preset'].lower()}{model.suffix}"
    surface.output = str(output)
    names = ("preset", "ignore", "target", "samples", "seed", "batch_size", "data_format", "threads", "overwrite")
    _, record = quantize(
        values["model"], values["data"], output=output, progress=surface.progress(), return_record=True,
        **{name: values[name] for name in names},
    )  # fmt: skip
    return surface.result(record)
