# SPDX-License-Identifier: Apache-2.0
"""AMD Quark, called as its documentation does, with the algorithms' settings of its template for Llamas."""

from __future__ import annotations

from typing import Any

from quark.torch import LLMTemplate, ModelQuantizer
from quark.torch.quantization.config import config as q
from torch import Tensor

INTS = {"w4g64": (q.Int4PerGroupSpec, 64), "w4g32": (q.Int4PerGroupSpec, 32), "w3g64": (q.Int3PerGroupSpec, 64),
        "w2g64": (q.Int2PerGroupSpec, 64)}  # fmt: skip
FIELDS = {"symmetric": True, "scale_type": "float", "round_method": "half_even"}


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """All linear layers but the head, in place."""
    template = LLMTemplate.get("llama")
    weight, inputs = _specs(format)
    config = template.get_config(scheme="int4_wo_64", algorithm=None if way == "rtn" else way)
    config.global_quant_config = q.QLayerConfig(
        weight=weight.to_quantization_spec(), input_tensors=None if inputs is None else inputs.to_quantization_spec()
    )
    data = [{"input_ids": row.to(model.device)} for row in tokens.split(1)]
    quantizer = ModelQuantizer(config)
    return quantizer.freeze(quantizer.quantize_model(model, data))


def weights(model: Any) -> dict[str, Tensor]:
    """Every parameter of the blocks as it computes with them; AWQ changes norms too."""
    found = {name: value for name, value in model.named_parameters() if ".layers." in name and name.endswith(".weight")}
    layers = {name: m for name, m in model.named_modules() if hasattr(m, "get_quant_weight")}
    return {**found, **{f"{name}.weight": m.get_quant_weight(m.weight) for name, m in layers.items()}}


def _specs(format: str) -> tuple[Any, Any]:
    if format in INTS:
        kind, group = INTS[format]
        return kind(ch_axis=-1, is_dynamic=False, scale_type="float", group_size=group), None
    if format.startswith("mxfp4"):
        inputs = q.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True) if format == "mxfp4_a4" else None
        return q.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), inputs
    if format.startswith("nvfp4"):
        return _nvfp4(is_dynamic=False), _nvfp4(is_dynamic=True) if format == "nvfp4_a4" else None
    if format == "fp8":
        return q.FP8E4M3PerChannelSpec(is_dynamic=False, ch_axis=0), q.FP8E4M3PerChannelSpec(is_dynamic=True, ch_axis=1)
    inputs = q.Int8PerChannelSpec(ch_axis=1, is_dynamic=True, **FIELDS)
    return q.Int8PerChannelSpec(ch_axis=0, is_dynamic=False, **FIELDS), inputs


def _nvfp4(is_dynamic: bool) -> Any:
    four = q.FP4PerGroupSpec(ch_axis=-1, group_size=16, is_dynamic=is_dynamic, scale_type="float32")
    scales = q.FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False, scale_type="float32")
    return q.ScaleQuantSpec(first_stage=four, second_stage=scales)
