# SPDX-License-Identifier: Apache-2.0
"""No runtime in particular: every number format, in fewbit's own folder where a file format is needed."""

from fewbit.config.presets import FLOAT_PRESETS, TARGET_ALIASES
from fewbit.targets._base import Target

TARGET = Target(
    "generic",
    "any runtime",
    aliases=TARGET_ALIASES,
    presets=frozenset({
        *FLOAT_PRESETS, "w8a8", "w8a8_dynamic", "w8a8_symmetric", "w8a16", "w8a16_asym", "w4a16", "w4a16_asym",
        "w4a8_dynamic", "w3a16", "w3a16_asym", "w2a16", "w2a16_asym",
    }),
    format="safetensors",
    reads=("compressed_tensors", "gptq", "awq", "gguf"),
)  # fmt: skip
