# SPDX-License-Identifier: Apache-2.0
"""The observer a scheme asks for, made and checked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fewbit.errors import UsageError, nearest
from fewbit.observers._base import RangeObserver, observer_class, range_observers
from fewbit.schemes.spec import QuantizationSpec


def range_observer(spec: QuantizationSpec, where: str | None = None) -> RangeObserver:
    """A new observer for the ranges of a tensor; `min_max` where the scheme names none.

    Args:
        spec: names the observer and its parameters.
        where: the tensor, as messages call it.

    Raises:
        UsageError: it gives no range, has no such parameter, or a parameter cannot have this value.

    >>> range_observer(QuantizationSpec("int8", observer_cls="percentile")).name
    'percentile'
    """
    asked = spec.observer or "min_max"
    given: dict[str, Any] = dict(spec.observer_parameters or {})
    make: Any = observer_class(spec.observer_cls or "min_max")
    if not issubclass(make, RangeObserver):
        raise UsageError(
            f"the observer {asked!r} says no range, so no scale follows from it",
            where=_at(where, "observer_cls"),
            expected=f"one of {', '.join(range_observers())}",
        )
    known = [each.name for each in fields(make) if each.init]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UsageError(
            f"the observer {asked!r} has no parameter {', '.join(map(repr, unknown))}",
            where=_at(where, "observer_parameters"),
            expected=nearest(unknown[0], known),
        )
    try:
        made: RangeObserver = make(**given)
    except UsageError as error:
        field = "observer_parameters" if error.where is None else f"observer_parameters.{error.where}"
        raise UsageError(error.what, where=_at(where, field), expected=error.expected, try_=error.try_) from None
    return made


def _at(where: str | None, field: str) -> str:
    return field if where is None else f"{where}: {field}"
