# SPDX-License-Identifier: Apache-2.0
"""Members of a kind: a plain file in a folder with `_base.py` is the member of that name.

A member's file defines one object, named below. Other packages add members by entry points of the group
`fewbit.<kind>`. Listing names imports nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from fewbit.errors import UsageError, nearest

KINDS = {
    "algorithms": ("fewbit.algorithms", "ALGORITHM"),
    "backends": ("fewbit.backends", "BACKEND"),
    "checkpoints": ("fewbit.checkpoints", "CHECKPOINT"),
    "data_formats": ("fewbit.data.formats", "FORMAT"),
    "metrics": ("fewbit.evaluation.metrics", "METRIC"),
    "observers": ("fewbit.observers", "OBSERVER"),
    "targets": ("fewbit.targets", "TARGET"),
}
"""Kind: the folder, and the name of the object in each file."""


@cache
def names(kind: str) -> tuple[str, ...]:
    """The members of a kind, sorted; `.` and `-` of a name are `_` in its file name.

    >>> "onnx" in names("backends")
    True
    """
    package, _ = KINDS[kind]
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None, package
    files = [info.name for info in pkgutil.iter_modules(spec.submodule_search_locations)]
    plugins = [entry.name for entry in entry_points(group=f"fewbit.{kind}")]
    return tuple(sorted({*(name for name in files if not name.startswith("_")), *plugins}))


def get(kind: str, name: str, *, param: str | None = None) -> Any:
    """One member by name; case, `-` and `.` do not matter.

    Args:
        kind: a key of `KINDS`.
        name: as the user wrote it.
        param: the parameter that named it, for the error.
    """
    key = name.lower().replace("-", "_").replace(".", "_")
    if key not in names(kind):
        similar = nearest(name, names(kind)) or list(names(kind))
        raise UsageError(
            f"no {kind.replace('_', ' ').rstrip('s')} is called {name!r}",
            code=f"{kind.rstrip('s').replace('_', '-')}-unknown",
            param=param,
            expected=", ".join(similar),
            hint=f"`fewbit list {kind.replace('_', '-')}` lists all",
        )
    return _load(kind, key)


def members(kind: str) -> dict[str, Any]:
    """Every member by name; this imports them all."""
    return {name: _load(kind, name) for name in names(kind)}


@cache
def _load(kind: str, name: str) -> Any:
    package, attribute = KINDS[kind]
    for entry in entry_points(group=f"fewbit.{kind}", name=name):
        return entry.load()
    return getattr(importlib.import_module(f"{package}.{name}"), attribute)
