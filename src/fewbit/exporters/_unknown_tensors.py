# SPDX-License-Identifier: Apache-2.0
"""Tensors of a Hugging Face folder that the model class does not know, such as layers for multi-token prediction.

transformers ignores them when it opens the folder, so the model does not hold them. They are copied from the files of
the float model, unchanged, into a file of their own next to the exported weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from fewbit.data.randomness import Loan
from fewbit.errors import FewbitError
from fewbit.modules import tensor_file
from fewbit.modules.checkpoint_files import Place, find_tensors, tensors_in
from fewbit.modules.coded import Quantized
from fewbit.modules.huggingface import is_pretrained
from fewbit.modules.tensor_file import Entry

CHECKPOINTS = ("compressed_tensors", "gptq", "awq", "huggingface")
"""Formats whose weights are `model*.safetensors`, with an index if there are several."""
KEY = "copied_tensors"
"""What a manifest lists their names under."""
_IN_CHECKPOINT, _IN_OWN = "model-extra.safetensors", "extra.safetensors"
_INDEX = "model.safetensors.index.json"
_BYTES = 16 << 20
"""Of a tensor that is copied, at a time."""


def unknown_tensors(model: Any) -> dict[str, Place]:
    """The tensors in the folder a model was loaded from that its class has no place for.

    Args:
        model: of any kind; only a Hugging Face model that was loaded from a local folder has such a folder.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    home = Path(model.name_or_path) if is_pretrained(model) and model.name_or_path else None
    if home is None or not home.is_dir():
        return {}
    if (home / _IN_OWN).is_file() and not (home / "model.safetensors").is_file():
        return tensors_in(home / _IN_OWN)  # an export in fewbit's own format, which has found them already
    try:
        tensors = find_tensors(home)
    except FewbitError:  # no safetensors there, or no longer
        return {}
    known = _known_names(model)
    renamed = _renaming(model, known)
    return {name: place for name, place in tensors.items() if name not in known and renamed(name) not in known}


def copy_tensors(folder: Path, places: Mapping[str, Place], format: str) -> str | None:
    """Copy tensors into an export; returns the name of their file, or `None` for a format that has no place for them.

    Args:
        folder: of the export, with its other weights in it.
        places: what to copy; there is at least one.
        format: of the export.
    """
    name = _IN_CHECKPOINT if format in CHECKPOINTS else _IN_OWN if format == "safetensors" else None
    if name is None:
        return None
    entries = [Entry(key, p.dtype, p.shape, partial(_whole, p), partial(_pieces, p)) for key, p in places.items()]
    tensor_file.write(folder / name, entries, format="pt", hashed=False)
    if format in CHECKPOINTS:
        _add_to_index(folder, name, entries)
        _keep_float(folder, [each.name.removesuffix(".weight") for each in entries if each.name.endswith(".weight")])
    return name


def _keep_float(folder: Path, layers: list[str]) -> None:
    """Tell readers, where the configuration speaks of quantized layers, that these are not among them."""
    path = folder / "config.json"
    content = orjson.loads(path.read_bytes())
    how = content.get("quantization_config") or {}
    if how.get("quant_method") == "compressed-tensors":
        how["ignore"] = [*(how.get("ignore") or []), *layers]
    elif how.get("quant_method") == "gptq":
        how["dynamic"] = {**(how.get("dynamic") or {}), **{f"-:^{re.escape(layer)}$": {} for layer in layers}}
    elif how.get("quant_method") == "awq":
        how["modules_to_not_convert"] = [*(how.get("modules_to_not_convert") or []), *layers]
    else:
        return
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _add_to_index(folder: Path, name: str, entries: list[Entry]) -> None:
    """List the file in the index, by which vLLM and others find it; a checkpoint of one file gets an index."""
    path, alone = folder / _INDEX, folder / "model.safetensors"
    if path.is_file():
        index = orjson.loads(path.read_bytes())
    else:
        inside = tensors_in(alone)
        size = sum(each.row_bytes * (each.shape[0] if each.shape else 1) for each in inside.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(inside, alone.name)}
    index["metadata"]["total_size"] = index["metadata"].get("total_size", 0) + sum(each.nbytes for each in entries)
    index["weight_map"] = dict(sorted((index["weight_map"] | {each.name: name for each in entries}).items()))
    path.write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2))


def _known_names(model: Any) -> set[str]:
    """Every name a state dict of the float model has; what fewbit replaced in the model is known by a new one."""
    found = set()
    for path, module in model.named_modules(remove_duplicate=False):
        fleeting: set[str] = getattr(module, "_non_persistent_buffers_set", set())
        names = [*module._parameters, *(name for name in module._buffers if name not in fleeting)]
        names += module.coded if isinstance(module, Quantized) else []
        found |= {f"{path}.{name}".lstrip(".") for name in names}
    try:
        with Loan().lend(), torch.device("meta"):
            found |= set(type(model)(model.config).state_dict())
    except Exception:  # a class of the user's may need more than its configuration
        return found
    return found


def _renaming(model: Any, known: set[str]) -> Any:
    """What transformers calls a tensor of the files in the model."""
    prefix = getattr(model, "base_model_prefix", "") or None
    there = dict.fromkeys(known, True)
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:  # before transformers 5 only the prefix of the base model, and old names of norms, differ
        return partial(_renamed_before, prefix, known)
    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    return lambda name: rename_source_key(name, renamings, converters, prefix, there)[0]


def _renamed_before(prefix: str | None, known: set[str], name: str) -> str:
    name = re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name))
    if prefix is not None and f"{prefix}.{name}" in known:
        return f"{prefix}.{name}"
    return name.removeprefix(f"{prefix}.") if name not in known else name


def _whole(place: Place) -> Tensor:
    return torch.cat(list(_pieces(place))).reshape(place.shape)


def _pieces(place: Place) -> Iterator[Tensor]:
    if not place.shape:
        yield replace(place, shape=(1,)).rows(0, 1)
        return
    step = max(_BYTES // max(place.row_bytes, 1), 1)
    for start in range(0, place.shape[0], step):
        yield place.rows(start, min(start + step, place.shape[0]))
