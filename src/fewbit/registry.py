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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fewbit.errors import UsageError, nearest

_ROOT = Path(__file__).parent
_OWN = "fewbit_plugin_"
_folders: set[Path] = set()
"""The folders that files of the user's were loaded from."""


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

    The file can import what lies beside it, as a script can: while it loads, its folder is searched first, whatever
    else goes by the same names. Afterwards its folder is searched last, so an import inside a function finds a file
    beside it unless something else in the process has its name.
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


def is_users(module: str, file: str) -> bool:
    """Whether a module is a file of the user's that a reference named, or lies beside one."""
    top = module.partition(".")[0]
    places = (place for folder in _folders for place in (folder / f"{top}.py", folder / top) if top != "fewbit")
    return top.startswith(_OWN) or any(Path(file).is_relative_to(place) for place in places)


@cache
def _load_module(path: Path, mtime_ns: int) -> ModuleType:
    # The time of change is part of the key, so that an edited file is read again in a notebook.
    name = f"{_OWN}{path.stem}_{abs(hash((path, mtime_ns))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up by name while it loads
    try:
        with _searched_first(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _searched_first(folder: Path) -> Iterator[None]:
    """Let imports find the files of a folder before others of the same names, which have them back afterwards."""
    _folders.add(folder)
    names = _taken(folder)
    hidden = _take_out(names)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:  # the file may have changed the path itself
            sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        _take_out(names)
        sys.modules.update(hidden)


def _taken(folder: Path) -> set[str]:
    """The names of files in a folder by which another file of somebody's is imported already.

    Installed libraries keep their names: many cannot be imported twice.
    """
    beside = {path.stem: path for path in folder.glob("*.py")}
    beside |= {path.parent.name: path for path in folder.glob("*/__init__.py")}
    installed = {"fewbit", "__main__", *sys.stdlib_module_names}
    loaded = {name: getattr(sys.modules.get(name), "__file__", None) for name in beside.keys() - installed}
    others = {name: Path(file).resolve() for name, file in loaded.items() if file is not None}
    return {
        name
        for name, file in others.items()
        if file != beside[name].resolve() and not {"site-packages", "dist-packages"} & set(file.parts)
    }


def _take_out(names: set[str]) -> dict[str, ModuleType]:
    """Remove modules and what is inside them from those that are imported."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}


@cache
def _files(kind: str) -> dict[str, Path]:
    package = kinds().get(kind)
    if package is None:
        raise UsageError(f"there is no kind of member {kind!r}", expected=nearest(kind, kinds()))
    folder = _ROOT.joinpath(*package.split(".")[1:])
    return {p.stem: p for p in sorted(folder.glob("*.py")) if not p.stem.startswith("_")}


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"fewbit.{kind}")}
