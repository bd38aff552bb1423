# SPDX-License-Identifier: Apache-2.0
"""`fewbit compare MODEL MODEL --data DATA`."""

from __future__ import annotations

from typing import Any

from fewbit.cli.surface import Surface
from fewbit.errors import UsageError
from fewbit.options import options_of


def run(values: dict[str, Any], surface: Surface) -> int:
    """Compare two models and print the final screen; exit code 1 if the second does not work."""
    if values["data"] is None:
        raise UsageError("compare needs {data}", code="data-required", param="data", hint="{data=DATA}")
    from fewbit.api.compare import compare

    surface.output = None  # nothing of an interrupted comparison is kept
    names = [option.name for option in options_of("compare") if option.python and option.name in values["given"]]
    options = {name: values[name] for name in names if name != "data"}
    record = compare(values["original"], values["compressed"], values["data"], progress=surface.progress(), **options)
    return surface.result(record, verbose=values["verbose"])
