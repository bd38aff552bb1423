# SPDX-License-Identifier: Apache-2.0
"""onnxruntime.quantization: its preparation, then static quantization, called as its documentation does.

Models below opset 13 are converted first: scales by channel need it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

VARIANTS: dict[str, dict[str, Any]] = {
    "ort": {"per_channel": False},
    "ort_per_channel": {"per_channel": True},
    "ort_percentile": {"per_channel": True, "calibrate_method": CalibrationMethod.Percentile},
    "ort_entropy": {"per_channel": True, "calibrate_method": CalibrationMethod.Entropy},
}
OPSET = 13


class Reader(CalibrationDataReader):
    """The samples, one after the other."""

    def __init__(self, samples: list[dict[str, np.ndarray]]):
        self.left = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def quantize(variant: str, path: Path, samples: list[dict[str, np.ndarray]], out: Path) -> None:
    """From a file to a file."""
    with tempfile.TemporaryDirectory() as folder:
        converted, prepared = Path(folder) / "converted.onnx", Path(folder) / "prepared.onnx"
        model = onnx.load(path)
        if next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx")) < OPSET:
            model = version_converter.convert_version(model, OPSET)
        onnx.save(model, converted)
        prepare(converted, prepared)
        quantize_static(str(prepared), str(out), Reader(samples), quant_format=QuantFormat.QDQ, **VARIANTS[variant])


def prepare(path: Path, prepared: Path) -> None:
    """Shapes and optimizations; without symbolic shapes where finding them fails, as its messages advise."""
    for options in ({}, {"auto_merge": True}, {"skip_symbolic_shape": True}):
        try:
            return quant_pre_process(str(path), str(prepared), **options)
        except Exception as failure:
            print(f"preparing with {options} failed: {failure}")
    raise SystemExit("no way to prepare the model")
