# SPDX-License-Identifier: Apache-2.0
"""vLLM: language models on GPUs."""

from fewbit.targets._base import Target

TARGET = Target(
    "vllm",
    "vLLM",
    aliases={"int8": "w8a8_dynamic", "int4": "w4a16", "int3": "w3a16", "int2": "w2a16", "fp8": "fp8_dynamic"},
    presets=frozenset({
        "w8a8_dynamic", "w8a16", "w8a16_asym", "w4a16", "w4a16_asym", "w4a8_dynamic", "w3a16", "w2a16",
        "fp8_dynamic", "fp8_block", "fp8_a16", "nvfp4", "nvfp4_a16", "mxfp4", "mxfp4_a16",
    }),
    format="compressed_tensors",
    reads=("gptq", "awq"),
    loading="""\
from vllm import LLM

print(LLM({path}).generate("Hello")[0].outputs[0].text)
""",
)  # fmt: skip
