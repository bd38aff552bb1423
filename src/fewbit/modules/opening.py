# SPDX-License-Identifier: Apache-2.0
"""A PyTorch model from a path: a Hugging Face folder, a program, a file of tensors with a factory, an own export."""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor, nn

from fewbit import registry
from fewbit.data.near_paths import near_paths
from fewbit.data.program import open_program
from fewbit.errors import DataError, UsageError, require
from fewbit.modules import manifest
from fewbit.modules.huggingface import pretrained_class, quiet, read_config
from fewbit.modules.lifting import lift
from fewbit.modules.loading import call_factory, load_folder
from fewbit.modules.peft_folder import refuse_adapters
from fewbit.modules.scratch import on_disk
from fewbit.modules.state_file import PICKLED, read_pickled, read_safetensors

_EXPECTED = (
    "an .onnx file, a Hugging Face folder, a .pt2 program, a .safetensors or .pt state dict with a factory, a folder "
    "fewbit exported, or file.py:function"
)


def open_model(path: str | Path, factory: Callable[[], nn.Module] | str | None = None) -> nn.Module:
    """The model at a path, in eval mode.

    Nothing is run but what the caller names: pickles in Hugging Face folders are refused, a `.pt` file is read as
    tensors only, a `.pt2` only if opening it runs nothing.

    Args:
        path: a Hugging Face folder, a `.pt2`, a state dict, a folder that `export` wrote, or `"file.py:function"`.
        factory: for a state dict, a function that returns the model, or `"file.py:function"`.

    Raises:
        UsageError: nothing there that can be opened.
        DataError: a file that is damaged, or does not fit the factory's model.
    """
    if registry.is_reference(path):
        return call_factory(str(path)).eval()
    refuse_missing(path)
    place = Path(path).expanduser()
    if place.is_dir():
        return _folder(place, factory)
    suffix = place.suffix.lower()
    if suffix == ".pt2" and factory is None:
        return lift(open_program(place)).eval()
    if suffix == ".pt2":
        return _filled(place, dict(open_program(place).state_dict), factory)
    if suffix == ".safetensors":
        return _filled(place, read_safetensors(place), factory)
    if suffix in PICKLED:
        return _filled(place, read_pickled(place), factory)
    if suffix == ".onnx":
        raise UsageError(f"{place.name!r} is an ONNX model", where=place, expected="a PyTorch model")
    hints = {
        "": "give it the ending of what it is, such as .onnx",
        ".py": f"the function in it that returns the model: '{place}:function'",
    }
    what = f"{place.name!r} is no model that can be told by its name"
    raise UsageError(what, where=place, expected=_EXPECTED, try_=hints.get(suffix))


def refuse_missing(path: str | Path) -> None:
    """Refuse a path with nothing there, and name those like it.

    Raises:
        UsageError: there is no such file or folder.
    """
    if not Path(path).expanduser().exists():
        raise UsageError(f"no file or folder {str(path)!r}", where=path, expected=_EXPECTED, try_=near_paths(path))


def _folder(folder: Path, factory: Callable[[], nn.Module] | str | None) -> nn.Module:
    if manifest.is_export(folder):
        return load_folder(folder, manifest.read(folder), factory=factory)
    if (folder / "config.json").is_file():
        return _pretrained(folder)
    refuse_adapters(folder)
    kinds = {path.suffix.lower(): str(path) for path in sorted(folder.iterdir(), reverse=True)}
    known = [".onnx", ".safetensors", ".pt2", *(() if ".onnx" in kinds else PICKLED)]  # whose weights may be a .bin
    inside = [kinds[suffix] for suffix in known if suffix in kinds]
    raise UsageError(
        f"the folder {str(folder)!r} has no config.json and no {manifest.NAME}",
        where=folder,
        expected=_EXPECTED,
        try_=f"name the file itself, such as {' or '.join(map(repr, inside))}" if inside else None,
    )


def _pretrained(folder: Path) -> nn.Module:
    """A Hugging Face model from its own files, complete or not at all."""
    transformers = require("transformers", extra="hf", purpose="opening a Hugging Face folder")
    config = _config(folder)
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(folder.glob("*.bin"))
        raise UsageError(
            f"{pickled[0].name} is a pickle, which can run code when it is opened" if pickled else "no weights here",
            where=folder,
            expected="model.safetensors, or several with an index",
            try_="save it again with model.save_pretrained(folder)" if pickled else None,
        )
    quantized = config.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise UsageError(f"the model is quantized already ({method})", where=folder, expected="a float model")
    names = config.get("architectures") or ["AutoModel"]
    found: Any = transformers.AutoModel if names == ["AutoModel"] else pretrained_class(str(names[0]), folder)
    try:
        with quiet(transformers), on_disk():
            model, info = found.from_pretrained(
                folder,
                config=read_config(getattr(found, "config_class", transformers.AutoConfig), folder),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever a damaged file or configuration makes the library raise
        raise DataError(
            f"transformers cannot open the model: {type(error).__name__}: {str(error)[:300]}",
            code="model-unreadable",
            where=folder,
            expected=f"the files of a {found.__name__}",
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise DataError(
            f"{len(missing)} weights are not in the files: {', '.join(missing[:5])}",
            code="model-incomplete",
            where=folder,
            expected=f"every weight of a {found.__name__}; transformers would go on with random ones",
        )
    opened: nn.Module = model.eval()
    return opened


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = orjson.loads((folder / "config.json").read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"config.json is not JSON: {error}", code="model-config", where=folder) from error
    if not isinstance(config, dict):
        raise DataError("config.json is not an object", code="model-config", where=folder)
    return config


def _filled(path: Path, tensors: dict[str, Tensor], factory: Callable[[], nn.Module] | str | None) -> nn.Module:
    if factory is None:
        raise UsageError(
            f"{path.name!r} holds tensors and not the code of a model",
            where=path,
            expected="a function that returns the model they belong to",
            try_="--factory file.py:function",
        )
    model = call_factory(factory)
    own = set(model.state_dict())
    if tensors and all(name.startswith("module.") for name in tensors) and not own & set(tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}  # from DataParallel
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise _misfit(path, model, str(error)) from error
    filled = _through_others(model, tensors.keys()) if missing else set()
    missing = [name for name in missing if name not in filled]
    if missing or unexpected:
        lacks = [f"no {name}" for name in missing] + [f"no place for {name}" for name in unexpected]
        raise _misfit(path, model, f"{'; '.join(lacks[:8])}{'; …' if len(lacks) > 8 else ''}")
    return model.eval()


def _through_others(model: nn.Module, given: Set[str]) -> set[str]:
    """The names whose memory is that of a tensor given whole, as tied weights have it: one name of them is enough."""
    held = model.state_dict().items()
    own = {name: tensor for name, tensor in held if isinstance(tensor, Tensor) and tensor.layout is torch.strided}
    memory = {name: (tensor.device, tensor.untyped_storage().data_ptr()) for name, tensor in own.items()}
    whole = {memory[name] for name in own.keys() & given if own[name].nbytes == own[name].untyped_storage().nbytes()}
    return {name for name, (device, start) in memory.items() if start and (device, start) in whole}


def _misfit(path: Path, model: nn.Module, why: str) -> DataError:
    return DataError(
        f"the tensors are not those of the factory's {type(model).__name__}: {why[:600]}",
        code="model-differs",
        where=path,
        expected="the same names and shapes in both; tensors that the factory ties, under any one of their names",
    )
