# SPDX-License-Identifier: Apache-2.0
"""AMD Quark, called as its documentation does."""

from __future__ import annotations

from typing import Any

from quark.torch import ModelQuantizer
from quark.torch.quantization.config import config as q
from torch import Tensor, nn


def _int8(**more: Any) -> Any:
    fields = {"symmetric": True, "scale_type": "float", "round_method": "half_even", "is_dynamic": False}
    return q.Int8PerChannelSpec(**{"ch_axis": 0, **fields, **more})


def _int8_tensor() -> Any:
    fields = {"symmetric": True, "scale_type": "float", "round_method": "half_even", "is_dynamic": False}
    return q.Int8PerTensorSpec(observer_method="min_max", **fields)


def _fp8() -> Any:
    return q.FP8E4M3PerTensorSpec(observer_method="min_max", scale_type="float", is_dynamic=False)


def _four(kind: Any, group: int) -> Any:
    return kind(ch_axis=-1, is_dynamic=False, scale_type="float", group_size=group)


# scheme -> the weights' and the inputs' specification
SCHEMES = {
    "int8": lambda: (_int8(), None),
    "int4_g32": lambda: (_four(q.Int4PerGroupSpec, 32), None),
    "int4_g128": lambda: (_four(q.Int4PerGroupSpec, 128), None),
    "uint4_g32": lambda: (_four(q.Uint4PerGroupSpec, 32), None),
    "uint4_g128": lambda: (_four(q.Uint4PerGroupSpec, 128), None),
    "w8a8": lambda: (_int8(), _int8_tensor()),
    "w8a8_dynamic": lambda: (_int8(), _int8(ch_axis=1, is_dynamic=True)),
    "fp8": lambda: (_fp8(), _fp8()),
    "mxfp4": lambda: (q.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), q.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True)),
}


def quantize(model: nn.Module, scheme: str, batches: list[dict[str, Tensor]] | None) -> nn.Module:
    """Quantize and freeze, in place: Quark has no other way."""
    weight, inputs = SCHEMES[scheme]()
    layer = q.QLayerConfig(
        weight=weight.to_quantization_spec(), input_tensors=None if inputs is None else inputs.to_quantization_spec()
    )
    quantizer = ModelQuantizer(q.QConfig(global_quant_config=layer, exclude=["*lm_head"]))
    return quantizer.freeze(quantizer.quantize_model(model, batches))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The values its frozen layers compute with."""
    return {name: module.weight for name, module in model.named_modules() if type(module).__name__ == "QuantLinear"}
