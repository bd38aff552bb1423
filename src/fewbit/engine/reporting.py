# SPDX-License-Identifier: Apache-2.0
"""What a record says of the calibration data that callers from Python must not overlook, as Python warnings."""

from __future__ import annotations

import warnings

from fewbit.data.drawing import WARNINGS
from fewbit.errors import CalibrationWarning
from fewbit.record import Record


def warn_of_calibration(record: Record) -> None:
    """Warn the caller of the public function that calls this, once for each line about the calibration data."""
    for reason in dict.fromkeys(line["reason"] for line in record.lines if line["what"] in WARNINGS):
        warnings.warn(reason, CalibrationWarning, stacklevel=3)
