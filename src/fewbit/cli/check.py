# SPDX-License-Identifier: Apache-2.0
"""`fewbit check`: what is in a folder, and everything that is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewbit.cli import _data, _output
from fewbit.errors import FewbitError


def command(
    path: Annotated[str, typer.Argument(help="A file or folder.")],
    format: _data.Format = None,
    task: Annotated[str | None, typer.Option(help="What the data is for: text-classification, segmentation …")] = None,
    model: Annotated[str | None, typer.Option(help="A model file; samples are compared with its inputs.")] = None,
    fix: Annotated[Path | None, typer.Option(help="Write a repaired copy into this new folder.")] = None,
    quick: Annotated[bool, typer.Option(help="Names, sizes and headers only; decode nothing.")] = False,
    places: Annotated[int, typer.Option(min=0, help="How many places to print a finding; 0 for all.")] = 5,
    option: _data.Options = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Say what a dataset is and name every fault in it, with file and line.

    The source is never changed. Exit code 0: fit for use; 1: faults found; 2: wrong use.

    Examples:

        fewbit check fewbit-demo/image_folder

        fewbit check fewbit-demo/rows/train.jsonl --json

        fewbit check fewbit-demo/npz --model fewbit-demo/model.onnx

        fewbit check fewbit-demo/image_folder --fix fewbit-demo/copy
    """
    from fewbit.data.check import DataCheck
    from fewbit.data.fixing import check_target, fix_dataset

    options = _output.parse_options(option or [])
    if fix is not None:
        check_target(Path(path), fix)  # a wrong place is told now, not after an hour of checking
    limit = None if json or not places else 10_000
    with _output.TerminalProgress() as progress:
        check = DataCheck(
            path, format=format, task=task, model=model, quick=quick, limit=limit, progress=progress, **options
        )
        report, interrupted = check.report, False
        try:
            check.run()
        except KeyboardInterrupt:  # what was found so far is worth showing
            interrupted = True
    if not json:
        _output.show_report(report, places=places or len(report.findings) + 1)
    answer = report.to_dict() if json else {}
    code = 130 if interrupted else 0 if report.ok else 1
    if fix is not None and not interrupted:
        try:
            changes = fix_dataset(path, fix, format=format, task=task, model=model, **options)
        except FewbitError as error:  # the report is worth having all the same
            answer["fix_error"], code = error.to_dict(), error.exit_code
            if not json:
                _output.show_error(error, as_json=False)
        else:
            answer.update(fixed=str(fix), changes=changes)
            if not json:
                _show_changes(fix, changes)
    if json:
        _output.print_json(answer)
    return code


def _show_changes(folder: Path, changes: list[str]) -> None:
    out = _output.stdout()
    out.print(f"\nrepaired copy in {folder}: {len(changes):,} change{'' if len(changes) == 1 else 's'}", markup=False)
    for change in changes:
        out.print(f"  {change}", markup=False)
