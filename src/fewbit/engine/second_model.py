# SPDX-License-Identifier: Apache-2.0
"""The compressed one of two models, from wherever it lies, as whoever runs it opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from torch import nn

from fewbit import registry
from fewbit.engine.delivering import load
from fewbit.engine.delivery import record_of
from fewbit.engine.run import view_of
from fewbit.errors import DataError, FewbitError, require
from fewbit.model.view import ModelView
from fewbit.modules import manifest
from fewbit.modules.huggingface import pretrained_class, quiet, read_config
from fewbit.record import Record


def open_second(model: Any, original: ModelView) -> ModelView:
    """The view of a model.

    Args:
        model: what `view_of` takes; also a folder of `export` (one that lacks the code is built like the original), and
            a Hugging Face folder of a quantized model, which transformers opens.
        original: what it was made from.

    Raises:
        UsageError: nothing there that can be opened.
        DataError: files that are damaged, or that transformers does not open.
    """
    folder = _folder(model)
    if folder is None:
        return view_of(model)
    if manifest.is_export(folder):
        content = manifest.read(folder)
        own = hasattr(registry.get("exporters", str(content.get("format"))), "read")
        if own or not _is_quantized(folder):
            built = original.signature()
            like = built if isinstance(built, nn.Module) and "huggingface" not in content else None
            return view_of(load(folder, like))
    return view_of(_by_transformers(folder) if _is_quantized(folder) else model)


def record_of_model(model: Any) -> Record | None:
    """The record of the run that made a model, where it came along: with a module, in its folder, beside its file."""
    if not isinstance(model, str | Path):
        kept = getattr(model, "fewbit_record", None)
        return kept if isinstance(kept, Record) else None
    place = Path(model).expanduser()
    path = place / "record.json" if place.is_dir() else record_of(place)
    try:
        return Record.from_json(path.read_bytes())
    except (OSError, FewbitError):
        return None


def _folder(model: Any) -> Path | None:
    if not isinstance(model, str | Path) or registry.is_reference(model):
        return None
    place = Path(model).expanduser()
    return place if place.is_dir() else None


def _is_quantized(folder: Path) -> bool:
    """Whether a Hugging Face folder says that its weights are codes."""
    try:
        config = orjson.loads((folder / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return isinstance(config, dict) and bool(config.get("quantization_config"))


def _by_transformers(folder: Path) -> nn.Module:
    transformers = require("transformers", extra="hf", purpose="opening a quantized Hugging Face folder")
    names = orjson.loads((folder / "config.json").read_bytes()).get("architectures") or ["AutoModel"]
    found: Any = transformers.AutoModel if names == ["AutoModel"] else pretrained_class(str(names[0]), folder)
    try:
        with quiet(transformers):
            model = found.from_pretrained(
                folder,
                config=read_config(getattr(found, "config_class", transformers.AutoConfig), folder),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except Exception as error:  # whatever a format, or a library that it needs, makes transformers raise
        raise DataError(
            f"transformers cannot open the model: {type(error).__name__}: {str(error)[:300]}",
            code="model-unreadable",
            where=folder,
            expected="a format that transformers runs here, with the library for it installed",
            try_="fewbit's own export of the same model, or the module itself in Python",
        ) from error
    opened: nn.Module = model.eval()
    return opened
