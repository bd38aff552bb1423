# SPDX-License-Identifier: Apache-2.0
"""The `quantization_config` of config.json: which layers are what, in groups of one scheme each.

Readers refuse keys they do not know, so none is there but the format's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.exporters._compressed_scheme import Arguments, Scheme


def quantization_config(
    schemes: Mapping[str, Scheme], ignored: list[str], cache: Arguments | None = None
) -> dict[str, Any]:
    """What stands in config.json.

    Layers are named one by one; where all have one scheme, their class stands for them, and others of it are ignored.

    Args:
        schemes: by layer.
        ignored: modules that stay in float.
        cache: of keys and values, if they are quantized.

    >>> scheme = Scheme("pack-quantized", Arguments(4, "int", True, "channel"))
    >>> quantization_config({"a": scheme, "b": scheme}, ["lm_head"])["config_groups"]["group_0"]["targets"]
    ['Linear']
    """
    layers: dict[Scheme, list[str]] = {}
    for name, scheme in schemes.items():
        layers.setdefault(scheme, []).append(name)
    formats = list(dict.fromkeys(scheme.format for scheme in layers))
    groups = [scheme.to_dict(names if len(layers) > 1 else ["Linear"]) for scheme, names in layers.items()]
    return {
        "quant_method": "compressed-tensors",
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": ignored,
        "kv_cache_scheme": None if cache is None else cache.to_dict(),
    }


def group_for(config: Mapping[str, Any], layer: str) -> dict[str, Any] | None:
    """The group of a linear layer, as a reader finds it; none for one that is ignored or not named.

    >>> group_for({"ignore": ["b"], "config_groups": {"group_0": {"targets": ["Linear"]}}}, "a")
    {'targets': ['Linear']}
    """
    if layer in config["ignore"]:
        return None
    groups: list[dict[str, Any]] = list(config["config_groups"].values())
    exact = [group for group in groups if layer in group["targets"]]
    return next(iter(exact + [group for group in groups if "Linear" in group["targets"]]), None)
