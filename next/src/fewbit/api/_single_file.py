# SPDX-License-Identifier: Apache-2.0
"""Results that are one small file: checked before any work, written atomically, replaced only if fewbit wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fewbit.errors import UsageError
from fewbit.output import check_output, reporting_full_disk, write_atomic


def check_single_file(
    path: Path, suffixes: tuple[str, ...], mark: bytes, *, overwrite: bool, inputs: Iterable[Path] = ()
) -> None:
    """Refuse an output file before any work starts.

    Args:
        path: where it goes.
        suffixes: it may have.
        mark: what files of fewbit begin with.
        overwrite: whether an earlier one may be replaced.
        inputs: that it may not replace.
    """
    if path.suffix.lower() not in suffixes:
        raise UsageError(
            f"the output {path} is no {' or '.join(suffixes)} file", code="output-kind", param="output",
            expected=f"a name that ends in {suffixes[0]}", hint=f"{{output={path.with_suffix(suffixes[0]).name}}}",
        )  # fmt: skip
    if path.is_file():
        with open(path, "rb") as file:
            ours = file.read(len(mark)) == mark
        if not ours or not overwrite:
            raise UsageError(
                f"{path} exists" + ("" if ours else " and was not written by fewbit"),
                code="output-exists" if ours else "output-foreign", param="output", expected="a new path",
                hint="{overwrite} replaces it" if ours else "another {output}",
            )  # fmt: skip
    else:
        check_output(path, overwrite=False, inputs=inputs, is_file=True)


def write_single_file(path: Path, content: bytes) -> None:
    """Write it so that it is there completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with reporting_full_disk(path.parent):
        write_atomic(path, content)
