# SPDX-License-Identifier: Apache-2.0
"""What the processor's int8 kernels compute: tests must pass with and without VNNI."""

from __future__ import annotations

import pytest

from fewbit.backends.graph.processor import saturates

__all__ = ["exact_sums", "saturates"]


def exact_sums(test):
    """Skip a test that needs the exact sums of integer kernels where they saturate."""
    reason = "needs exact u8·s8 sums; on this processor (no VNNI) ONNX Runtime adds pairs of products with saturation"
    return pytest.mark.skipif(bool(saturates()), reason=reason)(test)
