# SPDX-License-Identifier: Apache-2.0
"""`fewbit check DATA`."""

from __future__ import annotations

import shlex
from typing import Any

from fewbit.cli.surface import Surface
from fewbit.errors import UsageError, escape, plural
from fewbit.options import options_of

_NAMES = tuple(option.name for option in options_of("check") if option.group in ("Data", "Images", "Text"))


def run(values: dict[str, Any], surface: Surface) -> int:
    """Check a dataset, or write a repaired copy with `--fix`; exit code 1 if there is something to correct."""
    from fewbit.api.data import check_dataset, fix_dataset
    from fewbit.data.report_text import report_dict, report_text, verdict_line

    options = {name: values[name] for name in _NAMES if name in values["given"]}
    if values["fix"] and not values["output"]:
        raise UsageError(
            "a repaired copy needs a place", code="fix-output", param="output", expected="a new folder",
            hint="{output=repaired}",
        )  # fmt: skip
    if values["fix"]:
        report = fix_dataset(values["data"], values["output"], overwrite=values["overwrite"], **options)
    else:
        report = check_dataset(values["data"], model=values["model"], progress=surface.progress(), **options)
    copy = report.facts.get("copy")
    code = 0 if (copy or report).ok else 1
    if surface.json:
        surface.print_json(surface.document(code, output=values["output"], record=report_dict(report)))
        return code
    if copy is None:
        surface.print(report_text(report, interface="cli", show=values["show"], command=_repeat(values)))
        return code
    surface.print(report_text(report, interface="cli", show=values["show"], command=None))
    changes = report.facts["changes"]
    shown = changes[: values["show"] or None]
    more = [f"... and {len(changes) - len(shown):,} more"] if len(changes) > len(shown) else []
    lines = (
        ["", f"{plural(len(changes), 'change')}:", *(f"  {escape(line)}" for line in (*shown, *more))]
        if changes
        else []
    )
    lines += ["", f"repaired copy in {escape(values['output'])}", verdict_line(copy)]
    if code:
        lines.append(
            f"  next      fewbit check {shlex.quote(values['output'])}    lists what is left to correct by hand"
        )
    surface.print("\n".join(lines))
    return code


def _repeat(values: dict[str, Any]) -> str:
    """The command without what `--fix` does not take."""
    reading = ("data_format", "data_option", "task", "split", "on_error", "text_column", "label_column")
    words = ["fewbit", "check", values["data"]]
    for name in reading:
        for text in values["given"].get(name, ()):
            words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)
