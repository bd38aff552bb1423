# SPDX-License-Identifier: Apache-2.0
"""torchao, called as its documentation does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerGroup,
    quantize_,
)


def _intx(group: int, mapping: MappingType) -> IntxWeightOnlyConfig:
    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(group), mapping_type=mapping)


SCHEMES = {
    "int8": Int8WeightOnlyConfig,
    "int4_g32": lambda: _intx(32, MappingType.SYMMETRIC),
    "int4_g128": lambda: _intx(128, MappingType.SYMMETRIC),
    "uint4_g32": lambda: _intx(32, MappingType.ASYMMETRIC),
    "uint4_g128": lambda: _intx(128, MappingType.ASYMMETRIC),
    "w8a8_dynamic": Int8DynamicActivationInt8WeightConfig,
    "int4_kernel": lambda: PrototypeInt4WeightOnlyConfig(group_size=32),  # the only one with a CPU kernel
}


def quantize(model: nn.Module, scheme: str, batches: object = None) -> nn.Module:
    """Quantize in place; what comes out is already frozen."""
    quantize_(model, SCHEMES[scheme](), filter_fn=_chosen)
    return model


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The values its layers compute with."""
    return {
        name: module.weight.dequantize()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and _chosen(module, name)
    }


def _chosen(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and not name.endswith("lm_head")
