# SPDX-License-Identifier: Apache-2.0
"""Block formats: names that stand for an element type, a group and a type of scale at once."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.scales import ScaleType


@dataclass(frozen=True)
class BlockFormat:
    """What a format's name says: elements in groups along a row, each group with one scale."""

    element: Dtype
    group_size: int
    scale_type: ScaleType


_E8M0, _E4M3 = ScaleType.float8_e8m0fnu, ScaleType.float8_e4m3fn

FORMATS = {
    # OCP Microscaling Formats (MX) v1.0, table 1.
    "mxfp4": BlockFormat(Dtype.fp4, 32, _E8M0),
    "mxfp6_e2m3": BlockFormat(Dtype.fp6_e2m3, 32, _E8M0),
    "mxfp6_e3m2": BlockFormat(Dtype.fp6_e3m2, 32, _E8M0),
    "mxfp8_e4m3": BlockFormat(Dtype.fp8_e4m3, 32, _E8M0),
    "mxfp8_e5m2": BlockFormat(Dtype.fp8_e5m2, 32, _E8M0),
    "mxint8": BlockFormat(Dtype.int8, 32, _E8M0),
    "nvfp4": BlockFormat(Dtype.fp4, 16, _E4M3),
    # Eight values share an exponent, each keeps sign and seven bits. The rounding of the maximum that `even` does is
    # the same as stepping the exponent up when an element would round to 128.
    "bfp16": BlockFormat(Dtype.int8, 8, _E8M0),
}

# The MX format of an element type.
MX = {FORMATS[name].element: name for name in FORMATS if name.startswith("mx")}
