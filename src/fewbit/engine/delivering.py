# SPDX-License-Identifier: Apache-2.0
"""`export` and `load`: a model into a folder that is whole and checked or not there at all, and back."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch

from fewbit import registry
from fewbit.engine.companions import copy_companions
from fewbit.engine.formats import format_name
from fewbit.engine.staging import made_whole, place
from fewbit.engine.unknown_tensors import copy_unknown
from fewbit.errors import DataError, UsageError, nearest
from fewbit.exporters._unknown_tensors import unknown_tensors
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
    target = place(folder)
    exporter = registry.get("exporters", format)
    _check_options(format, exporter.write, options, given=2)
    with made_whole(target, overwrite=overwrite) as staged:
        content = exporter.write(model, staged, **options)
        if options.get("tokenizer") is None:
            copy_companions(model, staged)
        record = getattr(model, "fewbit_record", None)
        content |= copy_unknown(staged, unknown_tensors(model), format_name(format), record)
        if record is not None:
            record.save(staged / "record.json")
        manifest.write(staged, format, content)
        exporter.check(model, staged, manifest.read(staged))
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
    source = place(folder)
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


def _check_device(device: Any) -> None:
    """Refuse a device that cannot be used, before anything is read."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:  # each backend has its own
        raise UsageError(
            f"nothing can be put on the device {device!r}: {str(error).splitlines()[0]}", expected="'cpu', 'cuda' …"
        ) from error


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
