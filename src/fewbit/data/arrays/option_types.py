# SPDX-License-Identifier: Apache-2.0
"""The options of array files, held against what they must be before anything is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fewbit.errors import UsageError


def _is_rename(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for pair in value.items() for name in pair)


def _is_targets(value: Any) -> bool:
    names = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return names and all(isinstance(name, str) for name in value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_OPTIONS = {
    "rename": (_is_rename, "{'name of the array': 'name of the input'}"),
    "stacked": (lambda value: isinstance(value, bool), "True or False; on the command line true or false"),
    "targets": (_is_targets, "['label', 'mask']: a list of names"),
    "vocab_size": (_is_size, "a whole number above 0"),
}


def demand_types(**options: Any) -> None:
    """Refuse options of the wrong kind, all at once; one left out (`None`) is fine.

    Raises:
        UsageError: what was given, and the right form.
    """
    wrong = [name for name, value in options.items() if value is not None and not _OPTIONS[name][0](value)]
    if wrong:
        raise UsageError(
            "; ".join(f"{name}={options[name]!r} is a {type(options[name]).__name__}" for name in wrong),
            where="options of the format 'npz'",
            expected="; ".join(f"{name}={_OPTIONS[name][1]}" for name in wrong),
        )
