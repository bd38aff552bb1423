# SPDX-License-Identifier: Apache-2.0
"""torchao, called as its documentation does: without data. `hqq` is its search for scales.

Its MX and NVFP4 layers want bfloat16 weights, so the layers are cast for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    PerRow,
    quantize_,
)

INTS = {"w4g64": (torch.int4, 64), "w4g32": (torch.int4, 32), "w3g64": (torch.int3, 64), "w2g64": (torch.int2, 64)}
ALGORITHMS = {"rtn": "affine", "hqq": "hqq_scale_only"}


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """In place; what comes out is already frozen."""
    if format.startswith(("mx", "nv")):
        model.to(torch.bfloat16)
    quantize_(model, _config(format, way), filter_fn=_chosen)
    return model


def weights(model: Any) -> dict[str, Tensor]:
    """The values its layers compute with."""
    layers = {name: m for name, m in model.named_modules() if _chosen(m, name)}
    return {f"{name}.weight": m.weight.dequantize() for name, m in layers.items()}


def _config(format: str, way: str) -> Any:
    if format in INTS:
        dtype, group = INTS[format]
        algorithm = ALGORITHMS[way]
        return IntxWeightOnlyConfig(dtype, PerGroup(group), intx_choose_qparams_algorithm=algorithm)
    if format == "w8a8":
        return Int8DynamicActivationInt8WeightConfig()
    if format == "fp8":
        return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    from torchao.prototype.mx_formats import inference_workflow as blocks

    if format == "nvfp4":
        return blocks.NVFP4WeightOnlyConfig()
    if format == "nvfp4_a4":
        return blocks.NVFP4DynamicActivationNVFP4WeightConfig()
    four = torch.float4_e2m1fn_x2
    return blocks.MXDynamicActivationMXWeightConfig(activation_dtype=four, weight_dtype=four)


def _chosen(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and not name.endswith("lm_head")
