# SPDX-License-Identifier: Apache-2.0
"""What `check --fix` wrote: a hidden list of its files, so that an earlier copy can be replaced and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from fewbit.errors import UsageError
from fewbit.output import COPY_RECORD, check_output


def mark_copy(folder: Path) -> None:
    """List every file of a new copy with its size; readers of datasets skip hidden files."""
    files = {name: size for name, size in _sizes(folder) if name != COPY_RECORD}
    (folder / COPY_RECORD).write_bytes(orjson.dumps({"written_by": "fewbit check --fix", "files": files}))


def check_copy(path: Path, *, overwrite: bool, inputs: Sequence[Path]) -> None:
    """Refuse a folder before any work starts, also an earlier copy in which files were changed or added."""
    check_output(path, overwrite=overwrite, inputs=inputs, is_file=False)
    if not (path / COPY_RECORD).is_file():
        return
    try:
        files = dict(orjson.loads((path / COPY_RECORD).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        files = {}
    for name, size in _sizes(path):
        if name != COPY_RECORD and files.get(name) != size:
            raise UsageError(
                f"{path} is an earlier copy, and {name} was changed or added since", code="output-foreign",
                param="output", expected="a new path, or an unchanged copy", hint="another {output}",
            )  # fmt: skip


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            file = Path(parent, name)
            shown = os.fsencode(file.relative_to(folder)).decode(errors="backslashreplace")
            if name != ".lock":  # of the run that is writing it
                yield shown, file.lstat().st_size
