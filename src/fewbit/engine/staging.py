# SPDX-License-Identifier: Apache-2.0
"""A folder that is there whole or not at all: files are made in a hidden one and moved when all is well."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fewbit.errors import UsageError
from fewbit.modules import manifest


@contextmanager
def made_whole(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new hidden folder to fill; what is in it is at the target when all went well, else nothing is.

    Args:
        target: where the files shall go.
        overwrite: whether an earlier export may be replaced.

    Raises:
        UsageError: as `check_target`.
    """
    check_target(target, overwrite=overwrite)
    with _staged(target) as folder:
        yield folder
        check_target(target, overwrite=overwrite, staged=folder)  # an hour may have passed
        _move(folder, target)


def check_target(target: str | Path, *, overwrite: bool, staged: Path | None = None) -> None:
    """Refuse a place that an export cannot have, or would have to take from the user, before the work is done.

    Args:
        target: where the export shall go.
        overwrite: whether an earlier export may be replaced.
        staged: a folder of the export's own, which may be there.

    Raises:
        UsageError: a file, a place that may not be written to, a folder with files of the user's, files of an earlier
            export that were changed since.
    """
    target = place(target)
    _refuse_unwritable(target)
    own = None if staged is None else staged.name
    if not target.exists() or not any(path.name != own for path in target.iterdir()):
        return
    if not overwrite:
        raise UsageError(
            f"the folder {str(target)!r} is not empty",
            where=target,
            expected="a new or empty folder",
            try_="another one" + (", or export(…, overwrite=True) (--overwrite)" if manifest.is_export(target) else ""),
        )
    if not manifest.is_export(target):
        raise UsageError(
            f"the files in {str(target)!r} are not an earlier export",
            where=target,
            expected="a new or empty folder, or one that fewbit exported to",
            try_="another one",
        )
    changed = [name for name, known in _earlier(target).items() if known != manifest.hash_file(target / name)]
    if changed:
        raise UsageError(
            f"files of an earlier export were changed since: {', '.join(changed[:5])}",
            where=target,
            expected="files that only fewbit wrote",
            try_="move them away, or export to another folder",
        )


def place(folder: str | Path) -> Path:
    """The path of a folder, `~` included.

    Raises:
        UsageError: no path.
    """
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # the home of a user there is not
        raise UsageError(f"{str(folder)!r}: {error}", expected="a path") from error


def _refuse_unwritable(target: Path) -> None:
    """Refuse a target that is no folder, or in whose place none can be made."""
    place = target.absolute()
    # Not `Path.exists`, which raises where a folder above may not be looked into.
    nearest_there = next(path for path in (place, *place.parents) if os.path.lexists(path))
    if not nearest_there.is_dir():
        what = "is a file" if nearest_there.exists() else "is a link to nothing"
        raise UsageError(f"{str(nearest_there)!r} {what}", where=target, expected="a new or empty folder")
    if not os.access(nearest_there, os.W_OK | os.X_OK):
        raise UsageError(
            f"the folder {str(nearest_there)!r} may not be written to",
            where=target,
            expected="a folder that you may make files in",
            try_="another one",
        )


def _earlier(target: Path) -> dict[str, str]:
    """The files an earlier export wrote that are still there, with their hashes."""
    files: dict[str, str] = manifest.read(target)["files"]
    return {name: known for name, known in files.items() if (target / name).is_file()}


def _move(staged: Path, target: Path) -> None:
    """Put the files in place: by one move where the folder is new, else one after the other, the manifest last."""
    if not target.exists():
        staged.rename(target)
        return
    earlier = _earlier(target) if manifest.is_export(target) else {}
    new = sorted(manifest.files(staged), key=lambda name: name == manifest.NAME)
    taken = [name for name in new if (target / name).exists() and name not in (*earlier, manifest.NAME)]
    if taken:
        raise UsageError(
            f"the folder has files that the export would replace: {', '.join(taken[:5])}",
            where=target,
            expected="only files of an earlier export under these names",
            try_="move them away, or export to another folder",
        )
    for name in new:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / name).replace(target / name)
    for name in set(earlier) - set(new):
        (target / name).unlink()


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A new folder on the same disk, gone afterwards unless it was moved.

    It lies inside a target that is there already: what is beside that may be another disk, or not ours to write to.
    """
    parent = target.absolute() if target.exists() else target.absolute().parent
    made = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    staged = parent / f".{target.name}.{secrets.token_hex(4)}"
    staged.mkdir()
    try:
        yield staged
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        with suppress(OSError):  # somebody else put something there meanwhile; the fault itself is what matters
            for path in made:
                path.rmdir()
        raise
    shutil.rmtree(staged, ignore_errors=True)
