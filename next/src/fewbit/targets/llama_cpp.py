# SPDX-License-Identifier: Apache-2.0
"""llama.cpp: language models in GGUF files, on CPUs and GPUs."""

from fewbit.config.presets import GGUF_PRESETS
from fewbit.targets._base import Target

TARGET = Target(
    "llama_cpp",
    "llama.cpp",
    aliases={"int8": "q8_0", "int4": "q4_k_m", "int3": "q3_k_m", "int2": "q2_k"},
    presets=frozenset({*GGUF_PRESETS, "fp16", "bf16", "w8a16", "w4a16", "w4a16_asym", "w3a16", "w2a16"}),
    format="gguf",
    loading="""\
from llama_cpp import Llama

print(Llama({path})("Hello")["choices"][0]["text"])
""",
)
