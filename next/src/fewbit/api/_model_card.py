# SPDX-License-Identifier: Apache-2.0
"""`README.md` of an output folder: the record for people, with code that loads the result in each runtime."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fewbit import registry
from fewbit.output import Output
from fewbit.record.card import model_card
from fewbit.record.schema import Record


def write_model_card(folder: Output, record: Record, formats: Sequence[str]) -> None:
    """Write the model card of a folder; a single file has none.

    Args:
        folder: with the model in it.
        record: of the run, finished.
        formats: checkpoint formats that were written; several lie in folders of their names.
    """
    if folder.is_file:
        return
    blocks = dict(_loading(folder.path.name, record, formats))
    source = Path(record.model["source"]).name  # no path of this machine
    data = " --data DATA" if record.data else ""
    command = (
        f"fewbit {record.command} {shlex.quote(source)} --config {shlex.quote(folder.path.name)}/config.yaml{data}"
    )
    (folder.work / "README.md").write_text(model_card(record, blocks, command), encoding="utf-8")


def _loading(name: str, record: Record, formats: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Runtimes that read a format, each with its code; the first format that a runtime reads is enough."""
    for target in registry.members("targets").values():
        readable = next((item for item in formats if item in (target.format, *target.reads)), None)
        if target.loading and readable is not None:
            subfolder = readable.replace("_", "-") + "/" if len(formats) > 1 else ""
            files = record.verification.get("files", ())
            single = next((file for file in files if file.startswith(subfolder) and file.endswith(".gguf")), subfolder)
            yield target.title, target.loading.format(path=repr(f"{name}/{single}".rstrip("/")))
