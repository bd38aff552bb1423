# SPDX-License-Identifier: Apache-2.0
"""What changed from one operator set to the next, from 7 on: a few operators, each with its step.

Whatever is not listed takes its old nodes as they are; a test compares the schemas of all operators to prove it. The
version converter of onnx 1.23 is not used: it turns Resize's asymmetric grid into half-pixels, reads Hardmax's axis
wrongly, drops the names of nodes it renames, and cannot take a model above 2 GB.
"""

from __future__ import annotations

from fewbit.backends.graph import opset_inputs as inputs
from fewbit.backends.graph import opset_meanings as meanings

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

STEPS: dict[tuple[str, int], inputs.Step] = {
    ("BatchNormalization", 9): meanings.no_spatial,
    ("Upsample", 9): inputs.upsample_scales,
    ("Slice", 10): inputs.lists("starts", "ends", "axes"),
    ("TopK", 10): inputs.top_k,
    ("Upsample", 10): meanings.rename("Resize"),
    ("Clip", 11): inputs.numbers("min", "max"),
    ("Pad", 11): inputs.pad,
    ("Resize", 11): meanings.resize,
    ("Scatter", 11): meanings.rename("ScatterElements"),
    ("Dropout", 12): inputs.numbers("ratio"),
    **{(name, 13): meanings.softmax for name in ("Softmax", "LogSoftmax", "Hardmax")},
    **{(name, 13): inputs.lists("axes") for name in ("Squeeze", "Unsqueeze", "ReduceSum")},
    ("Split", 13): inputs.lists("split"),
    ("BatchNormalization", 14): meanings.batch_norm,
    ("RoiAlign", 16): meanings.roi_align,
    **{(f"Reduce{name}", 18): inputs.lists("axes") for name in _REDUCTIONS},
    ("Split", 18): meanings.split,
    ("GridSample", 20): meanings.grid_sample,
    ("DFT", 20): inputs.dft,
}
"""By operator and operator set: how a node of the set before becomes one of it, in place."""

DOUBTS: dict[tuple[str, int], meanings.Doubt] = {
    ("BatchNormalization", 9): meanings.doubt_spatial,
    ("Scan", 9): meanings.never("operator set 9 changed what Scan means"),
    ("Upsample", 11): meanings.doubt_resize,
    ("Resize", 11): meanings.doubt_resize,
    ("BatchNormalization", 14): meanings.doubt_outputs,
    ("GroupNormalization", 21): meanings.never("operator set 21 has a scale for each channel, not for each group"),
}
"""By operator, as the model has it, and operator set: why a node cannot be taken there."""
