# SPDX-License-Identifier: Apache-2.0
"""auto-round, called as its documentation does. A way is the number of its steps.

`v2` is its SignRoundV2, 200 steps. It compiles by default, which `_eager` leaves out: on a CPU it may not pay.
"""

from __future__ import annotations

from typing import Any

from auto_round import AutoRound
from torch import Tensor, nn
from transformers import AutoTokenizer

INTS = {"w4g64": (4, 64), "w4g32": (4, 32), "w3g64": (3, 64), "w2g64": (2, 64)}
SCHEMES: dict[str, dict[str, Any]] = {
    **{name: {"scheme": f"W{bits}A16", "group_size": group, "sym": True} for name, (bits, group) in INTS.items()},
    "mxfp4": {"scheme": {"bits": 4, "group_size": 32, "data_type": "mx_fp", "act_bits": 16}},
    "nvfp4": {"scheme": {"bits": 4, "group_size": 16, "data_type": "nv_fp", "act_bits": 16}},
    "w8a8": {"scheme": "INT8"},
    "fp8": {"scheme": "W8A16", "data_type": "fp", "act_data_type": "fp", "act_bits": 8, "group_size": -1,
            "act_group_size": -1, "act_dynamic": True},
    "mxfp4_a4": {"scheme": "MXFP4"},
    "nvfp4_a4": {"scheme": "NVFP4"},
}  # fmt: skip


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """All layers of the blocks, with its defaults: it tunes in bfloat16. What it made is judged in float32."""
    steps, _, eager = way.partition("_")
    options = {"iters": 200, "enable_alg_ext": True} if steps == "v2" else {"iters": int(steps)}
    rounder = AutoRound(
        model,
        AutoTokenizer.from_pretrained(folder),
        **SCHEMES[format],
        **options,
        enable_torch_compile=False if eager else None,
        dataset=list(tokens.split(1)),
        nsamples=len(tokens),
        seqlen=tokens.shape[1],
        device_map=str(model.device),
    )
    made, _ = rounder.quantize()
    return made.float()


def weights(model: Any) -> dict[str, Tensor]:
    """The values its layers compute with."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and not name.endswith("lm_head")}
    return {f"{name}.weight": m.weight for name, m in layers.items()}
