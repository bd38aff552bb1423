# SPDX-License-Identifier: Apache-2.0
"""Scales of a quantized cache of keys and values, as compressed-tensors keeps them: one number each a layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fewbit.exporters._compressed_codes import held
from fewbit.exporters._compressed_scheme import Arguments
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.kv_cache import cache_layers
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype

_EIGHT = {Dtype.fp8_e4m3: "float", Dtype.int8: "int"}


def cache_scales(model: Any, *, vllm: bool) -> tuple[Arguments | None, dict[str, Tensor], list[tuple[str, str]]]:
    """What is written of a cache.

    Args:
        model: with or without a quantized cache.
        vllm: whether vLLM's rules count: it has fp8 only.

    Returns:
        What config.json says (nothing for a cache in float), the tensors, and what speaks against writing them.
    """
    if not hasattr(model, "fewbit_cache"):
        return None, {}, []
    scales: dict[str, Tensor] = {}
    kinds: set[Dtype] = set()
    faults = []
    layers = cache_layers(model)
    for index, name in layers.items():
        pair = dict(model.fewbit_cache.items()).get(str(index))
        for letter, codec in (("k", getattr(pair, "key", None)), ("v", getattr(pair, "value", None))):
            quantizer = None if codec is None else codec.quantizer
            if quantizer is None or not _fits(quantizer, vllm=vllm):
                wanted = "fp8 e4m3" if vllm else "fp8 e4m3 or int8"
                faults.append((name, f"{letter}: a cache is {wanted}, symmetric, with one fixed scale, in every layer"))
            else:
                kinds.add(quantizer.grid.dtype)
                scales[f"{name}.{letter}_scale"] = held(quantizer.scale.reshape(1), model.dtype)
    if len(kinds) > 1:
        faults.append(("the cache", "fp8 beside int8: all layers have one type"))
    said = None if faults else Arguments(8, _EIGHT[kinds.pop()], symmetric=True, strategy="tensor")
    return said, scales, faults


def _fits(quantizer: ActivationQuantizer, *, vllm: bool) -> bool:
    grid = quantizer.grid
    known = grid.dtype is Dtype.fp8_e4m3 or (grid.dtype is Dtype.int8 and not vllm)
    return known and not grid.asymmetric and not quantizer.dynamic and grid.granularity is QSchemeType.per_tensor
