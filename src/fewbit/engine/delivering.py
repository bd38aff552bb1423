# SPDX-License-Identifier: Apache-2.0
"""`export` and `load`: a model into a folder that is whole and checked or not there at all, and back."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch

from fewbit import registry
from fewbit.engine.companions import copy_companions
from fewbit.errors import DataError, UsageError, nearest
from fewbit.modules import manifest
from fewbit.modules.opening import open_model
from fewbit.schemes.config import Config


def export(
    model: Any, folder: str | Path, *, format: str = "safetensors", overwrite: bool = False, **options: Any
) -> Path:
    """Write a model into a folder, read it back and compare it bit by bit.

    Files are made in a hidden folder and moved when all is well, so an interrupted export leaves nothing. A folder with
    files in it is refused; with `overwrite` the files that an earlier export wrote are replaced, and no others. Where a
    Hugging Face model was loaded from a folder, the files of its tokenizer and processor are copied from there.

    Args:
        model: what `quantize`, `compress_weights` or `ModelQuantizer` returned, frozen or not.
        folder: a new or empty folder.
        format: a member of `fewbit list exporters`; `safetensors` is fewbit's own and lossless.
        overwrite: replace an earlier export.
        options: the format's own: `shard_bytes`, `factory`, `tokenizer` (saved instead of what lies beside the model)
            for `safetensors`.

    Returns:
        The folder.

    Raises:
        UsageError: a folder that is in use or may not be written to, a format or option that does not exist, a model
            that cannot be written.
        DataError: what was written could not be read back.
    """
    target = _place(folder)
    exporter = registry.get("exporters", format)
    _check_options(format, exporter.write, options, given=2)
    check_target(target, overwrite=overwrite)
    with _staged(target) as staged:
        content = exporter.write(model, staged, **options)
        if options.get("tokenizer") is None:
            copy_companions(model, staged)
        record = getattr(model, "fewbit_record", None)
        if record is not None:
            record.save(staged / "record.json")
        manifest.write(staged, format, content)
        exporter.check(model, staged, manifest.read(staged))
        check_target(target, overwrite=overwrite, staged=staged)  # an hour may have passed
        _move(staged, target)
    return target


def load(
    folder: str | Path,
    model: Any = None,
    *,
    factory: Callable[[], Any] | str | None = None,
    device: Any = "cpu",
    freeze: bool = False,
    verify: bool = True,
) -> Any:
    """The quantized model of a folder, in eval mode; its forward gives what the exported one's gave, bit by bit.

    Nothing is unpickled, and no code that a file names is run. Tensors are mapped from the files, so memory is taken as
    they are used.

    Args:
        folder: what `export` wrote.
        model: a float model of the same build, or the path of one; its values are not used, and it is not changed.
            Hugging Face models need none: they are built from their configuration.
        factory: a function that returns such a model, or `"file.py:function"`, instead of `model`.
        device: where the tensors go.
        freeze: choose fast kernels at once, as `ModelQuantizer.freeze` does.
        verify: compare every tensor with its hash; without, only names, dtypes and shapes are held to the manifest.

    Raises:
        UsageError: no export there, a device that is not, or a model is needed to build it.
        DataError: files that are damaged or not of one export, with file and tensor.
    """
    source = _place(folder)
    _check_device(device)
    content = manifest.read(source)
    exporter = registry.get("exporters", str(content.get("format")))
    if not hasattr(exporter, "read"):
        raise UsageError(f"fewbit does not load the format {content['format']!r}; its runtime does", where=source)
    if isinstance(model, str | Path):
        model = open_model(model)
    loaded = exporter.read(source, content, model=model, factory=factory, device=device, verify=verify)
    if content.get("config") is not None:
        loaded.fewbit_config = _config(content["config"], source)
    if freeze:
        from fewbit.modules.freezing import freeze as freeze_modules

        freeze_modules(loaded)
    return loaded


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
    target = _place(target)
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


def _place(folder: str | Path) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # the home of a user there is not
        raise UsageError(f"{str(folder)!r}: {error}", expected="a path") from error


def _check_device(device: Any) -> None:
    """Refuse a device that cannot be used, before anything is read."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:  # each backend has its own
        raise UsageError(
            f"nothing can be put on the device {device!r}: {str(error).splitlines()[0]}", expected="'cpu', 'cuda' …"
        ) from error


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


def _check_options(format: str, function: Callable[..., Any], options: dict[str, Any], *, given: int) -> None:
    parameters = list(signature(function).parameters.values())[given:]
    known = [parameter.name for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]
    for name in options:
        if name not in known and len(known) == len(parameters):
            raise UsageError(f"the format {format!r} has no option {name!r}", expected=nearest(name, known))


def _config(content: Any, source: Path) -> Config:
    try:
        return Config.from_dict(content)
    except Exception as error:
        raise DataError(
            f"the configuration in the manifest cannot be read: {str(error)[:200]}",
            code="manifest",
            where=source / manifest.NAME,
        ) from error
