# SPDX-License-Identifier: Apache-2.0
"""Backends: one per framework or file format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.backends._base import Backend
from fewbit.data.user_code import parse_reference
from fewbit.errors import UsageError, nearest


def find_backend(source: Any) -> Backend:
    """The backend that reads a model.

    Raises:
        UsageError: the file is missing, or no backend knows it.
    """
    if isinstance(source, str | Path) and not Path(source).exists() and parse_reference(str(source)) is None:
        path = Path(source)
        parent = path.parent if path.parent.is_dir() else Path()
        siblings = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
        raise UsageError(
            f"there is no model {str(source)!r}",
            code="model-missing",
            where=str(source),
            expected=", ".join(nearest(path.name, siblings) or siblings[:8]) or "an existing file",
            hint="check the spelling",
        )
    for name in registry.names("backends"):
        backend: Backend = registry.get("backends", name)
        if backend.matches(source):
            return backend
    suffixes = [suffix for name in registry.names("backends") for suffix in registry.get("backends", name).suffixes]
    is_path = isinstance(source, str | Path)
    raise UsageError(
        f"no backend reads {source!r}" if is_path else f"no backend takes a {type(source).__name__}",
        code="model-unknown",
        where=str(source) if is_path else None,
        expected=", ".join(suffixes),
        hint="export the model to ONNX",
    )


__all__ = ["find_backend"]
