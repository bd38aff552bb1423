# SPDX-License-Identifier: Apache-2.0
"""Which type of ggml a tensor gets, and integers of fewbit as blocks of such a type."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fewbit.checkpoints._gguf.architecture import heads_kv
from fewbit.checkpoints._gguf.blocks import BLOCK_TYPES, FLOAT_TYPES, Blocks
from fewbit.errors import ModelError
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor

if TYPE_CHECKING:
    from torch import Tensor

_NARROW = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""For rows that are no multiple of 256; llama.cpp takes IQ4_NL instead of Q4_0."""
PRESET_TYPES = {
    "q8_0": "Q8_0", "q6_k": "Q6_K", "q5_k_m": "Q5_K", "q4_k_m": "Q4_K", "q4_k_s": "Q4_K", "q4_0": "Q4_0",
    "q4_1": "Q4_1", "q3_k_m": "Q3_K", "q2_k": "Q2_K", "fp16": "F16", "bf16": "BF16",
}  # fmt: skip
FILE_TYPES = {"": 0, "fp16": 1, "bf16": 32, "q4_k_s": 14, "q2_k": 10}
"""`general.file_type` where it does not follow from the most common type."""


def preset_type(preset: str, target: str, config: Any, *, tied: bool) -> str:
    """The type that llama.cpp's own tool gives a tensor of two axes (`llama-quant.cpp`).

    Args:
        preset: such as `q4_k_m`.
        target: name of the tensor in the file.
        config: of the model.
        tied: whether the embedding is the output layer too.
    """
    base = PRESET_TYPES[preset]
    if base in FLOAT_TYPES:
        return base
    if target == "output.weight" or (tied and target == "token_embd.weight"):
        return "Q8_0" if base == "Q8_0" else "Q6_K"
    if target == "position_embd.weight":
        return "F32"
    match = re.match(r"blk\.(\d+)\.(\w+)\.weight", target)
    if match is None:
        return base
    layer, count, own = int(match[1]), int(config.num_hidden_layers), match[2]
    more = layer < count // 8 or layer >= 7 * count // 8 or (layer - count // 8) % 3 == 2
    groups = config.num_attention_heads // heads_kv(config)
    if own == "attn_v":
        return {
            "q4_k_m": "Q6_K" if more else base, "q5_k_m": "Q6_K" if more else base,
            "q4_k_s": "Q5_K" if layer < 4 else base, "q3_k_m": "Q5_K" if layer < 2 else "Q4_K",
            "q2_k": "Q4_K" if groups >= 4 else "Q3_K",
        }.get(preset, base)  # fmt: skip
    if own == "ffn_down":
        return {
            "q4_k_m": "Q6_K" if more else base, "q5_k_m": "Q6_K" if more else base,
            "q4_k_s": "Q5_K" if layer < count // 8 else base,
            "q3_k_m": "Q5_K" if layer < count // 16 else "Q4_K" if more else base, "q2_k": "Q3_K",
        }.get(preset, base)  # fmt: skip
    if own == "attn_output":
        return {"q3_k_m": "Q4_K", "q2_k": "Q3_K"}.get(preset, base)
    if own == "attn_qkv":
        return {"q4_k_m": "Q5_K", "q5_k_m": "Q6_K", "q3_k_m": "Q4_K"}.get(preset, base)
    return base


def fit_width(name: str, columns: int) -> str:
    """The type for rows of a width: a block never crosses the end of a row.

    >>> fit_width("Q4_K", 576), fit_width("Q4_0", 40)
    ('Q5_0', 'F16')
    """
    if name in BLOCK_TYPES and columns % BLOCK_TYPES[name].block:
        name = _NARROW.get(name, name)
    return "F16" if name in BLOCK_TYPES and columns % BLOCK_TYPES[name].block else name


def type_for(grid: QuantizationGrid) -> str:
    """The smallest type that holds integers of a grid as they are.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> type_for(QuantizationGrid(Dtype.int4)), type_for(QuantizationGrid(Dtype.uint4, symmetric=False))
    ('Q4_0', 'Q4_1')
    """
    bits = 4 if grid.dtype.bits <= 4 else 5 if grid.dtype.bits == 5 else 8
    return f"Q{bits}_{int(grid.asymmetric and bits < 8)}"


def map_integers(tensor: QTensor, name: str = "") -> Blocks:
    """The blocks of 32 that hold the integers of a weight [out, in]; scales of longer groups are repeated.

    `scale (q - zero)` becomes `d q + m`. If zero lies in the upper half, 15 - q is stored with a negative scale: the
    offset then has three bits more than the scale, not four, so that it is a float16 if the scale is a bfloat16.

    Raises:
        ModelError: float16 cannot hold a scale or an offset.
    """
    import torch

    kind = BLOCK_TYPES[type_for(tensor.grid)]
    rows, columns = tensor.shape
    repeat = (columns if tensor.block[1] >= columns else tensor.block[1]) // 32

    def spread(numbers: Tensor) -> Tensor:
        return numbers.float().repeat_interleave(repeat, 1)[:, : columns // 32].reshape(-1)

    scale = spread(torch.as_tensor(tensor.qparams.scale))
    codes = torch.as_tensor(tensor.codes()).float().reshape(-1, 1, 32)
    zero = torch.zeros_like(scale) if tensor.zero_point is None else spread(torch.as_tensor(tensor.zero_point))
    if not kind.offset:
        blocks = Blocks(kind, codes - zero[:, None, None], scale.half().float())
    else:
        lowest = tensor.grid.dtype.lowest
        codes, zero = codes - lowest, zero - lowest
        mirrored = zero > kind.highest / 2
        offset = torch.where(mirrored, scale * (kind.highest - zero), -scale * zero)
        codes = torch.where(mirrored[:, None, None], kind.highest - codes, codes)
        blocks = Blocks(kind, codes, torch.where(mirrored, -scale, scale).half().float(), offset.half().float())
    outside = (blocks.codes < kind.lowest) | (blocks.codes > kind.highest)
    values: Tensor = blocks.values().reshape(rows, columns)
    if bool(outside.any()) or not torch.equal(values, torch.as_tensor(tensor.dequantize())):
        raise beyond_half(name, "a scale or offset")
    return blocks


def transpose(tensor: QTensor) -> QTensor:
    """A weight stored as [in, out], as [out, in]."""
    qparams = tensor.qparams
    grid = qparams.grid.replace(axis=0)
    zero = None if qparams.zero_point is None else qparams.zero_point.T
    turned = QParams(grid, (tensor.block[1], tensor.block[0]), qparams.scale.T.contiguous(), zero, qparams.global_scale)
    return QTensor.from_codes(tensor.codes().T.contiguous(), turned)


def beyond_half(name: str, what: str) -> ModelError:
    """The error for a number that float16 does not have."""
    return ModelError(
        f"{what} cannot be a float16, which every GGUF type has for it", code="scale-float16", where=name,
        expected="numbers that float16 has, from 6e-8 to 65504", hint="{ignore} this layer, or {preset=bf16}",
    )  # fmt: skip
