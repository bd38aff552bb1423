# SPDX-License-Identifier: Apache-2.0
"""AWQ checkpoints ("gemm") for vLLM, SGLang and transformers: 4-bit weights with zero points, packed along the output.

A linear layer of `in` × `out` with groups of `g` becomes

    qweight   int32    [in, out / 8]       eight codes from zero on; those of outputs 0 2 4 6 1 3 5 7 from the low end
    qzeros    int32    [in / g, out / 8]   the code of zero, in the same order
    scales    float16  [in / g, out]

and means `scales * (code - zero)`. Symmetric weights are written with the zero point 8. One group size holds for the
whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewbit.exporters._base import Destined
from fewbit.exporters._checkpoint_files import write_checkpoint
from fewbit.exporters._checkpoint_layout import Contents, Laid, Together
from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.exporters._transposed_check import Decoded, compare
from fewbit.exporters._transposed_limits import Limits, find_refusals, group_size
from fewbit.exporters._transposed_model import save_config, take_apart
from fewbit.exporters._transposed_words import from_words, half_scales, to_words, unsigned_codes, unsigned_zeros
from fewbit.exporters._unknown_tensors import KEY
from fewbit.modules.tensor_file import Entry
from fewbit.numerics.qtensor import QTensor

LIMITS = Limits(
    "awq", bits=(4,), groups=(-1, 16, 32, 64, 128), zero_points=True, one_group_size=True, skips_by_part=True
)
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def refusals(weights: Sequence[Destined]) -> list[tuple[str, str]]:
    """Every reason against writing such weights, layer by layer.

    Tables and heads are no reason: they are written as floats. Nor are bfloat16 scales: float16 has all of them from
    2^-17 to 65280, and a runtime in bfloat16 keeps them exact; `write` refuses a layer with one outside.
    """
    return find_refusals(weights, LIMITS)


def write(model: Any, folder: Path, *, shard_bytes: int = 4 << 30, tokenizer: Any = None) -> dict[str, Any]:
    """Write a Hugging Face model as `config.json` and `model.safetensors`, as an AWQ quantizer would have.

    Quantized embeddings and heads have no place in the format: they are written as floats of the model's dtype and
    named under `dequantized` in the manifest.

    Args:
        model: a quantized model, frozen or not.
        folder: an empty folder.
        shard_bytes: the most bytes of tensors in one file.
        tokenizer: a tokenizer or processor to be saved beside the model.

    Raises:
        UsageError: weights the format has no place for, every reason with its layers.
    """
    return write_checkpoint(partial(lay_out, model, folder), folder, shard_bytes, tokenizer)


def lay_out(model: Any, folder: Path, contents: Contents | None = None) -> Laid:
    """Write the configuration of a checkpoint, and say which tensors it has.

    Args:
        model: a quantized model, frozen or not.
        folder: an empty folder.
        contents: gives the values where the model has only stand-ins.

    Raises:
        UsageError: as `write`.
    """
    parts = take_apart(model, LIMITS, contents)
    size = group_size(next(iter(parts.coded.values())).grid)
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": parts.floats or None,
    }
    save_config(parts, folder, config)
    entries = [entry for name, matrix in parts.coded.items() for entry in _entries(name, matrix)]
    return Laid(entries + parts.rest, parts.to_dict())


def check(model: Any, folder: Path, manifest: Mapping[str, Any], contents: Contents | None = None) -> None:
    """Read the files back, bit by bit, and compare every code, scale and tensor with the model's own.

    Args:
        model: what was written.
        folder: where.
        manifest: of the folder.
        contents: gives the values where the model has only stand-ins: then one layer of each grid is compared, and of
            all else it is only seen whether it is there.

    Raises:
        DataError: something that differs, is missing or is too much.
    """
    parts, suffixes = take_apart(model, LIMITS, contents), ("qweight", "qzeros", "scales")
    compare(parts, folder, suffixes, _decode, sampled=contents is not None, copied=manifest.get(KEY, ()))


def _entries(name: str, matrix: Matrix) -> Iterator[Entry]:
    """The three tensors of a layer, made together."""
    out, columns = matrix.shape
    groups = columns // matrix.block[1]
    made = Together(partial(_tensors, matrix))
    for part, dtype, shape in (
        ("qweight", torch.int32, (columns, out // 8)),
        ("qzeros", torch.int32, (groups, out // 8)),
        ("scales", torch.float16, (groups, out)),
    ):
        yield Entry(f"{name}.{part}", dtype, shape, partial(made.take, part))


def _tensors(matrix: Matrix) -> dict[str, Tensor]:
    weight = matrix.read()
    return {
        "qweight": _packed(unsigned_codes(weight)),
        "qzeros": _packed(unsigned_zeros(weight)),
        "scales": half_scales(weight).T,
    }


def _packed(codes: Tensor) -> Tensor:
    """Codes or zero points `[out, n]` as `[n, out / 8]`."""
    return to_words(codes.T.reshape(codes.shape[1], -1, 8)[..., _ORDER].flatten(1), 4)


def _decode(tensors: Mapping[str, Tensor], weight: QTensor) -> Decoded:
    return _unpacked(tensors["qweight"]), _unpacked(tensors["qzeros"]), tensors["scales"].float().T


def _unpacked(words: Tensor) -> Tensor:
    """Codes `[out, n]` of words `[n, out / 8]`: nibble 0 is output 0, nibble 1 output 2 …"""
    nibbles = from_words(words, 4).T
    codes = torch.empty_like(nibbles)
    for place, output in enumerate(_ORDER):
        codes[output::8] = nibbles[place::8]
    return codes
