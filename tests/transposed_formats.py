# SPDX-License-Identifier: Apache-2.0
"""GPTQ and AWQ files read a second way: from the layout's description, code by code and bit by bit, in plain Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fewbit.modules.quantized import set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from own_format import raw_tensors
from quantized_models import encode

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def llama(**options: Any) -> Any:
    """A tiny Llama whose widths are multiples of 32 and differ from one another."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=160, max_position_embeddings=64, **options,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def grid(dtype: Dtype, group: int = 32, scale: ScaleType = ScaleType.float16, **options: Any) -> Grid:
    """Groups of a row, or rows."""
    kind = QSchemeType.per_group if group > 0 else QSchemeType.per_channel
    return Grid(dtype, kind, group_size=group, scale_type=scale, **options)


def quantized(model: Any, usual: Grid, others: dict[str, Grid | None] | None = None) -> Any:
    """A model whose linear layers are codes, by hand; the head is left alone unless named."""
    grids = {"lm_head": None, **(others or {})}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear | nn.Embedding):
            found = grids.get(name, usual if isinstance(module, nn.Linear) else None)
            if found is not None:
                set_weight(module, "weight", encode(module.weight, found))
    return model


def files(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder, by an own reader of safetensors."""
    return {name: t for path in folder.glob("model*.safetensors") for name, t in raw_tensors(path).items()}


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def bits_at(stream: int, index: int, bits: int) -> int:
    """The code at a place of a stream of bits that begins with the lowest."""
    return stream >> (index * bits) & ((1 << bits) - 1)


def as_stream(words: Any) -> int:
    """Words as one long number, the first the lowest."""
    return sum((int(word) & 0xFFFFFFFF) << (32 * place) for place, word in enumerate(words))


def gptq_values(tensors: dict[str, np.ndarray], layer: str, bits: int, added: int = 1) -> np.ndarray:
    """The weight `[out, in]` of a layer: scale[group, out] · (code[in, out] - zero[group, out])."""
    qweight, qzeros, scales, g_idx = (tensors[f"{layer}.{n}"] for n in ("qweight", "qzeros", "scales", "g_idx"))
    columns, out = len(g_idx), scales.shape[1]
    values = np.empty((out, columns), np.float32)
    zeros = [as_stream(row) for row in qzeros]
    for o in range(out):
        codes = as_stream(qweight[:, o])
        for i in range(columns):
            g = g_idx[i]
            values[o, i] = np.float32(scales[g, o]) * (bits_at(codes, i, bits) - bits_at(zeros[g], o, bits) - added)
    return values


def awq_values(tensors: dict[str, np.ndarray], layer: str, group: int) -> np.ndarray:
    """The weight `[out, in]` of a layer: scale[group, out] · (code[in, out] - zero[group, out])."""
    qweight, qzeros, scales = (tensors[f"{layer}.{n}"] for n in ("qweight", "qzeros", "scales"))
    columns, out = len(qweight), scales.shape[1]
    values = np.empty((out, columns), np.float32)
    for i in range(columns):
        g = i // group if group > 0 else 0
        for word in range(out // 8):
            for place, output in enumerate(AWQ_ORDER):
                o = 8 * word + output
                code, zero = (int(row[word]) >> (4 * place) & 15 for row in (qweight[i], qzeros[g]))
                values[o, i] = np.float32(scales[g, o]) * (code - zero)
    return values
