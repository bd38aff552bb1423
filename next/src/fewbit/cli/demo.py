# SPDX-License-Identifier: Apache-2.0
"""`fewbit demo`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewbit.cli.surface import Surface
from fewbit.errors import escape

if TYPE_CHECKING:
    from fewbit.demo.run import DemoStep

_TITLE, _COMMAND = 15, 42


def run(values: dict[str, Any], surface: Surface) -> int:
    """Write the demo, run commands on it and print a table; exit code 1 if one gave what it should not."""
    from fewbit.demo.run import run_demo

    folder = Path(values["output"] or "fewbit-demo")
    surface.output = None  # an interrupted demo starts again
    rows = []
    for row in run_demo(folder):
        rows.append(row)
        if not surface.json:
            surface.print(_line(row))
    code = 0 if all(row.expected for row in rows) else 1
    if surface.json:
        record = {"rows": [asdict(row) for row in rows]}
        surface.print_json(surface.document(code, output=str(folder), record=record))
    else:
        surface.print(f"\nall of it is in {folder}; next: fewbit check {folder}/damaged")
    return code


def _line(row: DemoStep) -> str:
    """Title, command, result; the result of a long command stands below it."""
    if not row.command:
        return escape(f"{row.title:<{_TITLE}}{row.result}")
    if len(row.command) > _COMMAND:
        return f"{row.title:<{_TITLE}}{escape(row.command)}\n{'':<{_TITLE}}{escape(row.result)}"
    return escape(f"{row.title:<{_TITLE}}{row.command:<{_COMMAND}}  {row.result}")
