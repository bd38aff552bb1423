# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors, the checkpoints of vLLM and transformers: packed integers, int8, fp8, nvfp4, mxfp4, mxfp8.

A folder is the Hugging Face checkpoint it was, with codes in the place of the weights of linear layers and a
`quantization_config` in its config.json that says what they mean. Who reads it needs compressed-tensors 0.18 for codes
of 3, 5, 6 and 7 bits (older ones laid them out otherwise), and 0.15 for all others, the oldest that transformers takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from torch import nn

from fewbit.errors import DataError, UsageError
from fewbit.exporters._base import Destined
from fewbit.exporters._checkpoint_files import add_to_config, open_files, write_checkpoint
from fewbit.exporters._checkpoint_layout import Contents, Laid
from fewbit.exporters._checkpoint_matrix import samples
from fewbit.exporters._compressed_cache import cache_scales
from fewbit.exporters._compressed_compare import differences
from fewbit.exporters._compressed_config import group_for, quantization_config
from fewbit.exporters._compressed_content import beside, entries, held_entry
from fewbit.exporters._compressed_experts import cut_stack
from fewbit.exporters._compressed_limits import is_stack
from fewbit.exporters._compressed_notes import notes
from fewbit.exporters._compressed_refusals import for_vllm, inner, refuse, weight_faults
from fewbit.exporters._compressed_scheme import scheme_for
from fewbit.exporters._compressed_sharing import shared_scales
from fewbit.exporters._compressed_survey import take_survey
from fewbit.exporters._unknown_tensors import KEY
from fewbit.modules import huggingface
from fewbit.modules.tensor_file import same_bits


def write(
    model: Any, folder: Path, *, shard_bytes: int = 4 << 30, runtime: str = "vllm", tokenizer: Any = None
) -> dict[str, Any]:
    """Write a quantized Hugging Face model as a compressed-tensors checkpoint.

    Scales are written exactly: in the dtype of the model where that holds them, else in float32. What a reader does
    otherwise than the model is among the `notes` of the manifest.

    Args:
        model: with linear layers that are codes; tables and the head are written as floats.
        folder: an empty folder.
        shard_bytes: the most bytes of tensors in one file; a larger tensor has a file of its own.
        runtime: who shall read it: `"vllm"`, whose rules then count too, or `"transformers"`, which takes more.
        tokenizer: a tokenizer or processor to be saved beside the model.

    Raises:
        UsageError: not a Hugging Face model, or layers that the format or the runtime cannot take, all of them named.
    """
    return write_checkpoint(partial(lay_out, model, folder, runtime=runtime), folder, shard_bytes, tokenizer)


def lay_out(model: Any, folder: Path, contents: Contents | None = None, *, runtime: str = "vllm") -> Laid:
    """Write the configuration of a checkpoint, and say which tensors it has.

    Args:
        model: with linear layers that are codes.
        folder: an empty folder.
        contents: gives the values where the model has only stand-ins.
        runtime: who shall read it, see `write`.

    Raises:
        UsageError: as `write`.
    """
    vllm, model = for_vllm(runtime), _pretrained(model)
    survey = take_survey(model, vllm=vllm, contents=contents)
    if not survey.layers:
        survey.faults.append((type(model).__name__, "none of its linear layers is quantized"))
    said, cache, faults = cache_scales(model, vllm=vllm)
    refuse([*survey.faults, *weight_faults(survey.weights(), survey.ignored, vllm=vllm), *faults], runtime)
    schemes = {weight.layer: scheme_for(weight) for weight in survey.weights()}
    there = survey.layers
    if contents is not None:
        survey.layers = {name: matrix.reading(contents) for name, matrix in there.items()}
    shared, faults = shared_scales(survey.layers, schemes) if vllm else ({}, [])
    refuse(faults, runtime)
    small = {name: beside(matrix, schemes[name], shared.get(name)) for name, matrix in there.items()}
    facts = huggingface.save_files(model, folder)
    # Experts come first: transformers takes the first group for theirs.
    ordered = sorted(survey.layers, key=lambda layer: not survey.layers[layer].expert)
    named = {name: schemes[layer] for layer in ordered for name in (layer, survey.layers[layer].stored)}
    untie = any(name in survey.floats for name in getattr(model, "all_tied_weights_keys", {}))
    add_to_config(folder, quantization_config(named, survey.ignored, said), untie=untie)
    config = getattr(model, "fewbit_config", None)
    content = {
        "class": type(model).__name__,
        "huggingface": facts,
        "config": None if config is None else config.to_dict(),
        "runtime": runtime,
        "notes": list(notes(survey, schemes, small)),
        "dequantized": survey.dequantized,
        "aliases": survey.tied,
    }
    return Laid(list(entries(survey, schemes, shared, small, cache)), content)


