# SPDX-License-Identifier: Apache-2.0
"""Results appear at once or not at all: everything is written to `OUT.partial/`, then renamed.

`OUT.partial/` is locked while a run is using it (by the operating system, so a dead process holds nothing) and stays
after an interrupt or a full disk, so that the same command can continue.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fewbit.errors import FewbitError, ResourceError, UsageError

RECORD = "record.json"
COPY_RECORD = ".fewbit-copy.json"
"""In a repaired copy of a dataset, where a visible file would be taken for data."""
_LOCK = ".lock"


class Output:
    """Where a run writes.

    Attributes:
        path: the file or folder the user will find.
        work: the folder to write into until everything is verified.
    """

    def __init__(self, path: Path, work: Path, *, is_file: bool, merge: bool = False):
        self.path, self.work, self.is_file, self.merge = path, work, is_file, merge

    def companion(self, name: str) -> str:
        """The name of a file next to the result: `record.json`, or `small.record.json` next to `small.onnx`."""
        return f"{self.path.stem}.{name}" if self.is_file else name

    def clear(self) -> bool:
        """Remove what an interrupted run left; returns whether there was something."""
        leftovers = [entry for entry in self.work.iterdir() if entry.name != _LOCK]
        for entry in leftovers:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        return bool(leftovers)


def check_output(
    path: Path, *, overwrite: bool, inputs: Iterable[Path] = (), is_file: bool, ours: bool = False
) -> None:
    """Refuse an output path before any work starts.

    Args:
        path: where the result goes.
        overwrite: whether an earlier result of fewbit may be replaced.
        inputs: the model and data; the result may not lie inside them or replace them.
        is_file: whether the result is one file with companions.
        ours: the caller has looked at what is there and knows that fewbit wrote it.
    """
    place = _real(path)
    for source in inputs:
        other = _real(source)
        if place == other or (other.is_dir() and other in place.parents) or place in other.parents:
            relation = "is" if place == other else "lies inside" if other in place.parents else "contains"
            raise UsageError(
                f"the output {path} {relation} the input {source}",
                code="output-in-input",
                param="output",
                expected="a path outside of the model and the data",
                hint=f"{{output={Path.cwd().name}-result}}",
            )
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        if is_file == path.is_dir():
            kind = "a folder" if path.is_dir() else "a file"
            raise UsageError(
                f"{path} is {kind}", code="output-kind", param="output",
                expected="a file" if is_file else "a folder", hint="another {output}",
            )  # fmt: skip
        if not (ours or _is_ours(path, is_file=is_file)):
            raise UsageError(
                f"{path} exists and was not written by fewbit",
                code="output-foreign",
                param="output",
                expected="a new path, or an earlier result of fewbit",
                hint="another {output}",
            )
        if not overwrite:
            raise UsageError(
                f"{path} exists", code="output-exists", param="output", expected="a new path",
                hint="{overwrite} replaces it",
            )  # fmt: skip
    parent = next(parent for parent in [path, *path.absolute().parents] if parent.exists() and parent.is_dir())
    if not os.access(parent, os.W_OK):
        raise _not_writable(parent)


def _not_writable(folder: Path) -> UsageError:
    return UsageError(
        f"{folder} cannot be written to", code="output-permission", param="output", hint="another {output}"
    )


@contextmanager
def open_output(
    path: Path,
    *,
    overwrite: bool = False,
    inputs: Iterable[Path] = (),
    is_file: bool | None = None,
    ours: bool = False,
    merge: bool = False,
) -> Iterator[Output]:
    """Write a result atomically: yields a working folder, and moves it into place if the block ends without error.

    Args as in `check_output`; without `is_file`, a path with a suffix is a file. With `merge`, the files are moved into
    a folder that is there one by one, and everything else in it stays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_output(Path(folder) / "result") as output:
    ...         _ = (output.work / "record.json").write_text("{}")
    ...     sorted(file.name for file in Path(folder).rglob("*"))
    ['record.json', 'result']
    """
    is_file = bool(path.suffix) if is_file is None else is_file
    check_output(path, overwrite=overwrite, inputs=inputs, is_file=is_file, ours=ours)
    work = path.with_name(f"{path.name}.partial")
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(work) from error
    lock = _acquire(work)
    output = Output(path, work, is_file=is_file, merge=merge)
    try:
        # Once more: another run may have finished between the first look and the lock.
        check_output(path, overwrite=overwrite, is_file=is_file, ours=ours)
        with reporting_full_disk(work):
            yield output
            _publish(output)
    except BaseException:
        if not any(entry.name != _LOCK for entry in work.iterdir()):
            shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        lock.close()


@contextmanager
def reporting_full_disk(folder: Path) -> Iterator[None]:
    """Turn "no space left" into an error that names the file and the free space."""
    try:
        yield
    except FewbitError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not (isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)):
            cause = cause.__cause__ or cause.__context__
        if cause is None and "No space left on device" not in str(error):  # libraries in Rust and C++ raise their own
            raise
        free = shutil.disk_usage(folder).free
        name = getattr(cause, "filename", None) or folder
        raise ResourceError(
            f"the disk is full: {free / 1e6:.1f} MB are free",
            code="disk-full",
            where=str(name),
            hint=f"free some space and run the same command again; finished work is kept in {folder}",
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write one file so that it is there completely or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _publish(output: Output) -> None:
    """Move finished files into place; an earlier result is there until the new one is."""
    if output.is_file:
        files = [file for file in output.work.iterdir() if file.name != _LOCK]
        for file in sorted(files, key=lambda file: file.name == output.path.name):
            os.replace(file, output.path.with_name(file.name))  # the model last: when it is there, its record is
        shutil.rmtree(output.work, ignore_errors=True)
        return
    if output.merge and output.path.exists():
        _merge(output)
        return
    # A name of its own, so that no folder of the user's is in the way.
    earlier = output.path.with_name(f".{output.path.name}.replaced-{os.getpid()}")
    if output.path.exists():
        os.replace(output.path, earlier)
    os.replace(output.work, output.path)
    (output.path / _LOCK).unlink(missing_ok=True)
    shutil.rmtree(earlier, ignore_errors=True)


def _merge(output: Output) -> None:
    """Move every file to its place in a folder that has others; refused before the first if one is in the way."""
    files = [file.relative_to(output.work) for file in sorted(output.work.rglob("*")) if file.is_file()]
    files = [file for file in files if str(file) != _LOCK]
    for file in files:
        places = [output.path / parent for parent in file.parents]
        blocking = [place for place in places if place.is_symlink() or (place.exists() and not place.is_dir())]
        if (output.path / file).is_dir():
            blocking.append(output.path / file)
        if blocking:
            raise UsageError(
                f"{blocking[0]} is in the way of {output.path / file}", code="output-foreign", param="output",
                expected="a new path, or an earlier result of fewbit", hint="another {output}",
            )  # fmt: skip
    for file in files:
        (output.path / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(output.work / file, output.path / file)
    shutil.rmtree(output.work, ignore_errors=True)


def _acquire(work: Path) -> IO[str]:
    """Lock a working folder; the lock ends with the process, however it ends."""
    file = open(work / _LOCK, "a+")  # noqa: SIM115 - held until the run ends
    try:
        import fcntl
    except ImportError:  # Windows: an open file cannot be removed, which is lock enough for one machine
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(file.fileno()).st_nlink:
            raise OSError("the run that made it has just finished")
    except OSError as error:
        file.close()
        raise UsageError(
            f"another run is writing to {work}",
            code="output-locked",
            param="output",
            expected="one run per output path",
            hint="wait for it, or choose another {output}",
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _is_ours(path: Path, *, is_file: bool) -> bool:
    if is_file:
        return path.with_name(f"{path.stem}.{RECORD}").is_file()
    return any((path / name).is_file() for name in (RECORD, COPY_RECORD))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))
