# SPDX-License-Identifier: Apache-2.0
"""PyTorch's exporters to ONNX, and what ONNX Runtime answers with what they wrote."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewbit.sparsity.deploying.samples import Arrays, Sample, flat


class _Positional(nn.Module):
    """A module whose inputs have an order and whose outputs are tensors."""

    def __init__(self, model: nn.Module, names: Sequence[str]):
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(self.model(**dict(zip(self.names, inputs)))).values())


def export(model: nn.Module, path: Path, sample: Sample, *, free: bool, traced: bool = False) -> str:
    """Write a module as ONNX.

    Args:
        model: in eval mode, on the CPU, without gradients.
        path: a new file.
        sample: what it is called with; inputs and outputs get its names.
        free: with a batch axis of any length.
        traced: with the exporter of traces, whatever is installed.

    Returns:
        By which exporter.
    """
    names, outputs = list(sample.inputs), list(sample.outputs)
    given = tuple(torch.from_numpy(np.array(value)) for value in sample.inputs.values())
    modern = not traced and importlib.util.find_spec("onnxscript") is not None
    more: dict[str, Any] = {"external_data": False} if modern else {}
    if free and modern:
        more["dynamic_shapes"] = (tuple({0: torch.export.Dim.DYNAMIC} for _ in names),)
        given = tuple(torch.cat([each, each]) for each in given)  # a batch of one is taken for fixed
    elif free:
        more["dynamic_axes"] = {name: {0: "batch"} for name in (*names, *outputs)}
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")  # which of PyTorch's exporters is the newest is not the user's concern
        torch.onnx.export(
            _Positional(model, names), given, str(path), dynamo=modern, input_names=names, output_names=outputs,
            **more,
        )  # fmt: skip
    return f"by PyTorch's {'exporter of programs' if modern else 'exporter of traces'}"


def in_runtime(path: Path, *, free: bool) -> Callable[[Sample], Arrays]:
    """A function from a sample to what ONNX Runtime answers to it; where any size goes, to the sample twice."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]

    def answer(sample: Sample) -> Arrays:
        if free:  # twice the batch answers twice the same
            fed = {name: np.concatenate([value, value]) for name, value in sample.inputs.items()}
            size = size_of(sample)
            halves = [value[:size] if value.shape[:1] == (2 * size,) else value for value in session.run(None, fed)]
            return dict(zip(names, halves))
        return dict(zip(names, session.run(None, sample.inputs)))

    return answer


def size_of(sample: Sample) -> int:
    """How many rows a sample has."""
    return len(next(iter(sample.inputs.values())))


def batches(sample: Sample, free: bool) -> str:
    """For which batches it was written, in words."""
    return "batches of any size" if free else f"batches of {size_of(sample)}"


def reason_of(error: Exception) -> str:
    """What an exporter or a runtime raised, on a line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"


def listed(names: Sequence[str]) -> str:
    """The first few of some names.

    >>> listed(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class _quiet:
    """No log lines of the exporter's."""

    def __enter__(self) -> None:
        self._levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.ERROR)

    def __exit__(self, *error: object) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
