# SPDX-License-Identifier: Apache-2.0
"""Presets: whole configurations by name, as plain data.

The names say weights and activations: w4a16 has weights of four bits and leaves activations in the model's own type.
Scales of narrow groups are bfloat16: half the bytes of float32, no range lost, and every such number is a float32 too
(and, at the size weights have, a float16), so whatever a runtime keeps scales in takes them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.errors import UsageError, nearest
from fewbit.schemes.config import Config
from fewbit.schemes.faults import no_field, refuse
from fewbit.schemes.fields import READERS
from fewbit.schemes.layer import SLOTS
from fewbit.schemes.spec import QuantizationSpec

_INT8 = {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True}
_INT8_TOKEN = {"dtype": "int8", "qscheme": "per_token", "symmetric": True, "is_dynamic": True}
_GROUPS = {"qscheme": "per_group", "ch_axis": 0, "group_size": 128, "scale_type": "bfloat16"}
_FP8_TENSOR = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
_FP8_CHANNEL = {"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0}


def _both(dtype: str) -> dict[str, Any]:
    """A block format for weights, and in each call for activations."""
    return {"weight": {"dtype": dtype}, "input_tensors": {"dtype": dtype, "is_dynamic": True}}


# name -> a sentence and the specs of the global configuration
PRESETS: dict[str, dict[str, Any]] = {
    "w8a8": {
        "about": "int8 throughout, ranges of activations from calibration data",
        "weight": _INT8,
        "input_tensors": {"dtype": "int8", "qscheme": "per_tensor", "symmetric": False, "is_dynamic": False},
    },
    "w8a8_dynamic": {
        "about": "int8 throughout, activations scaled token by token in each call; no data needed",
        "weight": _INT8,
        "input_tensors": _INT8_TOKEN,
    },
    "w8a16": {"about": "int8 weights, one scale an output", "weight": _INT8},
    "w4a16": {
        "about": "int4 weights in groups of 128, the size every int4 kernel takes: 4.125 bits a weight (32 costs 4.5)",
        "weight": {"dtype": "int4", "symmetric": True, **_GROUPS},
    },
    "w4a16_asym": {
        "about": "uint4 weights with zero points in groups of 128",
        "weight": {"dtype": "uint4", "symmetric": False, **_GROUPS},
    },
    "w4a8_dynamic": {
        "about": "int4 weights in groups of 128, int8 activations scaled token by token",
        "weight": {"dtype": "int4", "symmetric": True, **_GROUPS},
        "input_tensors": _INT8_TOKEN,
    },
    "w3a16": {
        "about": "int3 weights in groups of 128, all eight codes in use",
        "weight": {"dtype": "int3", "symmetric": True, "full_range": True, **_GROUPS},
    },
    "w2a16": {
        "about": "int2 weights, all four codes in use; so few codes need groups as small as 32",
        "weight": {"dtype": "int2", "symmetric": True, "full_range": True, **_GROUPS, "group_size": 32},
    },
    "fp8": {
        "about": "fp8 e4m3 throughout, one scale a tensor, ranges of activations from calibration data",
        "weight": _FP8_TENSOR,
        "input_tensors": _FP8_TENSOR,
    },
    "fp8_dynamic": {
        "about": "fp8 e4m3 throughout, one scale an output and a token; no data needed",
        "weight": _FP8_CHANNEL,
        "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_token", "is_dynamic": True},
    },
    "fp8_block": {
        "about": "fp8 e4m3 weights in blocks of 128 × 128, activations in groups of 128 along each token",
        "weight": {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]},
        "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 128, "is_dynamic": True},
    },
    "fp8_a16": {"about": "fp8 e4m3 weights, one scale an output", "weight": _FP8_CHANNEL},
    "fp6": {
        "about": "fp6 e3m2 weights, one scale an output",
        "weight": {"dtype": "fp6_e3m2", "qscheme": "per_channel", "ch_axis": 0},
    },
    "mxfp4": {"about": "OCP MXFP4 throughout: groups of 32 with a power of two", **_both("mxfp4")},
    "mxfp4_a16": {"about": "OCP MXFP4 weights", "weight": {"dtype": "mxfp4"}},
    "mxfp6": {"about": "OCP MXFP6 throughout, e2m3 elements", **_both("mxfp6_e2m3")},
    "mxfp6_e3m2": {"about": "OCP MXFP6 throughout, e3m2 elements", **_both("mxfp6_e3m2")},
    "mxfp8": {"about": "OCP MXFP8 throughout, e4m3 elements", **_both("mxfp8_e4m3")},
    "mxfp8_e5m2": {"about": "OCP MXFP8 throughout, e5m2 elements", **_both("mxfp8_e5m2")},
    "mxint8": {"about": "OCP MXINT8 throughout", **_both("mxint8")},
    "nvfp4": {"about": "NVFP4 throughout: fp4 in groups of 16 with e4m3 scales under one float32", **_both("nvfp4")},
    "nvfp4_a16": {"about": "NVFP4 weights", "weight": {"dtype": "nvfp4"}},
    "bfp16": {"about": "block floating point throughout: eight values share an exponent", **_both("bfp16")},
    "nf4": {
        "about": "the sixteen quantiles of QLoRA for weights, in groups of 64 as there",
        "weight": {"dtype": "nf4", **_GROUPS, "group_size": 64},
    },
    "bf16": {"about": "weights as bfloat16, a plain cast", "weight": {"dtype": "bfloat16"}},
    "fp16": {"about": "weights as float16, a plain cast", "weight": {"dtype": "float16"}},
}

_CONFIG_FIELDS = (
    "layer_type_quant_config",
    "layer_quant_config",
    "exclude",
    "kv_cache_quant_config",
    "kv_cache_post_rope",
    "algo_config",
    "min_kv_scale",
    "optional",
)


def preset_names() -> list[str]:
    """Every preset's name, in the order of the table."""
    return list(PRESETS)


def preset(name: str, **changes: Any) -> Config:
    """The configuration a name stands for.

    Args:
        name: one of those that `fewbit list presets` shows.
        changes: fields of the weight's spec (`group_size=64`); `weight`, `input_tensors`, `output_tensors` or `bias`
            with the fields to change, or `"float"`; or fields of `Config` (`exclude=["lm_head"]`).

    Raises:
        UsageError: no such preset or field.

    >>> preset("w4a16", group_size=64, exclude=["lm_head"]).global_quant_config.weight.group_size
    64
    """
    if name not in PRESETS:
        raise UsageError(
            f"there is no preset {name!r}",
            where="preset",
            expected=nearest(str(name), PRESETS),
            try_="`fewbit list presets`",
        )
    known = [*READERS, *SLOTS, *_CONFIG_FIELDS]
    path = f'preset("{name}")'
    refuse([no_field(path, n, known) for n in changes if n not in known], path)
    slots = {slot: PRESETS[name].get(slot) for slot in SLOTS}
    for slot in SLOTS:
        slots[slot] = _changed(slots[slot], changes.get(slot))
    slots["weight"] = _changed(slots["weight"], {n: v for n, v in changes.items() if n in READERS} or None)
    return Config(slots, **{n: v for n, v in changes.items() if n in _CONFIG_FIELDS})


def _changed(before: Mapping[str, Any] | QuantizationSpec | None, change: Any) -> Any:
    """A slot with some fields changed, by the rules of inheritance."""
    if isinstance(change, Mapping):
        change = QuantizationSpec.from_dict(change)
    if before is not None and isinstance(change, QuantizationSpec):
        return change.over(before if isinstance(before, QuantizationSpec) else QuantizationSpec.from_dict(before))
    return before if change is None else change
