# SPDX-License-Identifier: Apache-2.0
"""A second reader of compressed-tensors, written from the format's description and not from our writer.

It knows only a group of config.json and the tensors of a layer, and goes bit by bit in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_ROWS = 512
"""Rows unpacked at a time: a bit takes a byte on the way."""


@dataclass(frozen=True)
class Decoded:
    """What a layer's tensors say: value = (element - zero) * step, the last two spread over the elements' blocks.

    Args:
        elements: `[out, in]`.
        steps: one a block, float64.
        zeros: one a block.
    """

    elements: NDArray[Any]
    steps: NDArray[np.float64]
    zeros: NDArray[Any]


def decode(group: Mapping[str, Any], parts: Mapping[str, Tensor]) -> Decoded:
    """Read a layer.

    Args:
        group: of config.json.
        parts: the layer's tensors, by their names in it.
    """
    arguments, format = group["weights"], group["format"]
    bits: int = arguments["num_bits"]
    scale = _numbers(parts["weight_scale"])
    zeros: NDArray[Any] = np.zeros(())
    if format == "pack-quantized":
        shape = parts["weight_shape"].tolist()
        elements = _unpack(parts["weight_packed"].numpy(), bits, shape[1])
        if not arguments["symmetric"]:
            zeros = _unpack(np.ascontiguousarray(parts["weight_zero_point"].numpy().T), bits, shape[0]).T
    elif format in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        nibbles = parts["weight_packed"].numpy()
        codes = np.stack([nibbles % 16, nibbles // 16], axis=-1).reshape(len(nibbles), -1)
        elements = np.where(codes < 8, 1, -1).astype(np.float32) * _MAGNITUDES[codes % 8]
    else:
        elements = parts["weight"].to(torch.float32).numpy()
    if arguments.get("scale_dtype") == "torch.uint8":
        scale = np.exp2(parts["weight_scale"].numpy().astype(np.float64) - 127)
    if "weight_global_scale" in parts:
        scale = scale / _numbers(parts["weight_global_scale"])
    return Decoded(elements, scale, zeros)


def _unpack(words: NDArray[np.int32], bits: int, count: int) -> NDArray[np.int16]:
    """Codes around zero, `[rows, count]`, from words `[rows, …]` of 32 bits."""
    weights = 1 << np.arange(bits, dtype=np.uint8)
    found = []
    for start in range(0, len(words), _ROWS):
        part = np.ascontiguousarray(words[start : start + _ROWS]).view(np.uint8)
        each = np.unpackbits(part, axis=1, bitorder="little")[:, : count * bits].reshape(len(part), count, bits)
        found.append((each * weights).sum(-1, dtype=np.int16) - (1 << (bits - 1)))
    return np.concatenate(found)


def _numbers(tensor: Tensor) -> NDArray[np.float64]:
    values: NDArray[np.float64] = tensor.to(torch.float64).numpy()
    return values
