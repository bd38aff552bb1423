# SPDX-License-Identifier: Apache-2.0
"""`fewbit list`: every member there is, from the registry."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from fewbit import registry
from fewbit.cli import _output
from fewbit.errors import UsageError, nearest


def command(
    kind: Annotated[
        str | None, typer.Argument(help="A kind of member, `presets` or `findings`; all kinds when left out.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Only the findings of this format.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> int:
    """List formats and other members, presets of `quantize` and of data, or every finding that `check` can report.

    Examples:

        fewbit list

        fewbit list formats --json

        fewbit list presets

        fewbit list findings --format npz
    """
    if format is not None and kind != "findings":
        raise UsageError(f"--format {format} and not findings", where="--format", expected="fewbit list findings")
    if format is not None and format not in registry.names("formats"):
        raise UsageError(
            f"there is no format {format!r}", where="--format", expected=nearest(format, registry.names("formats"))
        )
    if kind == "findings":
        rows = [row for row in findings() if format in (None, row["format"])]
        columns: tuple[str, ...] = ("format", "code", "severity", "meaning", "fix")
    elif kind == "presets":
        rows = presets()
        columns = ("for", "name", "summary")
    else:
        known = [*registry.kinds(), "findings"]
        if kind not in (None, *known):
            raise UsageError(f"there is no kind of member {kind!r}", expected=nearest(str(kind), known))
        wanted = [kind] if kind else list(registry.kinds())
        rows = [{"kind": k, "name": n, "summary": registry.summary(k, n)} for k in wanted for n in registry.names(k)]
        columns = ("kind", "name", "summary")
    if json:
        _output.print_json(rows)
        return 0
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column in ("format", "code", "severity", "kind", "for", "name"))
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    _output.stdout().print(table)
    return 0


def presets() -> list[dict[str, Any]]:
    """Every preset: of `quantize` and `plan`, and the datasets of `generate_dataset_config`."""
    from fewbit.schemes.presets import PRESETS

    schemes = [{"for": "quantize", "name": name, "summary": entry["about"]} for name, entry in PRESETS.items()]
    names = registry.names("presets")
    return schemes + [{"for": "data", "name": name, "summary": registry.summary("presets", name)} for name in names]


def findings() -> list[dict[str, Any]]:
    """Every code of every format, with its severity, meaning, remedy and the policies a reader honours."""
    return [
        {
            "format": name,
            "code": code,
            "severity": str(known.severity),
            "meaning": known.meaning,
            "fix": known.fix,
            "policies": list(known.policies),
        }
        for name in registry.names("formats")
        for code, known in sorted(getattr(registry.get("formats", name), "CODES", {}).items())
    ]
