# SPDX-License-Identifier: Apache-2.0
"""Tensors that a model class does not know: copied into an export, or named as missing in its record."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.exporters._unknown_tensors import KEY, copy_tensors
from fewbit.modules.checkpoint_files import Place
from fewbit.record import Record


def copy_unknown(folder: Path, places: Mapping[str, Place], format: str, record: Record | None) -> dict[str, Any]:
    """Copy the tensors and note each of them in the record.

    Args:
        folder: of the export, with its other weights in it.
        places: the tensors, where they are now.
        format: of the export.
        record: of the run, if there is one.

    Returns:
        What the manifest shall say of them.
    """
    if not places:
        return {}
    file = copy_tensors(folder, places, format)
    if file is None:
        names = ", ".join(places)
        warnings.warn(
            f"{len(places)} tensors that the model class does not know are not in the {format} export: {names}",
            stacklevel=2,
        )
    what = "left-out" if file is None else "copied"
    reason = "the model class does not know this tensor: "
    reason += f"{format} has no place for it, it is lost" if file is None else f"it is copied unchanged to {file}"
    known = {(line["what"], line["reason"], line["where"]) for line in record.lines} if record is not None else set()
    for name in places:
        if record is not None and (what, reason, name) not in known:
            record.note(what, reason, where=name)
    return {} if file is None else {KEY: sorted(places)}
