# SPDX-License-Identifier: Apache-2.0
"""fewbit, through its public API. Scales are float32 like the peers', so that all sides keep the same bits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fewbit.engine.quantizer import ModelQuantizer
from fewbit.schemes.config import Config

_INT8 = {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True}
_TOKEN = {"dtype": "int8", "qscheme": "per_token", "symmetric": True, "is_dynamic": True}
_TENSOR = {"qscheme": "per_tensor", "symmetric": True, "is_dynamic": False}


def _four(dtype: str, group: int) -> dict[str, Any]:
    symmetric = not dtype.startswith("u")
    return {"dtype": dtype, "qscheme": "per_group", "ch_axis": 0, "group_size": group, "symmetric": symmetric}


# scheme -> the weights' and the inputs' specification
SCHEMES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "int8": (_INT8, None),
    "int4_g32": (_four("int4", 32), None),
    "int4_g128": (_four("int4", 128), None),
    "uint4_g32": (_four("uint4", 32), None),
    "uint4_g128": (_four("uint4", 128), None),
    "w8a8": (_INT8, {"dtype": "int8", **_TENSOR}),
    "w8a8_dynamic": (_INT8, _TOKEN),
    "fp8": ({"dtype": "fp8_e4m3", **_TENSOR}, {"dtype": "fp8_e4m3", **_TENSOR}),
    "mxfp4": ({"dtype": "mxfp4"}, {"dtype": "mxfp4", "is_dynamic": True}),
    "int4_kernel": (_four("uint4", 32), None),
}


def quantize(
    model: nn.Module,
    scheme: str,
    batches: list[dict[str, Tensor]] | None,
    *,
    algorithm: str | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Quantize and freeze; by default as users get it: scales searched for, the caller's model left alone.

    What `quantize_model` returned is nobody's but ours, so `freeze` may change it.
    """
    quantizer = ModelQuantizer(config(model, scheme, algorithm))
    return quantizer.freeze(quantizer.quantize_model(model, batches, inplace=inplace), inplace=True)


def config(model: nn.Module, scheme: str, algorithm: str | None) -> Config:
    """All linear layers but the head, as on every side."""
    weight, inputs = SCHEMES[scheme]
    weight = weight if algorithm is None else {**weight, "algorithm": algorithm}
    layer = {"weight": weight, "input_tensors": inputs}
    return Config(layer_type_quant_config={nn.Linear: layer}, exclude=[_HEAD] if hasattr(model, _HEAD) else [])


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The values its frozen layers compute with."""
    return {name: module.weight for name, module in model.named_modules() if "weight" in getattr(module, "coded", {})}


_HEAD = "lm_head"
