# SPDX-License-Identifier: Apache-2.0
"""What the files of a format hold otherwise than the model: weights it has no codes for; what readers should know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

_NAMED = 3


def lines(out: Path) -> Iterator[str]:
    """A line for each thing that the files in an output say, beside what the record says of the model.

    Args:
        out: an export, or a folder of exports; of anything else there is nothing to say.
    """
    from fewbit.modules import manifest

    for place in (out, *sorted(out.glob("*/"))):
        content = manifest.read(place) if manifest.is_export(place) else {}
        said = str(content.get("format")).replace("_", "-")
        if floats := list(content.get("dequantized") or ()):
            named = ", ".join(floats[:_NAMED]) + (f" and {len(floats) - _NAMED} more" if len(floats) > _NAMED else "")
            size = sum(path.stat().st_size for path in place.glob("*.safetensors"))
            yield f"  {said}: no codes for {named}, written as floats: {decimal(size)} in all"
        for note in content.get("notes") or ():
            if not note.startswith(tuple(f"{name} is written as" for name in floats)):
                yield f"  {said}: {note}"
