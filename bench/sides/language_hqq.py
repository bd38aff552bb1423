# SPDX-License-Identifier: Apache-2.0
"""hqq, called as its documentation does: without data, with zero points, which it cannot do without."""

from __future__ import annotations

from typing import Any

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from hqq.models.hf.base import AutoHQQHFModel
from torch import Tensor

FORMATS = {"w4g64": (4, 64), "w4g32": (4, 32), "w3g64": (3, 64), "w2g64": (2, 64)}


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """All linear layers but the head, in place."""
    bits, group = FORMATS[format]
    config = BaseQuantizeConfig(nbits=bits, group_size=group, axis=1)
    AutoHQQHFModel.quantize_model(model, config, compute_dtype=torch.float32, device=str(model.device))
    return model


def weights(model: Any) -> dict[str, Tensor]:
    """The values its layers compute with."""
    return {f"{name}.weight": m.dequantize() for name, m in model.named_modules() if isinstance(m, HQQLinear)}
