# SPDX-License-Identifier: Apache-2.0
"""How long a deployed ONNX file with codes takes beside the dense model as ONNX, both in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from fewbit.backends.eager.copying import copied
from fewbit.sparsity.deploying.exporting import export
from fewbit.sparsity.deploying.samples import Sample
from fewbit.sparsity.latency import latency

_SECONDS = 2.0


def onnx_latency(dense: nn.Module, path: Path, sample: Sample) -> dict[str, Any]:
    """Time a file with codes and the dense model in turns; see `latency`.

    Args:
        dense: the model in float; not changed.
        path: of the file with codes.
        sample: what both are called with.
    """
    import onnx

    plain = path.with_suffix(".dense.onnx")
    try:
        export(copied(dense).eval().cpu().requires_grad_(False), plain, sample, free=False)
        return latency(onnx.load(str(plain)), onnx.load(str(path)), sample.inputs, seconds=_SECONDS)
    finally:
        plain.unlink(missing_ok=True)
