# SPDX-License-Identifier: Apache-2.0
"""Names that moved: `Comparison` to `comparison.py`, `wilson_interval` to `intervals.py`."""

from fewbit.evaluation.comparison import Comparison
from fewbit.evaluation.intervals import wilson_interval

__all__ = ["Comparison", "wilson_interval"]
