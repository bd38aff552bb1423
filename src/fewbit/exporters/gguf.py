# SPDX-License-Identifier: Apache-2.0
"""One `.gguf` file for llama.cpp: codes as they are where a block type holds them, or the nearest blocks of a type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fewbit.errors import DataError, UsageError, require
from fewbit.exporters import _gguf_tokenizer
from fewbit.exporters._base import Destined
from fewbit.exporters._gguf_architecture import architecture
from fewbit.exporters._gguf_hyperparameters import describe, rope_factors
from fewbit.exporters._gguf_packing import is_same, misfits, pack, type_of
from fewbit.exporters._gguf_tensors import Held, held
from fewbit.exporters._gguf_types import BLOCKS, FILE_TYPES, type_name
from fewbit.modules.huggingface import is_pretrained

_FACTORS = "rope_freqs.weight"


def write(
    model: Any,
    folder: Path,
    *,
    name: str = "model",
    type: str | None = None,
    embedding_type: str | None = None,
    importance: Mapping[str, Tensor] | None = None,
    tokenizer: Any = None,
    pre_tokenizer: str | None = None,
) -> dict[str, Any]:
    """Write a causal language model of Hugging Face, quantized or not, as one file.

    Without `type`, codes are kept: int4 becomes Q4_0 and uint4 Q4_1, bit by bit where float16 holds the scales (every
    bfloat16 scale of usual size), 5 bits Q5_0 and Q5_1, int8 Q8_0. Asymmetric 8-bit codes come as near as Q8_0 can.
    Weights in float stay what they are.

    Args:
        model: the model.
        folder: an empty folder.
        name: the file's, without `.gguf`.
        type: a type for the weights of all layers, such as `Q4_K`; each gets the blocks with the least squared error.
            Rows that are not a multiple of 256 take Q5_0, Q5_1, Q8_0 in the place of Q4_K, Q5_K, Q6_K.
        embedding_type: the same for embeddings and the head; with a block type for the layers Q8_0 by default.
        importance: E[x²] of each input of a layer, `[in]`, by the layer's name; all count the same without.
        tokenizer: a tokenizer or its folder; by default what lies where the model was loaded from; `False` for none.
        pre_tokenizer: llama.cpp's name for how the tokenizer cuts text, if it is not recognised.

    Raises:
        UsageError: a model llama.cpp has no architecture for, weights no type holds, a tokenizer it does not have.
    """
    gguf = require("gguf", extra="gguf", purpose="a GGUF file")
    if Path(name).name != name:
        raise UsageError(f"name={name!r}", expected="the name of a file, without a folder")
    wanted = type and type_name(type, "type")
    tables = embedding_type and type_name(embedding_type, "embedding_type")
    tables = tables or ("Q8_0" if wanted in BLOCKS else wanted)
    model = _model(model)
    known = architecture(model)
    tensors, again = held(model, known)
    _refuse(tensors, wanted, importance or {})
    plan = {each.target: type_of(each, wanted, tables) for each in tensors}
    factors = rope_factors(model.config)
    with closing(gguf.GGUFWriter(folder / f"{name}.gguf", known.name)) as writer:
        _general(writer, model, plan, tensors)
        notes = describe(writer, model.config, known)
        with _gguf_tokenizer.tokenizer_folder(model, tokenizer) as place:
            if place is None:
                writer.add_tokenizer_model("none")
            else:
                notes += _gguf_tokenizer.describe(writer, place, model.config, pre_tokenizer)
        _announce(writer, plan, tensors, factors)
        entries = {}
        for each in tensors:  # one resident at a time
            packed, facts = pack(each, plan[each.target], (importance or {}).get(each.layer))
            writer.write_tensor_data(packed)
            entries[each.name] = {"name": each.target, "type": plan[each.target], **facts}
    return {"file": f"{name}.gguf", "architecture": known.name, "tensors": entries, "tied": again, "notes": notes}


def check(model: Any, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Read the file with the gguf library, decode every tensor with its decoder and compare it with the model's.

    Raises:
        DataError: values that differ where they should be the same, or by more than was said, or are missing.
    """
    gguf = require("gguf", extra="gguf", purpose="a GGUF file")
    model = _model(model)
    known = architecture(model)
    reader = gguf.GGUFReader(folder / manifest["file"])
    found = {each.name: each for each in reader.tensors}
    tensors, again = held(model, known)
    faults = [] if again == manifest["tied"] else ["tied tensors"]
    factors = rope_factors(model.config)
    if factors is not None and not is_same(found.pop(_FACTORS, None), factors):
        faults.append(_FACTORS)
    for each in tensors:
        noted = manifest["tensors"].get(each.name, {})
        limits = {"exact": noted.get("exact", True), "error": noted.get("error", 0.0)}
        if not is_same(found.pop(each.target, None), each.values(), **limits):
            faults.append(each.name)
    faults += [f"{name}, which is not the model's" for name in found]
    if reader.get_field("general.architecture").contents() != known.name:
        faults.append("general.architecture")
    listed = reader.get_field("tokenizer.ggml.tokens")
    if listed is not None and len(listed.data) != model.config.vocab_size:
        faults.append("tokenizer.ggml.tokens")
    if faults:
        raise DataError(
            "what was written is not what the model holds",
            code="export-differs",
            where=", ".join(faults[:5]),
            expected="every tensor of the model, exact types bit by bit, the others as near as was noted",
            try_="was the model changed while it was exported?",
        )


