# SPDX-License-Identifier: Apache-2.0
"""A file is a member: what kinds of members there are, which members a kind has, and how to get one.

A folder with a `_base.py` is a *kind* (its name is the kind's name); every plain file in it is a member;
files with a leading underscore are machinery. Listing reads the folder and imports nothing, so a member
whose optional library is missing hurts only those who ask for it. Third parties add members through the
entry-point group `fewbit.<kind>`; a one-off comes as `"file.py:function"`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fewbit.errors import UsageError, nearest

_ROOT = Path(__file__).parent


@cache
def kinds() -> dict[str, str]:
    """Every kind of member and the package that holds it: `{"formats": "fewbit.data.formats", …}`."""
    found = {}
    for base in sorted(_ROOT.rglob("_base.py")):
        folder = base.parent
        found[folder.name] = ".".join(["fewbit", *folder.relative_to(_ROOT).parts])
    return found


def names(kind: str) -> list[str]:
    """The members of a kind, sorted, without importing any.

    >>> "npz" in names("formats")
    True
    """
    return sorted({*_files(kind), *_entry_points(kind)})


def is_built_in(kind: str, name: str) -> bool:
    """Whether a member is one of ours, and not a plug-in's."""
    return name in _files(kind)


def get(kind: str, name: str) -> Any:
    """Import and return one member: the module of a built-in, or what an entry point loads.

    Raises:
        UsageError: no such member; the message lists near matches.
    """
    if name in _files(kind):
        return importlib.import_module(f"{kinds()[kind]}.{name}")
    plugin = _entry_points(kind).get(name)
    if plugin is None:
        raise UsageError(
            f"there is no member {name!r} among the {kind}",
            where=f"registry of {kind}",
            expected=nearest(name, names(kind)),
            try_=f"`fewbit list {kind}`, or a plug-in as 'path/to/file.py:function'",
        )
    return plugin.load()


def summary(kind: str, name: str) -> str:
    """The first line of a member's docstring, read without importing the member."""
    path = _files(kind).get(name)
    if path is None:
        return f"plug-in: {_entry_points(kind)[name].value}"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def is_reference(text: object) -> bool:
    """Whether a text is a `"file.py:function"` reference to the user's own code."""
    return isinstance(text, str) and text.rpartition(":")[0].endswith(".py")


def load_reference(text: str) -> Any:
    """Load the object a `"file.py:function"` names, from the user's own file.

    The split is at the *last* colon (a Windows path has one of its own), and an error raised inside the
    user's file comes out as it is, never as "not found".
    """
    file, _, attribute = text.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"no file {file!r}", where=text, expected="'path/to/file.py:function'")
    module = _load_module(path, path.stat().st_mtime_ns)
    if attribute not in vars(module):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UsageError(f"{path.name} defines no {attribute!r}", where=text, expected=nearest(attribute, public))
    return vars(module)[attribute]


def find_loaded(text: str) -> Any:
    """The object that `"module:Name"` names if the module is imported already, else `None`; it is not imported."""
    module, _, path = text.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


@cache
def _load_module(path: Path, mtime_ns: int) -> ModuleType:
    # The time of change is part of the key, so that an edited file is read again in a notebook.
    name = f"fewbit_plugin_{path.stem}_{abs(hash((path, mtime_ns))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up by name while it loads
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@cache
def _files(kind: str) -> dict[str, Path]:
    package = kinds().get(kind)
    if package is None:
        raise UsageError(f"there is no kind of member {kind!r}", expected=nearest(kind, kinds()))
    folder = _ROOT.joinpath(*package.split(".")[1:])
    return {p.stem: p for p in sorted(folder.glob("*.py")) if not p.stem.startswith("_")}


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"fewbit.{kind}")}
