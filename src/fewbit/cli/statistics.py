# SPDX-License-Identifier: Apache-2.0
"""`fewbit statistics`: what runs kept of what layers read; shown, and added up."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fewbit.cli import _output
from fewbit.errors import UsageError


class Action(StrEnum):
    """What to do with statistics."""

    show = "show"
    merge = "merge"


def command(
    action: Annotated[Action, typer.Argument(help="show what is in them, or merge several into a new folder.")],
    folders: Annotated[list[Path], typer.Argument(help="What `fewbit compress --statistics` kept.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The new folder of merge.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> int:
    """Show the statistics of a model that `fewbit compress --statistics` kept, or add up those of different data.

    With the sum, `fewbit compress --statistics` compresses the model for all of that data, which stays where it is.

    Examples:

        fewbit compress fewbit-demo/model.py:build --mode int4_sym --algorithm gptq --samples 20 --data fewbit-demo/npz --statistics fewbit-demo/sums-a -o fewbit-demo/int4-a

        fewbit compress fewbit-demo/model.py:build --mode int4_sym --algorithm gptq --samples 30 --data fewbit-demo/npz --statistics fewbit-demo/sums-b -o fewbit-demo/int4-b

        fewbit statistics show fewbit-demo/sums-a

        fewbit statistics merge fewbit-demo/sums-a fewbit-demo/sums-b -o fewbit-demo/sums --json

        fewbit compress fewbit-demo/model.py:build --mode int4_sym --statistics fewbit-demo/sums -o fewbit-demo/int4-both
    """  # noqa: E501
    from fewbit.engine.merging import describe_statistics, merge_statistics

    if (action is Action.merge) != (out is not None):
        raise UsageError(
            f"{action} and {'no ' if out is None else ''}--out",
            where="--out",
            expected="fewbit statistics merge A B -o C, fewbit statistics show A",
        )
    shown = folders if out is None else [merge_statistics(folders, out)]
    found = [describe_statistics(folder) for folder in shown]
    if json:
        _output.print_json(found if action is Action.show else found[0])
        return 0
    for each in found:
        _output.stdout().print(f"{each.pop('folder')}", markup=False)
        for name, value in each.items():
            _output.stdout().print(f"  {name:<8}{value if isinstance(value, str) else f'{value:,}'}", markup=False)
    return 0