def check(model: Any, folder: Path, manifest: Mapping[str, Any], contents: Contents | None = None) -> None:
    """Read the files with another decoder and compare them with the model, code by code and tensor by tensor.

    Args:
        model: what was written.
        folder: where.
        manifest: of the folder.
        contents: gives the values where the model has only stand-ins: then one layer of each grid is compared, and of
            all others it is only seen whether they are there.

    Raises:
        DataError: a code, a scale or a tensor that is not the model's, one of the model that is not there, or one more.
    """
    model = _pretrained(model)
    survey = take_survey(model, vllm=manifest["runtime"] == "vllm", contents=contents)
    _, cache, _ = cache_scales(model, vllm=False)
    compared = survey.layers
    if contents is not None:
        compared = {name: matrix.reading(contents) for name, matrix in samples(survey.layers).items()}
    config = orjson.loads((folder / "config.json").read_bytes())["quantization_config"]
    faults = [f"{name}: config.json takes it for codes" for name in survey.ignored if group_for(config, name)]
    with open_files(folder) as files:
        left = files.names() - set(manifest.get(KEY, ()))
        for layer, matrix in survey.layers.items():
            prefix = f"{matrix.stored}."
            mine = {name for name in left if name.startswith(prefix) and name not in survey.floats}
            if layer in compared:
                parts = {name.removeprefix(prefix): files[name] for name in mine}
                group = group_for(config, layer)
                faults += [f"{layer}: {what}" for what in differences(compared[layer], group, parts)]
            elif not mine:
                faults.append(f"{layer}: it is not there")
            left -= mine
        for name, entry in (survey.floats | {name: held_entry(name, scale) for name, scale in cache.items()}).items():
            if name not in left or (contents is None and not same_bits(entry.read(), files[name])):
                faults.append(f"{name}: {'its values' if name in left else 'it is not there'}")
            left.discard(name)
    faults += [f"{name}: the model has none" for name in sorted(left)]
    if faults:
        raise DataError(
            "what was written is not what the model holds",
            code="export-differs",
            where="; ".join(faults[:5]),
            expected="every tensor of the model, code by code",
            try_="was the model changed while it was exported?",
        )


def refusals(weights: Sequence[Destined], *, runtime: str = "vllm") -> list[tuple[str, str]]:
    """Every reason against writing such weights, with its layer; tables and the head are written as floats.

    Args:
        weights: of a plan.
        runtime: who shall read it, see `write`.
    """
    vllm, found = for_vllm(runtime), inner(weights)
    coded = [weight for weight in found if weight.grid is not None and not weight.grid.dtype.is_cast]
    floats = [weight for weight in found if weight not in coded]
    alone = [(weight.layer, "a quantized input beside a weight in float") for weight in floats if weight.input]
    return alone + weight_faults(coded, [weight.layer for weight in floats], vllm=vllm)


def model_refusals(model: Any, weights: Sequence[Destined]) -> list[tuple[str, str]]:
    """Weights that are no matrices of linear layers in a checkpoint: stacks kept whole, and transposed ones.

    Raises:
        UsageError: not a Hugging Face model.
    """
    model, found = _pretrained(model), []
    modules = dict(model.named_modules())
    for weight in inner(weights):
        module = modules.get(weight.layer)
        if weight.grid is None or weight.grid.dtype.is_cast or module is None or isinstance(module, nn.Linear):
            continue
        whole = is_stack(weight) and cut_stack(model, f"{weight.layer}.{weight.tensor}", weight.shape) is None
        if whole or tuple(getattr(module, weight.tensor).shape) != weight.shape:
            kind = type(module).__name__
            found.append((weight.layer, f"{weight.tensor} of a {kind}: codes are there for linear layers only"))
    return found


def _pretrained(model: Any) -> Any:
    model = getattr(model, "_orig_mod", model)  # what torch.compile stands before
    if not huggingface.is_pretrained(model):
        raise UsageError(
            f"a {type(model).__name__} cannot be written as compressed-tensors",
            expected="a Hugging Face model: readers build it from its config.json",
            try_="export(…, format='safetensors'), which keeps any module",
        )
    return model