def refusals(weights: Sequence[Destined], *, type: str | None = None) -> list[tuple[str, str]]:
    """Everything that speaks against writing such weights, as pairs of layer and reason.

    Args:
        weights: the plan's.
        type: the type all layers shall have; codes are then only a source of values.
    """
    taken = [(each.layer, each.input.dtype.name) for each in weights if each.input is not None]
    inputs = [(layer, f"its input becomes {name}; GGUF keeps weights alone") for layer, name in taken]
    return inputs + ([] if type is not None else misfits(weights))


def model_refusals(model: Any, weights: Sequence[Destined]) -> list[tuple[str, str]]:
    """Nothing about single weights; a model that llama.cpp does not compute is refused.

    Raises:
        UsageError: an architecture that is not known, or a configuration that llama.cpp computes differently.
    """
    architecture(_model(model))
    return []


def _model(model: Any) -> Any:
    model = getattr(model, "_orig_mod", model)  # what torch.compile stands before
    if not is_pretrained(model):
        raise UsageError(
            f"a {model.__class__.__name__} cannot be written as GGUF",
            expected="a causal language model of transformers",
        )
    return model


def _refuse(tensors: Sequence[Held], wanted: str | None, importance: Mapping[str, Tensor]) -> None:
    found = refusals([each.destined() for each in tensors], type=wanted)
    widths = {each.layer: each.shape[-1] for each in tensors if len(each.shape) == 2}
    found += [(layer, "importance for a layer there is not") for layer in importance if layer not in widths]
    for layer, h in importance.items():
        if layer in widths and tuple(h.shape) != (widths[layer],):
            found.append((layer, f"importance of shape {list(h.shape)}, not [{widths[layer]}]"))
    if found:
        raise UsageError(
            "GGUF cannot hold the model: " + "; ".join(dict.fromkeys(reason for _, reason in found)),
            where=", ".join(dict.fromkeys(layer for layer, _ in found)),
            expected="integer codes of up to 8 bits in groups of a multiple of 32, inputs in float",
            try_="compress_weights(mode='int4_sym', group_size=32), or type='Q4_K' for blocks found anew",
        )


def _announce(writer: Any, plan: Mapping[str, str], tensors: Sequence[Held], factors: Tensor | None) -> None:
    """Write everything before the tensors: what they are called, their shapes, types and sizes."""
    gguf = require("gguf", extra="gguf", purpose="a GGUF file")
    if factors is not None:
        writer.add_tensor_info(_FACTORS, factors.shape, np.dtype(np.float32), factors.nbytes)
    for each in tensors:
        kind = gguf.GGMLQuantizationType[plan[each.target]]
        elements, width = gguf.GGML_QUANT_SIZES[kind]
        size = prod(each.shape) // elements * width
        writer.add_tensor_info(each.target, each.shape, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors.numpy())


def _general(writer: Any, model: Any, plan: Mapping[str, str], tensors: Sequence[Held]) -> None:
    """What stands at the head of a file."""
    sizes: Counter[str] = Counter()
    for each in tensors:
        sizes[plan[each.target]] += prod(each.shape)
    writer.add_type("model")
    # Not the class's name: llama.cpp looks for certain tokens in a model that is called phi3.
    writer.add_name(Path(str(model.name_or_path)).name or "model")
    writer.add_file_type(FILE_TYPES[sizes.most_common(1)[0][0]])
    writer.add_quantization_version(2)
