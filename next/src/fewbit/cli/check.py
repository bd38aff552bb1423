# SPDX-License-Identifier: Apache-2.0
"""`fewbit check DATA`."""

from __future__ import annotations

import shlex
from typing import Any

from fewbit.cli.surface import Surface
from fewbit.errors import UsageError, plural

_DATA = (
    "data_format", "data_option", "task", "split", "samples", "seed", "transform", "on_error", "workers", "preprocess",
    "image_size", "resize", "mean", "std", "layout", "text_column", "label_column", "max_length", "pack",
)  # fmt: skip


def run(values: dict[str, Any], surface: Surface) -> int:
    """Check a dataset, or write a repaired copy with `--fix`; exit code 1 if there is something to correct."""
    from fewbit.api.data import check_dataset, fix_dataset
    from fewbit.data.report_text import report_dict, report_text, verdict_line

    options = {name: values[name] for name in _DATA if name in values["given"]}
    if values["fix"] and not values["output"]:
        raise UsageError(
            "a repaired copy needs a place", code="fix-output", param="output", expected="a new folder",
            hint="{output=repaired}",
        )  # fmt: skip
    if values["fix"]:
        report = fix_dataset(values["data"], values["output"], **options)
    else:
        report = check_dataset(
            values["data"], model=values["model"], quick=values["quick"], purpose=values["purpose"],
            progress=surface.progress(), **options,
        )  # fmt: skip
    judged = report.facts["copy"] if values["fix"] else report
    code = 0 if judged.ok else 1
    if surface.json:
        surface.print_json(surface.document(code, output=values["output"], record=report_dict(report)))
        return code
    command = shlex.join(["fewbit", *surface.words])
    surface.print(report_text(report, interface="cli", show=values["show"], command=command))
    if values["fix"]:
        changes = report.facts["changes"]
        shown = [f"  {change}" for change in changes[: values["show"] or None]]
        surface.print("\n".join([*shown, f"repaired copy in {values['output']}: {plural(len(changes), 'change')}"]))
        surface.print(f"  check of the copy: {verdict_line(judged)}")
    return code
