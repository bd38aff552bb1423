# SPDX-License-Identifier: Apache-2.0
"""Weight modes: what `compress_weights` makes of weights, and of those that suffer more than others."""

from __future__ import annotations

from enum import Enum
from typing import Any

from fewbit.errors import UsageError, nearest
from fewbit.schemes.config import Config
from fewbit.schemes.layer import QuantizationConfig
from fewbit.schemes.rules import element
from fewbit.schemes.spec import QuantizationSpec


class CompressWeightsMode(Enum):
    """The modes by name."""

    INT8_SYM = "int8_sym"
    INT8_ASYM = "int8_asym"
    INT4_SYM = "int4_sym"
    INT4_ASYM = "int4_asym"
    INT3_SYM = "int3_sym"
    INT2_SYM = "int2_sym"
    NF4 = "nf4"
    FP8_E4M3 = "fp8_e4m3"
    MXFP4 = "mxfp4"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


_GROUPS = {"qscheme": "per_group", "ch_axis": 0, "group_size": 128, "scale_type": "bfloat16"}
# The scale's type is said here too: what stays wide must not inherit that of the narrow mode around it.
_CHANNELS = {"qscheme": "per_channel", "ch_axis": 0, "scale_type": "float32"}

MODES: dict[str, dict[str, Any]] = {
    "int8_sym": {"dtype": "int8", "symmetric": True, **_CHANNELS},
    "int8_asym": {"dtype": "uint8", "symmetric": False, **_CHANNELS},
    "int4_sym": {"dtype": "int4", "symmetric": True, "full_range": True, **_GROUPS},
    "int4_asym": {"dtype": "uint4", "symmetric": False, **_GROUPS},
    "int3_sym": {"dtype": "int3", "symmetric": True, "full_range": True, **_GROUPS},
    "int2_sym": {"dtype": "int2", "symmetric": True, "full_range": True, **_GROUPS, "group_size": 32},
    "nf4": {"dtype": "nf4", **_GROUPS, "group_size": 64},
    "fp8_e4m3": {"dtype": "fp8_e4m3", **_CHANNELS},
    "mxfp4": {"dtype": "mxfp4"},
    "mxfp8": {"dtype": "mxfp8_e4m3"},
    "nvfp4": {"dtype": "nvfp4"},
}

# Table look-ups by the names frameworks give them; a global scheme leaves them alone.
_EMBEDDINGS = ("Embedding", "EmbeddingBag")
_NARROW = 4
"""Up to this many bits embeddings and the last layer suffer most for the least gain, and take int8_asym."""


def mode_name(mode: str | Enum) -> str:
    """A mode's name from its name in any case, or a member of `CompressWeightsMode` or of another enum like it."""
    name = str(mode.value if isinstance(mode, Enum) else mode).lower()
    name = {"int8": "int8_asym", "mxfp8_e4m3": "mxfp8"}.get(name, name)
    if name not in MODES:
        raise UsageError(f"there is no weight mode {name!r}", where="mode", expected=nearest(name, MODES))
    return name


def mode_spec(
    mode: str | Enum, *, group_size: int | None = None, algorithm: str | None = None, sensitive: bool = False
) -> QuantizationSpec:
    """The spec of a weight in a mode.

    Args:
        mode: its name or member.
        group_size: elements that share a scale, -1 for a whole row; the mode's own by default.
        algorithm: how scales are found; by default the search.
        sensitive: whether it is an embedding or the last layer.

    >>> mode_spec("int4_sym", sensitive=True).dtype.name
    'uint8'
    """
    spec = QuantizationSpec.from_dict(MODES[mode_name(mode)])
    number = element(spec.given)
    if sensitive and number is not None and number.bits <= _NARROW:
        spec, group_size = QuantizationSpec.from_dict(MODES["int8_asym"]), None
    return QuantizationSpec(group_size=group_size, algorithm=algorithm).over(spec)


def compression_config(
    mode: str | Enum,
    *,
    group_size: int | None = None,
    algorithm: str | None = None,
    all_layers: bool = False,
    last_layer: str | None = None,
) -> Config:
    """The configuration of a weight mode, embeddings included.

    Args:
        mode: its name or member.
        group_size: elements that share a scale; the mode's own by default.
        algorithm: how scales are found; by default the search.
        all_layers: give embeddings and the last layer the mode too; in modes of four bits and fewer they are
            `int8_asym` otherwise.
        last_layer: the name of the layer that gives the model's output, if there is one.

    >>> config = compression_config("int4_sym", last_layer="lm_head")
    >>> [config.resolve(n, ["Linear"]).quantization.weight.dtype.name for n in ("layers.0.fc1", "lm_head")]
    ['int4', 'uint8']
    """
    usual = QuantizationConfig(weight=mode_spec(mode, group_size=group_size, algorithm=algorithm))
    wide = mode_spec(mode, group_size=group_size, algorithm=algorithm, sensitive=not all_layers)
    kept = QuantizationConfig(weight=wide)
    by_name = {last_layer: kept} if last_layer is not None and kept != usual else {}
    return Config(usual, dict.fromkeys(_EMBEDDINGS, kept), by_name, optional=_EMBEDDINGS)
