# SPDX-License-Identifier: Apache-2.0
"""The tensors of a file, by name: `.safetensors`, or what `torch.save` made of a state dict. Nothing else is opened."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from fewbit.errors import DataError, require

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
"""How the names of `torch.save` files end."""

_WRAPPED_IN = ("state_dict", "model_state_dict", "model")
_STATE_DICT = "a state dict; other pickles can run code and are not opened"
_SAVE = "safetensors.torch.save_model(model, path), or torch.save(model.state_dict(), path)"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file.

    Raises:
        DataError: a damaged file.
    """
    library = require("safetensors.torch", extra="torch", purpose="reading a .safetensors file")
    try:
        tensors: dict[str, Tensor] = library.load_file(path)
    except Exception as error:  # whatever a damaged file makes the library raise
        raise _unreadable(path, f"it is damaged, or no .safetensors file ({_first_line(error)})") from error
    return tensors


def read_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a `torch.save` file, read by torch's restricted reader, which makes nothing but tensors.

    Raises:
        DataError: a damaged file, a TorchScript program, a pickle of anything but tensors.
    """
    if _is_torchscript(path):
        raise _unreadable(
            path,
            "it is a TorchScript program",
            expected="a state dict with a factory, or a .pt2 program",
            try_="torch.save(torch.jit.load(path).state_dict(), 'weights.pt') and the factory of the model, "
            "or torch.export.save(torch.export.export(model, example_inputs), 'model.pt2')",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch warns of makes it raise too
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        # The text is torch's advice on how to open the file all the same; of it only the name is worth passing on.
        named = re.search(r"GLOBAL (\S+)", str(error))
        objects = f"a pickle of Python objects, such as {named[1]}" if named else "not a pickle of tensors alone"
        raise _unreadable(path, f"it is {objects}") from error
    except Exception as error:  # whatever a damaged file makes torch raise
        raise _unreadable(path, f"it is damaged, or not of torch.save ({_first_line(error)})") from error
    for key in _WRAPPED_IN:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise DataError(
            f"the file holds a {type(content).__name__}",
            code="model-unreadable",
            where=path,
            expected="a state dict: tensors by name, as model.state_dict() gives them",
        )
    return dict(content)


def _is_torchscript(path: Path) -> bool:
    """Whether a file is what `torch.jit.save` writes: an archive with the constants of its code."""
    try:
        with ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (BadZipFile, OSError):  # some other kind of file
        return False


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": \n").splitlines()[0][:200]


def _unreadable(path: Path, why: str, *, expected: str = _STATE_DICT, try_: str = _SAVE) -> DataError:
    return DataError(
        f"the file cannot be read as tensors: {why}",
        code="model-unreadable",
        where=path,
        expected=expected,
        try_=try_,
    )
