# SPDX-License-Identifier: Apache-2.0
"""The three ways to a sparse model."""

from __future__ import annotations

from typing import Any

from fewbit.errors import nearest
from fewbit.schemes.faults import Fault

MODES = ("one-shot", "training-aware", "sparse-transfer")
"""After training, from a few samples; in training; from a model that is sparse already, on other data."""

TRAINED = ("training-aware", "sparse-transfer")
"""The modes that train."""


def fault_of_mode(mode: Any) -> list[Fault]:
    """What is wrong with the name of a mode.

    >>> str(fault_of_mode("oneshot")[0]).splitlines()[0]
    "mode: there is no mode 'oneshot'"
    """
    if mode in MODES:
        return []
    return [Fault("mode", f"there is no mode {mode!r}", nearest(str(mode).replace("_", "-"), MODES))]
