# SPDX-License-Identifier: Apache-2.0
"""`export` and `load`: a model into a folder that is whole and checked or not there at all, and back."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.errors import DataError, UsageError, nearest
from fewbit.modules import manifest
from fewbit.modules.opening import open_model
from fewbit.schemes.config import Config


def export(
    model: Any, folder: str | Path, *, format: str = "safetensors", overwrite: bool = False, **options: Any
) -> Path:
    """Write a model into a folder, read it back and compare it bit by bit.

    Files are made in a folder beside and moved when all is well, so an interrupted export leaves nothing. A folder with
    files in it is refused; with `overwrite` the files that an earlier export wrote are replaced, and no others.

    Args:
        model: what `quantize`, `compress_weights` or `ModelQuantizer` returned, frozen or not.
        folder: a new or empty folder.
        format: a member of `fewbit list exporters`; `safetensors` is fewbit's own and lossless.
        overwrite: replace an earlier export.
        options: the format's own: `shard_bytes`, `factory`, `tokenizer` for `safetensors`.

    Returns:
        The folder.

    Raises:
        UsageError: a folder that is in use, a format or option that does not exist, a model that cannot be written.
        DataError: what was written could not be read back.
    """
    target = Path(folder).expanduser()
    exporter = registry.get("exporters", format)
    _check_options(format, exporter.write, options, given=2)
    check_target(target, overwrite=overwrite)
    with _beside(target) as staged:
        content = exporter.write(model, staged, **options)
        record = getattr(model, "fewbit_record", None)
        if record is not None:
            record.save(staged / "record.json")
        manifest.write(staged, format, content)
        exporter.check(model, staged, manifest.read(staged))
        check_target(target, overwrite=overwrite)  # an hour may have passed
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
        UsageError: no export there, or a model is needed to build it.
        DataError: files that are damaged or not of one export, with file and tensor.
    """
    source = Path(folder).expanduser()
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


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse a place that an export would have to take from the user, before the work is done.

    Raises:
        UsageError: a file, a folder with files of the user's, files of an earlier export that were changed since.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{str(target)!r} is a file", where=target, expected="a new or empty folder")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise UsageError(
            f"the folder {str(target)!r} is not empty",
            where=target,
            expected="a new or empty folder",
            try_="another one" + (", or overwrite=True (--overwrite)" if manifest.is_export(target) else ""),
        )
    changed = [name for name, known in _earlier(target).items() if known != manifest.hash_file(target / name)]
    if changed:
        raise UsageError(
            f"files of an earlier export were changed since: {', '.join(changed[:5])}",
            where=target,
            expected="files that only fewbit wrote",
            try_="move them away, or export to another folder",
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
def _beside(target: Path) -> Iterator[Path]:
    """A new folder on the same disk, gone afterwards unless it was moved."""
    parent = target.absolute().parent
    made = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    staged = parent / f".{target.name}.{secrets.token_hex(4)}"
    staged.mkdir()
    try:
        yield staged
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
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
