# SPDX-License-Identifier: Apache-2.0
"""`fix_dataset`: a repaired copy of a dataset, somewhere else."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.detect import find_format
from fewbit.data.opening import as_path, check_options
from fewbit.data.signature import read_signature
from fewbit.errors import DataError, UsageError


def fix_dataset(
    path: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    task: str | None = None,
    model: Any = None,
    **options: Any,
) -> list[str]:
    """Write a repaired copy into a new folder and return what was changed, a line each; the source is never touched.

    The copy is made beside its place and moved there when it is whole, so an interrupt leaves nothing behind.

    Args:
        path: the dataset.
        out: a folder that is not there yet, or is empty, outside the dataset.
        format: as in `check_dataset`, like `task`, `model` and the format's own options.
    """
    source, target = as_path(path), Path(out).expanduser().resolve()
    name, member, _ = find_format(source, format)
    if not hasattr(member, "fix"):
        can = [n for n in registry.names("formats") if hasattr(registry.get("formats", n), "fix")]
        raise UsageError(f"the format {name!r} cannot write a repaired copy", expected=f"one of: {', '.join(can)}")
    check_options(member.fix, options, name)
    check_target(source, target)
    workshop = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        signature = None if model is None else read_signature(model)
        changes: list[str] = member.fix(source, workshop, task=task, signature=signature, **options)
        if not any(path.is_file() for path in workshop.rglob("*")):
            raise DataError(
                "nothing would be left of the dataset: " + ("; ".join(changes[:5]) or "no part of it can be read"),
                code="nothing-left",
                where=source,
                expected="at least one readable sample",
                try_="`fewbit check` says what is wrong; an option of the format (such as encoding) may help",
            )
        workshop.chmod(0o755)  # mkdtemp makes a folder only its owner can enter
        workshop.replace(target)
    except BaseException:
        shutil.rmtree(workshop, ignore_errors=True)
        raise
    return changes


def check_target(source: Path, out: Path) -> None:
    """Refuse a place where a repaired copy cannot be written, before anything is read.

    Raises:
        UsageError: the folder is not empty, lies inside the dataset, or cannot be written to.
    """
    target = out.expanduser().resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already and not empty", where="--fix", expected="a new or empty folder")
    if source.is_dir() and (target == source.resolve() or source.resolve() in target.parents):
        raise UsageError(f"{target} lies inside the dataset", where="--fix", expected="a folder outside of it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise UsageError(
            f"nothing can be written beside {target}: {error.strerror}", where="--fix", expected="a writable folder"
        ) from error
