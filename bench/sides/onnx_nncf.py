# SPDX-License-Identifier: Apache-2.0
"""NNCF, called as its documentation does. Models below opset 13 are converted first: it says so itself."""

from __future__ import annotations

from pathlib import Path

import nncf
import numpy as np
import onnx
from onnx import version_converter

VARIANTS = {"nncf": None, "nncf_transformer": nncf.ModelType.TRANSFORMER}
OPSET = 13


def quantize(variant: str, path: Path, samples: list[dict[str, np.ndarray]], out: Path) -> None:
    """From a file to a file; all samples are used."""
    model = onnx.load(path)
    if next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx")) < OPSET:
        model = version_converter.convert_version(model, OPSET)
    dataset = nncf.Dataset(samples)
    made = nncf.quantize(model, dataset, model_type=VARIANTS[variant], subset_size=len(samples))
    onnx.save(made, out)
