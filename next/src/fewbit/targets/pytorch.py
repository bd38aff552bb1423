# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules: everything can be computed there, with integer kernels on CPU for 8 bits and 4-bit weights."""

from fewbit.config.presets import FLOAT_PRESETS
from fewbit.targets._base import Target

_INTEGERS = [f"w{bits}a16{zero}" for bits in range(2, 9) for zero in ("", "_asym")]
_STATIC = [f"w8a8{zero}{kind}" for zero in ("", "_asym") for kind in ("", "_symmetric")]
_DYNAMIC = [f"w{bits}a{other}{zero}_dynamic" for bits in range(2, 9) for other in (8, 4) for zero in ("", "_asym")]

TARGET = Target(
    "pytorch",
    "PyTorch",
    aliases={"int8": "w8a8", "int4": "w4a16", "int3": "w3a16", "int2": "w2a16", "fp8": "fp8_dynamic"},
    presets=frozenset({*_INTEGERS, *_STATIC, *_DYNAMIC, *FLOAT_PRESETS}),
    reads=("safetensors", "compressed_tensors", "gptq", "awq", "gguf"),
    loading="""\
import fewbit

model = fewbit.load({path})
""",
)
