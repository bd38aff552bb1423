# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on CPU, right on every x86 processor."""

from fewbit.targets._base import Target

TARGET = Target(
    "onnxruntime",
    "ONNX Runtime on CPU",
    aliases={"int8_wo": "w8a16", "int8_sym": "w8a16", "w8": "w8a16"},
    presets=frozenset({"w8a16"}),
)
