# SPDX-License-Identifier: Apache-2.0
"""A module as an ONNX file, where PyTorch can write it and ONNX Runtime answers as the module does."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from fewbit.backends.eager.copying import copied
from fewbit.errors import FewbitError
from fewbit.modules.quantized import Quantized, is_quantized
from fewbit.sparsity.deploying.codes_to_onnx import Attempt, write_codes_onnx
from fewbit.sparsity.deploying.difference import TOLERANCE, largest_difference
from fewbit.sparsity.deploying.exporting import batches, export, in_runtime, reason_of
from fewbit.sparsity.deploying.samples import Arrays, Sample

_MOST = 1_900_000_000


def unfit(model: nn.Module, kind: str, samples: Sequence[Sample]) -> str | None:
    """Why a module is not written as ONNX; none if it may be tried."""
    if kind == "texts":
        return "language models are deployed as folders"
    if not samples:
        return "without samples the shapes of its inputs are not known"
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        return "onnx and onnxruntime are not installed: pip install 'fewbit[onnx]'"
    if _float_bytes(model) > _MOST:
        return "it has more than 1.9 GB of weights, which one file does not hold"
    return None


def _float_bytes(model: nn.Module) -> int:
    """The size of a model's weights as an exporter sees them: codes as the floats that they stand for."""
    layers = [each for each in model.modules() if isinstance(each, Quantized)]
    coded = [each for layer in layers for each in layer.coded.values()]
    floats = sum(each.nbytes for each in model.parameters())
    return floats + sum(math.prod(each.shape) * torch.float32.itemsize for each in coded)


def write_onnx(model: nn.Module, path: Path, samples: Sequence[Sample], feeds: Sequence[Arrays] = ()) -> Attempt:
    """Write a module as ONNX, with a batch axis of any length if that works, and with the codes it has.

    Args:
        model: not changed.
        path: a new file.
        samples: by which it is traced and judged.
        feeds: more inputs by name, for the ranges of what is rounded.
    """
    if any(map(is_quantized, model.modules())):
        return write_codes_onnx(model, path, samples, feeds)
    reason = ""
    for free in (True, False):
        try:
            twin = copied(model).eval().cpu().requires_grad_(False)
            how = export(twin, path, samples[0], free=free)
            found = largest_difference(in_runtime(path, free=free), samples)
        except FewbitError as error:
            reason = error.what
        except Exception as error:  # whatever a model makes the exporter or the runtime raise
            reason = reason_of(error)
        else:
            if found["relative"] <= TOLERANCE:
                return Attempt(found, f"{how}, {batches(samples[0], free)}")
            reason = f"in ONNX Runtime its answers differ by {found['relative']:.2%}"
        path.unlink(missing_ok=True)
    return Attempt(None, reason)
