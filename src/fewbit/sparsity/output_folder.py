# SPDX-License-Identifier: Apache-2.0
"""The output of `sparsify`: `deployment/`, `record.json`, `recipe.yaml`, and `checkpoints/` of training."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fewbit.engine.staging import check_target, place
from fewbit.errors import UsageError
from fewbit.record import write_atomically
from fewbit.sparsity.job import Job
from fewbit.sparsity.recipe import Recipe

CHECKPOINTS, DEPLOYMENT, RECORD, RECIPE = "checkpoints", "deployment", "record.json", "recipe.yaml"

_UNFINISHED = re.compile(rf"\.({DEPLOYMENT}|{re.escape(RECORD)}|{re.escape(RECIPE)})\.[0-9a-f]+")
"""What is being written when a call is stopped: the names that `made_whole` and `write_atomically` give."""
_MARKS = {"train": ("*/*run.json*",), "prune": ("[0-9a-f]" * 32,)}
"""What stages keep their work in, and what each has from its beginning; a user's folder of the name has it not."""
_FINISHED = ("train/*/checkpoints/step-*", "prune/*/*.json")


def check(output: str | Path) -> Path:
    """The folder, if a run can have it: it is new, empty, or holds what a run that was stopped has left.

    That is its checkpoints, and what it wrote of its result before there was a record: `write` makes that anew.

    Raises:
        UsageError: a file, a place that may not be written to, a folder with anything else in it.
    """
    folder = place(output)
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    left = {path.name for path in _left(folder)} | ({CHECKPOINTS} if _is_work(folder / CHECKPOINTS) else set())
    if (folder / RECORD).is_file() and (folder / DEPLOYMENT).is_dir():
        raise UsageError(
            f"the folder {str(folder)!r} has the result of an earlier call",
            where="output",
            expected="a new or empty folder",
            try_="another one: output=… (-o FOLDER); or take this one away",
        )
    if not inside or not inside <= left:
        check_target(folder, overwrite=False)
    return folder


def _left(folder: Path) -> list[Path]:
    """What a call wrote of its result before it was stopped; nothing where a record says that all is there."""
    if not folder.is_dir() or (folder / RECORD).exists():
        return []
    found = [path for path in sorted(folder.iterdir()) if _UNFINISHED.fullmatch(path.name)]
    made, recipe = folder / DEPLOYMENT, folder / RECIPE
    # A folder of this name may be the user's: one that fewbit made has these two, whatever the model is.
    if made.is_dir() and (not any(made.iterdir()) or all((made / n).is_file() for n in (RECIPE, "preprocessing.json"))):
        found.append(made)
        copy = made / RECIPE
        if recipe.is_file() and copy.is_file() and recipe.read_bytes() == copy.read_bytes():
            found.append(recipe)
    return found


def work_of(folder: Path | None, recipe: Recipe) -> Path | None:
    """Where finished work is kept until all is: checkpoints of training stay, what pruning keeps lies beside."""
    if folder is None:
        return None
    if any(name == "train" for name, _ in recipe.stages):
        return folder / CHECKPOINTS
    return _beside(folder)


def _is_work(folder: Path) -> bool:
    """Whether stages, and nobody else, made a folder."""
    if not folder.is_dir():
        return False
    inside = list(folder.iterdir())
    marked = (any(any(path.glob(mark)) for mark in _MARKS.get(path.name, ())) for path in inside)
    return all(known or _is_bare(path) for path, known in zip(inside, marked))


def _is_bare(folder: Path) -> bool:
    return folder.name in _MARKS and folder.is_dir() and not any(path.is_file() for path in folder.rglob("*"))


def _beside(folder: Path) -> Path:
    whole = folder.absolute()
    return whole.with_name(f".{whole.name}.work")


def before(output: str | Path) -> frozenset[Path]:
    """What is in the place of an output before a call begins, for `leave`.

    Raises:
        UsageError: no path.
    """
    folder = place(output)
    inside = folder.iterdir() if folder.is_dir() else ()
    return frozenset(path for path in (folder, _beside(folder), *inside) if path.exists())


def leave(output: str | Path, was: Collection[Path]) -> Path | None:
    """Tidy up after a call that was stopped: what is finished stays, for the same call to go on from.

    Args:
        output: of the result.
        was: what `before` found; all of it stays, for the call may have been stopped before it had a right to any.

    Returns:
        Where the finished work lies; none if there is none, and then nothing is left of the call.
    """
    folder = place(output)
    if (folder / RECORD).exists():  # of an earlier call, which has come to its end
        return None
    works = [work for work in (folder / CHECKPOINTS, _beside(folder)) if _is_work(work)]
    finished = [work for work in works if any(any(work.glob(names)) for names in _FINISHED)]
    for path in {*works, *_left(folder)} - {*finished, *was}:
        _remove(path)
    if folder not in was and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return finished[0] if finished else None


def write(folder: Path, model: Any, recipe: Recipe, job: Job) -> Path:
    """Write a result into its folder; the record comes last and says that all is there.

    Args:
        folder: what `check` gave.
        model: the sparse model.
        recipe: that made it.
        job: of the call.
    """
    from fewbit.sparsity.deployment import deploy

    folder.mkdir(parents=True, exist_ok=True)
    for path in _left(folder):
        _remove(path)
    deploy(folder, model, dense=job.dense, recipe=recipe, use_case=job.use_case, job=job)
    write_atomically(folder / RECIPE, recipe.to_yaml().encode())
    job.record.save(folder / RECORD)
    if job.work is not None and job.work.parent != folder and _is_work(job.work):
        shutil.rmtree(job.work, ignore_errors=True)
    return folder


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
