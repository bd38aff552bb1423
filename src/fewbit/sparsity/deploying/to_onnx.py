# SPDX-License-Identifier: Apache-2.0
"""A module as an ONNX file, where PyTorch can write it and ONNX Runtime answers as the module does."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewbit.backends.eager.copying import copied
from fewbit.errors import FewbitError
from fewbit.modules.quantized import is_quantized
from fewbit.sparsity.deploying.difference import TOLERANCE, largest_difference
from fewbit.sparsity.deploying.samples import Arrays, Sample, flat

_MOST = 1_900_000_000


def unfit(model: nn.Module, kind: str, samples: Sequence[Sample]) -> str | None:
    """Why a module is not written as ONNX; none if it may be tried."""
    if kind == "texts":
        return "language models are deployed as folders"
    if not samples:
        return "without samples the shapes of its inputs are not known"
    if any(map(is_quantized, model.modules())):
        return "its weights are codes; `fewbit sparsify` of an .onnx file gives ONNX with codes"
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        return "onnx and onnxruntime are not installed: pip install 'fewbit[onnx]'"
    if sum(each.nbytes for each in model.parameters()) > _MOST:
        return "it has more than 1.9 GB of weights, which one file does not hold"
    return None


def write_onnx(model: nn.Module, path: Path, samples: Sequence[Sample]) -> tuple[dict[str, Any] | None, str]:
    """Write a module as ONNX, with a batch axis of any length if that works.

    Args:
        model: a float module; not changed.
        path: a new file.
        samples: by which it is traced and judged.

    Returns:
        How far its answers in ONNX Runtime are from the module's, none if it was not written; and how, or why not.
    """
    reason = ""
    for free in (True, False):
        try:
            how = _written(model, path, samples[0], free)
            found = largest_difference(_in_runtime(path, free), samples)
        except FewbitError as error:
            reason = error.what
        except Exception as error:  # whatever a model makes the exporter or the runtime raise
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"
        else:
            if found["relative"] <= TOLERANCE:
                return found, how + (", batches of any size" if free else f", batches of {_size(samples[0])}")
            reason = f"in ONNX Runtime its answers differ by {found['relative']:.2%}"
        path.unlink(missing_ok=True)
    return None, reason


class _Positional(nn.Module):
    """A module whose inputs have an order and whose outputs are tensors."""

    def __init__(self, model: nn.Module, names: Sequence[str]):
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(self.model(**dict(zip(self.names, inputs)))).values())


def _written(model: nn.Module, path: Path, sample: Sample, free: bool) -> str:
    twin = copied(model).eval().cpu().requires_grad_(False)
    names, outputs = list(sample.inputs), list(sample.outputs)
    given = tuple(torch.from_numpy(np.array(value)) for value in sample.inputs.values())
    modern = importlib.util.find_spec("onnxscript") is not None
    more: dict[str, Any] = {"external_data": False} if modern else {}
    if free and modern:
        more["dynamic_shapes"] = (tuple({0: torch.export.Dim.DYNAMIC} for _ in names),)
        given = tuple(torch.cat([each, each]) for each in given)  # a batch of one is taken for fixed
    elif free:
        more["dynamic_axes"] = {name: {0: "batch"} for name in (*names, *outputs)}
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")  # which of PyTorch's exporters is the newest is not the user's concern
        torch.onnx.export(
            _Positional(twin, names), given, str(path), dynamo=modern, input_names=names, output_names=outputs,
            **more,
        )  # fmt: skip
    return f"by PyTorch's {'exporter of programs' if modern else 'exporter of traces'}"


def _in_runtime(path: Path, free: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]

    def answer(sample: Sample) -> Arrays:
        if free:  # twice the batch answers twice the same
            fed = {name: np.concatenate([value, value]) for name, value in sample.inputs.items()}
            size = _size(sample)
            halves = [value[:size] if value.shape[:1] == (2 * size,) else value for value in session.run(None, fed)]
            return dict(zip(names, halves))
        return dict(zip(names, session.run(None, sample.inputs)))

    return answer


def _size(sample: Sample) -> int:
    return len(next(iter(sample.inputs.values())))


class _quiet:
    """No log lines of the exporter's."""

    def __enter__(self) -> None:
        self._levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.ERROR)

    def __exit__(self, *error: object) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
