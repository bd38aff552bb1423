# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: what it was started with stands in `run.json`, and only the same run goes on in it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from fewbit.engine.staging import check_target, place
from fewbit.errors import DataError, UsageError
from fewbit.record import write_atomically
from fewbit.tuning.checkpoints import Checkpoints

NAME = "run.json"
_OWN = ("checkpoints", "plots", "tensorboard", "metrics.jsonl", "record.json", NAME)


def check_place(output: str | Path) -> Path:
    """The folder, if a run can have it: it is new, empty, or has a run in it.

    Raises:
        UsageError: a file, a place that may not be written to, a folder with files of the user's.
    """
    folder = place(output)
    if not (folder / NAME).is_file():
        check_target(folder, overwrite=False)
    return folder


def begin(folder: Path, facts: Mapping[str, Any], *, resume: bool) -> bool:
    """Start a run in a folder, or find the one that is there to be the same.

    Args:
        folder: what `check_place` gave.
        facts: what decides what is learned, as JSON values.
        resume: go on with what is there; if not, what an earlier run wrote is deleted.

    Returns:
        Whether there is a run to go on with.

    Raises:
        UsageError: the run there is another one, with everything that differs.
    """
    path = folder / NAME
    if path.is_file() and resume:
        was = _read(path)
        differs = list(differences(was, orjson.loads(orjson.dumps(facts))))
        if not differs:
            return True
        if Checkpoints(folder / "checkpoints").last() is not None:  # what ended before its first one is no loss
            raise _another(folder, differs)
    for name in _OWN if path.is_file() else ():
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, orjson.dumps(facts, option=orjson.OPT_INDENT_2))
    return False


def _another(folder: Path, differs: list[str]) -> UsageError:
    return UsageError(
        "the run in this folder was another one: " + "; ".join(differs),
        where=folder,
        expected="the same settings, data and model",
        try_="another output, or resume=False (--no-resume), which deletes the checkpoints here and starts anew",
    )


def differences(was: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two nested mappings, in words.

    >>> differences({"options": {"lr": 1}, "data": "a"}, {"options": {"lr": 2}, "data": "a"})
    ['lr was 1 and is 2']
    """
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return [] if was == now else [f"{name} was {was!r} and is {now!r}"]
    found: list[str] = []
    for key in {**was, **now}:
        found += differences(was.get(key), now.get(key), str(key))
    return found


def _read(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"{NAME} cannot be read: {error}", code="run", where=path, try_="another output") from error
