# SPDX-License-Identifier: Apache-2.0
"""`fewbit plan MODEL`."""

from __future__ import annotations

from typing import Any

from fewbit.cli.surface import Surface
from fewbit.options import options_of


def run(values: dict[str, Any], surface: Surface) -> int:
    """Print what would happen to each layer; `-v` prints every layer on a line of its own."""
    from fewbit.api.plan import plan
    from fewbit.quantization.plan_text import plan_text

    config = None
    if values["config"] is not None or values["set"]:
        from fewbit.settings import read_file, set_by_path

        config = {} if values["config"] is None else read_file(values["config"])
        for path, value in (values["set"] or {}).items():
            set_by_path(config, path, value)
    names = [option.name for option in options_of("plan") if option.python and option.name in values["given"]]
    result = plan(values["model"], config=config, **{name: values[name] for name in names if name != "config"})
    if surface.json:
        surface.print_json(surface.document(0, output=values["output"], record=result.to_dict()))
    else:
        surface.print(plan_text(result, every_layer=bool(values["verbose"])))
    return 0
