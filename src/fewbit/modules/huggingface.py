# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models: what stands beside their tensors, and an empty model of the same build."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewbit.errors import DataError, UsageError, nearest, require

# Another name could be a kernel from the hub, which would be code; so could flash attention, where it is not installed.
_IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
_KEYS = ("attn_implementation", "experts_implementation")


def is_pretrained(model: object) -> bool:
    """Whether this is a Hugging Face model; transformers is not imported to find out."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def save_files(model: Any, folder: Path) -> dict[str, Any]:
    """Write the configuration files of a model into a folder; returns what `empty_model` needs besides."""
    config = deepcopy(model.config)
    implementations = _implementations(config)
    for name in ("quantization_config", "_pre_quantization_dtype"):
        vars(config).pop(name, None)  # says how other files were to be read, not these
    config.name_or_path = ""  # a path on this machine
    config.architectures = [type(model).__name__]
    config.dtype = model.dtype
    config.save_pretrained(folder)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(folder)
    return {"class": type(model).__name__, "implementations": implementations}


def empty_model(folder: Path, facts: Mapping[str, Any]) -> nn.Module:
    """A model of the class and configuration of an export, without values.

    Only classes of the transformers library itself are made; no code comes from the folder.

    Raises:
        DataError: a configuration or a class this transformers does not have.
    """
    transformers = require("transformers", extra="hf", purpose="loading a Hugging Face model")
    found = pretrained_class(str(facts.get("class")), folder)
    try:
        config = read_config(transformers.AutoConfig, folder)
        _set_implementations(config, facts.get("implementations") or {})
        with quiet(transformers), torch.device("meta"):
            model: nn.Module = found(config)
        if (folder / "generation_config.json").is_file():
            generation = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
            model.generation_config = generation  # type: ignore[assignment]
    except Exception as error:  # whatever a configuration makes the library raise
        raise DataError(
            f"transformers cannot build the model: {type(error).__name__}: {str(error)[:300]}",
            code="model-config",
            where=folder / "config.json",
            expected=f"a configuration of {found.__name__} that transformers {transformers.__version__} reads",
            try_="load(folder, model=…) with a float model of your own",
        ) from error
    return model


def read_config(kind: Any, folder: Path) -> Any:
    """The configuration of a folder; what names code in it is left out.

    Args:
        kind: the class of the configuration, or `AutoConfig`.
        folder: where config.json is.
    """
    config = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    parts = [part for _, part in _parts(config)]
    # Looked up before one is set: setting that of an outer part sets those inside.
    named = [(part, f"_{key}", getattr(part, f"_{key}", None)) for part in parts for key in _KEYS]
    for part, key, name in named:
        wanted = name if name in _IMPLEMENTATIONS else None
        if getattr(part, key, None) != wanted:
            setattr(part, key, wanted)
    for part in parts:
        vars(part).pop("auto_map", None)  # where nobody says no, as for parts, transformers asks at the terminal
    return config


def pretrained_class(name: str, where: object) -> type[nn.Module]:
    """A model class of transformers by its name.

    Raises:
        UsageError: transformers has no such model.
    """
    transformers = require("transformers", extra="hf", purpose="a Hugging Face model")
    found = getattr(transformers, name, None) if name.isidentifier() else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        known = [each for each in dir(transformers) if each.startswith(name[:4])]
        raise UsageError(
            f"transformers {transformers.__version__} has no model class {name!r}",
            where=where,
            expected=nearest(name, known),
            try_="code of the model's own is not run; give a float model made by yours instead",
        )
    return found


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Without the library's bars and remarks: what matters of them is checked."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _implementations(config: Any) -> dict[str, dict[str, str]]:
    """Which code attention and experts run in each part of a configuration: outputs depend on it in the last bit."""
    found = {}
    for path, part in _parts(config):
        names = {key: getattr(part, f"_{key}", None) for key in _KEYS}
        found[path] = {key: name for key, name in names.items() if name in _IMPLEMENTATIONS}
    return found


def _set_implementations(config: Any, given: Mapping[str, Any]) -> None:
    for path, part in _parts(config):
        for key, name in dict(given.get(path) or {}).items():
            if key in _KEYS and name in _IMPLEMENTATIONS:
                setattr(part, f"_{key}", name)


def _parts(config: Any, path: str = "") -> list[tuple[str, Any]]:
    """A configuration and those inside it, the outer before the inner: setting an outer one sets the inner ones too.

    Found by their type: not every configuration lists what is inside it.
    """
    kind = sys.modules["transformers.configuration_utils"].PretrainedConfig
    found = [(path, config)]
    for name, value in vars(config).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for number, each in enumerate(inside):
            if isinstance(each, kind):
                own = name if each is value else f"{name}.{number}"
                found += _parts(each, f"{path}.{own}".lstrip("."))
    return found
