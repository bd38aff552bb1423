# SPDX-License-Identifier: Apache-2.0
"""A quantized model from a folder in fewbit's own format. Nothing is unpickled, and no code named in a file is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewbit import registry
from fewbit.data.randomness import Loan
from fewbit.errors import DataError, UsageError
from fewbit.modules import compact_file, huggingface
from fewbit.modules.description import Description, read_dtype, read_sides, table
from fewbit.modules.inventory import KINDS
from fewbit.modules.manifest import is_inside
from fewbit.modules.skeleton import Contents, rebuild
from fewbit.modules.tensor_file import Stored

FORMAT = "safetensors"
"""What a manifest calls this format: the name of its exporter."""


def load_folder(
    folder: Path,
    manifest: Mapping[str, Any],
    *,
    model: nn.Module | None = None,
    factory: Callable[[], nn.Module] | str | None = None,
    device: str | torch.device = "cpu",
    verify: bool = True,
) -> nn.Module:
    """The model of a folder, in eval mode; see `fewbit.load`.

    Raises:
        UsageError: an export in another format.
    """
    if manifest.get("format") != FORMAT:
        raise UsageError(
            f"the export is in the format {manifest.get('format')!r}, which is for another runtime",
            where=folder,
            expected=f"{FORMAT!r}, fewbit's own",
            try_="the folder of the float model, or an export in fewbit's own format",
        )
    contents = read_contents(folder, manifest, verify=verify)
    empty = _skeleton(folder, manifest, model, factory)
    place = torch.device(device)
    if place.type != "cpu":
        moved: dict[int, Tensor] = {}
        names = contents.tensors.items()
        tensors = {name: moved.setdefault(id(tensor), tensor.to(place)) for name, tensor in names}
        contents = Contents(contents.description, tensors, contents.kinds)
    return rebuild(empty, contents).eval()


def read_contents(folder: Path, manifest: Mapping[str, Any], *, verify: bool = True) -> Contents:
    """Everything in the files, checked: what each tensor must be follows from the manifest before one is looked at.

    Raises:
        DataError: a manifest that contradicts itself, or files that are not what it says.
    """
    description = Description.from_dict(manifest)
    stored = read_table(manifest)
    kinds = {name: entry["kind"] for name, entry in manifest["tensors"].items()}
    names = _names(stored, table(manifest, "aliases"))
    for name, part in description.parts().items():
        known = stored.get(names.get(name, ""))
        if known is None or kinds[names[name]] != "code":
            raise _fault(f"it lists no codes {name!r}", f"tensors.{name}")
        if known.dtype is not part.dtype or known.shape != tuple(part.shape):
            found, wanted = f"{known.dtype} {list(known.shape)}", f"{part.dtype} {list(part.shape)}"
            raise _fault(f"{name} is {found}, and its grid and shape ask for {wanted}", f"tensors.{name}")
    tensors = compact_file.read_files(folder, stored, verify=verify)
    every = {name: tensors[first] for name, first in names.items()}
    return Contents(description, every, {name: kinds[first] for name, first in names.items()})


def read_table(manifest: Mapping[str, Any]) -> dict[str, Stored]:
    """The manifest's table of tensors.

    Raises:
        DataError: an entry that is none.
    """
    return {name: _stored(name, entry) for name, entry in table(manifest, "tensors").items()}


def _names(stored: Mapping[str, Stored], aliases: Mapping[str, Any]) -> dict[str, str]:
    """For every name of a tensor the one it is stored under."""
    for alias, first in aliases.items():
        if not isinstance(first, str) or first not in stored or alias in stored:
            raise _fault(f"it calls {alias!r} another name of {first!r}", "aliases")
    return {**{name: name for name in stored}, **aliases}


def _stored(name: str, entry: Any) -> Stored:
    try:
        file, digest, kind = entry["file"], entry["sha256"], entry["kind"]
        if not is_inside(file) or not isinstance(digest, str) or kind not in KINDS:
            raise ValueError(f"file {file!r}, sha256 {digest!r}, kind {kind!r}")
        return Stored(file, read_dtype(entry["dtype"]), read_sides(entry["shape"]), digest)
    except (KeyError, TypeError, ValueError) as error:
        raise _fault(f"it does not describe the tensor {name!r}: {error}", f"tensors.{name}") from error


def _skeleton(
    folder: Path, manifest: Mapping[str, Any], model: nn.Module | None, factory: Callable[[], nn.Module] | str | None
) -> nn.Module:
    """A float model that may be changed."""
    if model is not None and factory is not None:
        raise UsageError("both model= and factory= were given", expected="one of the two")
    if model is not None:
        return _copy_without_values(model)
    if factory is not None:
        return call_factory(factory)
    pretrained = manifest.get("huggingface")
    if isinstance(pretrained, Mapping):
        return huggingface.empty_model(folder, pretrained)
    named = manifest.get("factory")
    raise UsageError(
        f"the folder holds a {manifest.get('class')}, and only its tensors: the code that builds it is needed",
        where=folder,
        expected="load(folder, model=…) with a float model of the same build, or factory='file.py:function'",
        try_=f"the export names factory={named!r}; give it if you trust that file" if isinstance(named, str) else None,
    )


def call_factory(factory: Callable[[], nn.Module] | str) -> nn.Module:
    """The model a function of the user's returns; the function itself, or `"file.py:function"`.

    It draws from private random numbers: the caller's are not used up, and the same weights come out each time.
    """
    if isinstance(factory, str) and not registry.is_reference(factory):
        raise UsageError(f"factory={factory!r} does not name a function", expected="'file.py:function'")
    with Loan().lend():
        made = registry.load_reference(factory)() if isinstance(factory, str) else factory()
    if not isinstance(made, nn.Module):
        raise UsageError(f"the factory returned a {type(made).__name__}", where=factory, expected="a torch.nn.Module")
    return made


def _copy_without_values(model: nn.Module) -> nn.Module:
    """A copy of the modules that shares the tensors: they will be replaced, and the caller's model stays as it is."""
    held = [*model.parameters(), *model.buffers()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own classes when it copies a program's module
            return deepcopy(model, {id(tensor): tensor for tensor in held})
    except Exception as error:  # whatever a module's attributes make a copy raise
        raise UsageError(
            f"the model cannot be copied: {type(error).__name__}: {str(error)[:200]}",
            where=type(model).__name__,
            expected="a model that copy.deepcopy takes",
            try_="factory=, a function that returns a new one",
        ) from error


def _fault(what: str, where: str) -> DataError:
    return DataError(
        f"the manifest contradicts itself: {what}",
        code="manifest",
        where=f"fewbit.json: {where}",
        expected="fewbit.json as it was exported",
    )
