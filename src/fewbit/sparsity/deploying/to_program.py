# SPDX-License-Identifier: Apache-2.0
"""A module as a program that runs without the code that built it: one that shrank is of no code's build."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewbit.backends.eager.copying import copied
from fewbit.errors import DataError
from fewbit.sparsity.deploying.difference import TOLERANCE, largest_difference
from fewbit.sparsity.deploying.samples import Arrays, Sample, flat


def write_program(model: nn.Module, path: Path, samples: Sequence[Sample]) -> tuple[dict[str, float], str]:
    """Write a module as a `.pt2` file, for batches of any size if that works, and read it back.

    Args:
        model: not changed.
        path: a new file.
        samples: by which it is traced and judged.

    Returns:
        How far its answers are from the module's, and for which batches it is.

    Raises:
        DataError: PyTorch cannot write it, or it answers otherwise.
    """
    twin = copied(model).eval().cpu()
    reason = "there are no samples to trace it by"
    for free in (True, False) if samples else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what PyTorch is about to change in itself
                torch.export.save(_traced(twin, samples[0], free), path)
                program = torch.export.load(path).module()
            found = largest_difference(partial(_answers, program, free), samples)
        except Exception as error:  # whatever a model makes the exporter raise
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"
        else:
            if found["relative"] <= TOLERANCE:
                return found, "batches of any size" if free else "batches of the samples' size"
            reason = f"its answers differ by {found['relative']:.2%}"
        path.unlink(missing_ok=True)
    raise DataError(
        f"the model has other shapes than its code builds, and PyTorch cannot write it as a program: {reason}",
        code="deployment",
        expected="a module that torch.export takes",
        try_="sparsify an ONNX file of the model, or keep the module that sparsify returns without output=",
    )


def _traced(model: nn.Module, sample: Sample, free: bool) -> Any:
    shapes = {name: {0: torch.export.Dim.DYNAMIC} for name in sample.inputs} if free else None
    return torch.export.export(model, (), _tensors(sample, 2 if free else 1), dynamic_shapes=shapes, strict=False)


def _answers(program: Any, free: bool, sample: Sample) -> Arrays:
    """To a sample; where any size goes, to the sample twice, of which the first half counts."""
    size = len(next(iter(sample.inputs.values())))
    with torch.no_grad():
        outputs = flat(program(**_tensors(sample, 2 if free else 1)))
    plain = {name: value.float() if value.dtype is torch.bfloat16 else value for name, value in outputs.items()}
    return {name: np.asarray(value[:size] if free and value.ndim else value) for name, value in plain.items()}


def _tensors(sample: Sample, times: int) -> dict[str, Tensor]:
    found = {name: torch.from_numpy(np.concatenate([value] * times)) for name, value in sample.inputs.items()}
    if not sample.is_bfloat16:
        return found
    return {name: value.bfloat16() if value.is_floating_point() else value for name, value in found.items()}
