# SPDX-License-Identifier: Apache-2.0
"""What a path that is not there may have been meant to be."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path


def near_paths(path: str | Path) -> str | None:
    """A question that names the entries of the folder whose names are like the path's; none if there are none.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "model.onnx").write_text("")
    >>> near_paths(folder / "modle.onnx") == f"did you mean {str(folder / 'model.onnx')!r}?"
    True
    """
    place = Path(path).expanduser()
    names = sorted(entry.name for entry in place.parent.iterdir()) if place.parent.is_dir() else []
    close = get_close_matches(place.name, names, n=3)
    return f"did you mean {' or '.join(repr(str(place.parent / name)) for name in close)}?" if close else None
