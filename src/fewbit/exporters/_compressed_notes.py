# SPDX-License-Identifier: Apache-2.0
"""What a user should know of a checkpoint that was written: where a reader computes otherwise than the model did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fewbit.exporters._compressed_refusals import few
from fewbit.exporters._compressed_scheme import FLOATS, MXFP4, MXFP8, NVFP4, PACKED, Scheme
from fewbit.exporters._compressed_survey import Survey
from fewbit.exporters._compressed_vllm import apart

_BF16 = "transformers decodes nvfp4, mxfp4 and mxfp8 to bfloat16: load with dtype=torch.bfloat16"


def notes(survey: Survey, schemes: Mapping[str, Scheme], beside: Mapping[str, Mapping[str, Tensor]]) -> Iterator[str]:
    """The sentences that hold for a model.

    Args:
        survey: of the model.
        schemes: what its coded layers are.
        beside: what stands beside the codes, by layer.
    """
    for name, kind in survey.dequantized.items():
        yield f"{name} is written as the floats its codes ({kind}) stand for"
    for name in survey.float_inputs:
        yield f"the input of {name}, which the model quantizes, stays in float"
    if survey.cut:
        yield f"transformers, unlike vLLM, does not find experts in float beside codes: {few(survey.cut)}"
    dtypes = {name: layer.dtype for name, layer in survey.layers.items()}
    wide = [name for name in schemes if dtypes[name] is not torch.float32 and _wide(beside[name])]
    if wide:
        yield f"scales that the model's dtype does not hold are float32, which readers may round: {few(wide)}"
    formats = {scheme.format for scheme in schemes.values()}
    if formats & {NVFP4, MXFP4, MXFP8} and set(dtypes.values()) != {torch.bfloat16}:
        yield _BF16
    if NVFP4 in formats:
        yield "nvfp4 global scales are kept as reciprocals: steps differ from the model's in the last bits of float32"
    if any(scheme.format == MXFP8 and scheme.inputs for scheme in schemes.values()):
        yield "mxfp8 inputs: transformers doubles the scale of a block whose maximum is above 1.75 powers of two"
    if any(scheme.format == PACKED and 32 % scheme.weights.num_bits for scheme in schemes.values()):
        yield "codes of 3, 5, 6 or 7 bits need compressed-tensors 0.18 or later"
    one = [name for name in schemes if schemes[name].format == FLOATS and schemes[name].weights.strategy == "tensor"]
    for family in apart({name: float(beside[name]["weight_scale"]) for name in one}):
        yield f"vLLM rounds fp8 tensors that it fuses again, to the largest of their scales: {few(family)}"
    fixed = {name: tuple(beside[name]["input_scale"].tolist()) for name in schemes if "input_scale" in beside[name]}
    for family in apart(fixed):
        yield f"vLLM takes the largest fixed input scale of layers that it fuses: {few(family)}"


def _wide(parts: Mapping[str, Tensor]) -> bool:
    kept = [parts[name].dtype for name in ("weight_scale", "input_scale") if name in parts]
    return torch.float32 in kept
