# SPDX-License-Identifier: Apache-2.0
"""The observer a scheme asks for, made and checked."""

from __future__ import annotations

from typing import Any

from fewbit.errors import UsageError, nearest
from fewbit.observers._base import RangeObserver, observer_class
from fewbit.schemes.spec import QuantizationSpec


def range_observer(spec: QuantizationSpec) -> RangeObserver:
    """A new observer for the ranges of a tensor; `min_max` where the scheme names none.

    Raises:
        UsageError: it gives no range, or has no such parameter.

    >>> range_observer(QuantizationSpec("int8", observer_cls="percentile")).name
    'percentile'
    """
    asked = spec.observer_cls or "min_max"
    given: dict[str, Any] = dict(spec.observer_parameters or {})
    make: Any = observer_class(asked)
    known = make().parameters
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UsageError(
            f"the observer {spec.observer!r} has no parameter {', '.join(map(repr, unknown))}",
            where="observer_parameters",
            expected=nearest(unknown[0], known),
        )
    observer = make(**given)
    if not isinstance(observer, RangeObserver):
        raise UsageError(
            f"the observer {spec.observer!r} says no range, so no scale follows from it",
            where="observer_cls",
            expected="min_max, moving_average, percentile, histogram, mse or entropy",
        )
    return observer
