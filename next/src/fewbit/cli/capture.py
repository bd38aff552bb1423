# SPDX-License-Identifier: Apache-2.0
"""`fewbit capture MODEL --data DATA -o OUT`."""

from __future__ import annotations

from typing import Any

from fewbit.cli.surface import Surface
from fewbit.errors import UsageError, plural, raise_all
from fewbit.options import options_of

_OTHERS = ("names", "samples", "batch_size", "device", "threads", "overwrite")


def run(values: dict[str, Any], surface: Surface) -> int:
    """Run data through a model and write what arrives there."""
    mistakes = [
        UsageError(f"capture needs {{{name}}}", code="capture-option", param=name, hint=f"{{{name}={example}}}")
        for name, example in (("data", "DATA"), ("output", "captured"))
        if values[name] is None
    ]
    raise_all(mistakes)
    from fewbit.api.capture import capture_dataset

    surface.output = None  # an interrupted recording starts again; nothing of it continues
    groups = [option.name for option in options_of("capture") if option.group in ("Data", "Images", "Text")]
    options = {name: values[name] for name in groups if name in values["given"] and name != "data"}
    manifest = capture_dataset(
        values["model"], values["data"], values["output"], progress=surface.progress(),
        **options | {name: values[name] for name in _OTHERS},
    )  # fmt: skip
    if surface.json:
        surface.print_json(surface.document(0, output=values["output"], record=manifest))
        return 0
    lines = [f"{plural(manifest['samples'], 'sample')} in {values['output']}"]
    lines += [f"  input     {name}: {tensor}" for name, tensor in manifest["inputs"].items()]
    lines += [f"  left out  {name} ({reason})" for name, reason in manifest["left_out"].items()]
    surface.print("\n".join([*lines, f"  next      fewbit quantize MODEL --data {values['output']}"]))
    return 0
