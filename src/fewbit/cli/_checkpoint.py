# SPDX-License-Identifier: Apache-2.0
"""The way of a command that turns the files of a checkpoint into others, without opening the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fewbit.cli import _choice, _job, _output


def carry_out(
    model: str, out: Path, formats: Sequence[str], ignore: Sequence[str] | None, *, as_json: bool, **options: Any
) -> int | str:
    """Compress a checkpoint file to file, and print what became of it.

    Args:
        model: the folder.
        out: where it goes.
        formats: the one that is written.
        ignore: layers that stay in float, as the command line names them.
        as_json: print the record.
        options: of `compress_checkpoint`.

    Returns:
        The exit code; or why only the opened model can be compressed, and then nothing was written.

    Raises:
        UsageError: something that cannot be, before the work starts.
        DataError: files that cannot be used.
    """
    from fewbit.engine.checkpoint import compress_checkpoint
    from fewbit.engine.checkpoint_names import NeedsModel
    from fewbit.record import Record

    scope = partial(_choice.ignored, given=ignore)
    try:
        with _output.TerminalProgress() as progress:
            compress_checkpoint(model, out, format=formats[0], ignored_scope=scope, progress=progress, **options)
    except NeedsModel as why:
        return why.what
    record = Record.from_json((out.expanduser() / "record.json").read_bytes())
    record.facts |= {"model": model, "data": None}
    return _job.tell(record, out, f"as {formats[0]}", as_json=as_json)
