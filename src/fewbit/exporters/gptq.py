# SPDX-License-Identifier: Apache-2.0
"""GPTQ checkpoints for vLLM, SGLang, GPTQModel and transformers: symmetric integer weights packed along the input.

A linear layer of `in` × `out` with groups of `g` becomes

    qweight   int32    [in · bits / 32, out]    codes from zero on, the first input in the lowest bits
    qzeros    int32    [in / g, out · bits / 32]    the code of zero, less one in the first version of the format
    scales    float16  [in / g, out]
    g_idx     int32    [in]    the group of each input: in order, since none was moved

and means `scales[g_idx] * (code - zero)`. 4 and 8 bits run in vLLM (groups of 32, 64, 128 or a row), 2 and 3 in
GPTQModel. Layers with other bits or groups than most are listed under `dynamic`, which transformers does not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewbit.errors import UsageError, nearest
from fewbit.exporters._base import Destined
from fewbit.exporters._checkpoint_files import write_checkpoint
from fewbit.exporters._checkpoint_layout import Contents, Laid, Together
from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.exporters._transposed_check import Decoded, compare
from fewbit.exporters._transposed_limits import Limits, find_refusals, group_size
from fewbit.exporters._transposed_model import Parts, save_config, take_apart
from fewbit.exporters._transposed_words import from_words, half_scales, to_words, unsigned_codes, unsigned_zeros
from fewbit.exporters._unknown_tensors import KEY
from fewbit.modules.tensor_file import Entry
from fewbit.numerics.qtensor import QTensor
from fewbit.record import versions

LIMITS = Limits(
    "gptq",
    bits=(2, 3, 4, 8),
    groups=(-1, 16, 32, 64, 128, 256, 512, 1024),
    zero_points=False,
    one_group_size=False,
    skips_by_part=False,
)
_LESS = {"gptq": 1, "gptq_v2": 0}
"""What the versions of the format take from a zero point before it is packed."""


def refusals(weights: Sequence[Destined]) -> list[tuple[str, str]]:
    """Every reason against writing such weights, layer by layer.

    Tables and heads are no reason: they are written as floats. Nor are bfloat16 scales: float16 has all of them from
    2^-17 to 65280, and a runtime in bfloat16 keeps them exact; `write` refuses a layer with one outside.
    """
    return find_refusals(weights, LIMITS)


def write(
    model: Any, folder: Path, *, checkpoint_format: str = "gptq", shard_bytes: int = 4 << 30, tokenizer: Any = None
) -> dict[str, Any]:
    """Write a Hugging Face model as `config.json` and `model.safetensors`, as a GPTQ quantizer would have.

    Quantized embeddings and heads have no place in the format: they are written as floats of the model's dtype and
    named under `dequantized` in the manifest.

    Args:
        model: a quantized model, frozen or not.
        folder: an empty folder.
        checkpoint_format: `gptq`, which every runtime reads, or `gptq_v2`.
        shard_bytes: the most bytes of tensors in one file.
        tokenizer: a tokenizer or processor to be saved beside the model.

    Raises:
        UsageError: weights the format has no place for, every reason with its layers.
    """
    lay = partial(lay_out, model, folder, checkpoint_format=checkpoint_format)
    return write_checkpoint(lay, folder, shard_bytes, tokenizer)


def lay_out(model: Any, folder: Path, contents: Contents | None = None, *, checkpoint_format: str = "gptq") -> Laid:
    """Write the configuration of a checkpoint, and say which tensors it has.

    Args:
        model: a quantized model, frozen or not.
        folder: an empty folder.
        contents: gives the values where the model has only stand-ins.
        checkpoint_format: see `write`.

    Raises:
        UsageError: as `write`.
    """
    if checkpoint_format not in _LESS:
        raise UsageError(f"checkpoint_format={checkpoint_format!r}", expected=nearest(str(checkpoint_format), _LESS))
    parts = take_apart(model, LIMITS, contents)
    save_config(parts, folder, _config(parts, checkpoint_format))
    less = _LESS[checkpoint_format]
    entries = [entry for name, matrix in parts.coded.items() for entry in _entries(name, matrix, less)]
    return Laid(entries + parts.rest, {**parts.to_dict(), "checkpoint_format": checkpoint_format})


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
    less = _LESS[manifest["checkpoint_format"]]
    parts, suffixes = take_apart(model, LIMITS, contents), ("qweight", "qzeros", "scales", "g_idx")
    compare(parts, folder, suffixes, partial(_decode, less), sampled=contents is not None, copied=manifest.get(KEY, ()))


def _entries(name: str, matrix: Matrix, less: int) -> Iterator[Entry]:
    """The four tensors of a layer, made together."""
    (out, columns), bits = matrix.shape, matrix.grid.dtype.bits
    groups = columns // matrix.block[1]
    made = Together(partial(_tensors, matrix, less))
    for part, dtype, shape in (
        ("qweight", torch.int32, (columns * bits // 32, out)),
        ("qzeros", torch.int32, (groups, out * bits // 32)),
        ("scales", torch.float16, (groups, out)),
        ("g_idx", torch.int32, (columns,)),
    ):
        yield Entry(f"{name}.{part}", dtype, shape, partial(made.take, part))


def _tensors(matrix: Matrix, less: int) -> dict[str, Tensor]:
    weight, bits = matrix.read(), matrix.grid.dtype.bits
    return {
        "qweight": to_words(unsigned_codes(weight), bits).T,
        "qzeros": to_words(unsigned_zeros(weight).T - less, bits),
        "scales": half_scales(weight).T,
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // weight.block[1],
    }


def _decode(less: int, tensors: Mapping[str, Tensor], weight: QTensor) -> Decoded:
    bits, groups = weight.grid.dtype.bits, len(tensors["scales"])
    zeros = from_words(tensors["qzeros"], bits) + less
    # Each input has the scale of its group, whatever the order: so many inputs in a row, as many for every group.
    in_order = torch.arange(groups, dtype=torch.int32).repeat_interleave(len(tensors["g_idx"]) // groups)
    codes = from_words(tensors["qweight"].T, bits) if torch.equal(tensors["g_idx"], in_order) else torch.empty(0)
    return codes, zeros.T, tensors["scales"].float().T


def _config(parts: Parts, checkpoint_format: str) -> dict[str, Any]:
    kinds = {name: (matrix.grid.dtype.bits, group_size(matrix.grid)) for name, matrix in parts.coded.items()}
    (bits, size), _ = Counter(kinds.values()).most_common(1)[0]
    dynamic: dict[str, dict[str, int]] = {f"-:^{re.escape(name)}$": {} for name in parts.floats}
    for name, kind in kinds.items():
        if kind != (bits, size):
            dynamic[f"+:^{re.escape(name)}$"] = {"bits": kind[0], "group_size": kind[1]}
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
        "checkpoint_format": checkpoint_format,
        "pack_dtype": "int32",
        "dynamic": dynamic,
        "modules_in_block_to_quantize": [list(parts.coded)],
        "meta": {"quantizer": [f"fewbit:{versions()['fewbit']}"]},
    }
