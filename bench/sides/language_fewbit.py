# SPDX-License-Identifier: Apache-2.0
"""fewbit, through its public API. `auto` is what it does with nothing said; any other way is an algorithm's name."""

from __future__ import annotations

import time
from functools import wraps
from typing import Any

import torch
from torch import Tensor

import fewbit
from fewbit.schemes.scope import IgnoredScope

MODES = {"w4g64": ("int4_sym", 64), "w4g32": ("int4_sym", 32), "w3g64": ("int3_sym", 64), "w2g64": ("int2_sym", 64)}
MODES |= {"mxfp4": ("mxfp4", None), "nvfp4": ("nvfp4", None)}
PRESETS = {"w8a8": "w8a8_dynamic", "fp8": "fp8_dynamic", "mxfp4_a4": "mxfp4", "nvfp4_a4": "nvfp4"}
ENDS = IgnoredScope(names=["lm_head", "model.embed_tokens"], validate=False)
AT_ONCE = {"cpu": 2, "cuda": 4}  # samples in an item; one item in five is kept aside, so there have to be some


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """The linear layers of the blocks; embedding and head stay in float, as on every side."""
    device = model.device.type
    data = [{"input_ids": batch.to(device)} for batch in tokens.split(AT_ONCE[device])]
    algorithm = None if way == "auto" else way
    if format in MODES:
        mode, group = MODES[format]
        return fewbit.compress_weights(
            model, mode=mode, group_size=group, dataset=data, subset_size=len(tokens), algorithm=algorithm,
            ignored_scope=ENDS,
        )  # fmt: skip
    config = PRESETS[format] if algorithm is None else fewbit.preset(PRESETS[format], algorithm=algorithm)
    return fewbit.quantize(model, data, preset=config, subset_size=len(tokens), ignored_scope=ENDS)


def weights(model: Any) -> dict[str, Tensor]:
    """Every parameter as the model computes with it: rotations and smoothing change norms too."""
    coded = {f"{name}.weight": m.weight for name, m in model.named_modules() if "weight" in getattr(m, "coded", {})}
    return {**{name: value for name, value in model.named_parameters() if ".layers." in name}, **coded}


def split() -> dict[str, float]:
    """From now on, seconds in sums of second moments and in solvers; what is left is forwards and all else."""
    from fewbit.engine.second_moments import Moments
    from fewbit.engine.settling import Settling

    seconds = {"moments": 0.0, "solve": 0.0}
    _timed(Moments, "add", seconds, "moments")
    _timed(Settling, "codes", seconds, "solve")
    return seconds


def _timed(owner: Any, name: str, seconds: dict[str, float], part: str) -> None:
    own = getattr(owner, name)

    @wraps(own)
    def timed(*given: Any, **named: Any) -> Any:
        start = _now()
        try:
            return own(*given, **named)
        finally:
            seconds[part] += _now() - start

    setattr(owner, name, timed)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
