# SPDX-License-Identifier: Apache-2.0
"""What a README says of an ONNX file that was made of a module with codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.sparsity.deploying.exporting import listed


def said_of_codes(facts: Mapping[str, Any]) -> str:
    """What such a file holds, and what runs.

    Args:
        facts: of the record, `deployment.onnx`.

    >>> said_of_codes({"layers": 2, "integer": {"QGemm": 2}, "floats": {}, "untrained": []})
    '`model.onnx` holds the codes of 2 layers, and ONNX Runtime multiplies them as integers (QGemm 2).'
    """
    kernels = ", ".join(f"{name} {count}" for name, count in facts["integer"].items())
    how = f"ONNX Runtime multiplies them as integers ({kernels})" if kernels else "they are multiplied as floats"
    found = f"`model.onnx` holds the codes of {facts['layers']} layers, and {how}."
    if kernels and facts["floats"]:
        found += f" As floats: {listed(list(facts['floats']))}."
    if facts["untrained"]:
        found += f" Rounded to 8 bits as it was not in training: what {listed(facts['untrained'])} gives."
    return found
