# SPDX-License-Identifier: Apache-2.0
"""llm-compressor, with the recipes of its documentation: activations of 8-bit integers are smoothed before GPTQ."""

from __future__ import annotations

from typing import Any

import torch
from compressed_tensors.offload import disable_offloading, dispatch_model
from compressed_tensors.quantization import QuantizationArgs, forward_quantize, preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from torch import Tensor
from torch.utils.data import DataLoader

INTS = {"w4g64": (4, 64), "w4g32": (4, 32), "w3g64": (3, 64), "w2g64": (2, 64)}
PRESETS = {"mxfp4": "MXFP4A16", "nvfp4": "NVFP4A16", "w8a8": "W8A8", "fp8": "FP8_DYNAMIC", "mxfp4_a4": "MXFP4",
           "nvfp4_a4": "NVFP4"}  # fmt: skip
if not torch.cuda.is_available():  # its AWQ pins memory for a GPU, and fails where there is none
    IntermediatesCache._pin_intermediate = classmethod(lambda cls, value: None)


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """All linear layers but the head, in place."""
    samples = [{"input_ids": row, "attention_mask": row.new_ones(row.shape)} for row in tokens]
    needs_data = way != "rtn" or format == "nvfp4_a4"
    dataset = DataLoader(samples, batch_size=1) if needs_data else None  # type: ignore[arg-type]
    options = {"num_calibration_samples": len(tokens), "max_seq_length": tokens.shape[1]} if needs_data else {}
    made = oneshot(model=model, recipe=_recipe(format, way), dataset=dataset, **options)
    return dispatch_model(made) if model.device.type == "cuda" else made  # it is left on the CPU otherwise


def weights(model: Any) -> dict[str, Tensor]:
    """Every parameter of the blocks as it computes with them; AWQ changes norms too."""
    with disable_offloading():
        found = {name: value for name, value in model.named_parameters() if ".layers." in name}
        for name, module in model.named_modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is not None:
                found[f"{name}.weight"] = forward_quantize(module, module.weight, "weight", scheme.weights)
    own = ("weight", "bias")  # no scales
    return {name: value for name, value in found.items() if name.rsplit(".", 1)[-1] in own}


def _recipe(format: str, way: str) -> list[Any]:
    groups = {"group_0": _scheme(format, way)}
    given = {"config_groups": groups, "ignore": ["lm_head"]}
    if way == "awq":
        return [AWQModifier(), QuantizationModifier(**given)]
    if way == "rtn":
        return [QuantizationModifier(**given)]
    smooth = [SmoothQuantModifier(smoothing_strength=0.8)] if format == "w8a8" else []
    return [*smooth, GPTQModifier(**given)]


def _scheme(format: str, way: str) -> Any:
    if format in PRESETS:
        scheme = preset_name_to_scheme(PRESETS[format], ["Linear"])
    else:
        bits, group = INTS[format]
        scheme = preset_name_to_scheme(f"W{bits}A16", ["Linear"])
        scheme.weights = QuantizationArgs(**{**scheme.weights.model_dump(), "group_size": group})
    if way == "gptq_mse":
        scheme.weights = QuantizationArgs(**{**scheme.weights.model_dump(), "observer": "memoryless_mse"})
    return scheme
