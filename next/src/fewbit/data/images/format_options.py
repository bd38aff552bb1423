# SPDX-License-Identifier: Apache-2.0
"""Values of format options, as users write them: flags, names of classes, a split, a task."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from fewbit.data.splits import split_of_folder
from fewbit.errors import UsageError

_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def flag_option(name: str, value: Any) -> bool | None:
    """A yes or no; `None` if it is not given."""
    if value is None or isinstance(value, bool):
        return value
    if str(value).lower() not in _FLAGS:
        raise wrong_option(name, value, "true or false")
    return _FLAGS[str(value).lower()]


def classes_option(value: Any) -> tuple[str, ...]:
    """Class names: a list, or a text with commas; none if they are not given."""
    if value is None:
        return ()
    names = tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise wrong_option("classes", value, "different names, in the order of their numbers: cat,dog")
    return tuple(unicodedata.normalize("NFC", name) for name in names)


def split_option(value: Any, splits: Iterable[str]) -> str | None:
    """The split to read; `None` for all."""
    if value in (None, "all"):
        return None
    split = split_of_folder(str(value))
    if split not in (names := list(splits)):
        raise UsageError(
            f"there is no split {str(value)!r}", code="split-unknown", param="split",
            expected=", ".join(names) or "no splits: the data has none", hint="leave out {split} to read everything",
        )  # fmt: skip
    return split


def task_option(task: Any) -> str | None:
    """The user's task by the name fewbit has for it; `None` for one of the user's own, which decides for itself."""
    from fewbit.data.tasks import find_task

    return find_task(str(task)).name if task and ".py:" not in str(task) else None


def wrong_option(name: str, value: Any, expected: str) -> UsageError:
    """The error of a format option with a wrong value."""
    return UsageError(
        f"{value!r} is not a value of the data option {name}", code="data-option-value", param="data_option",
        expected=expected, hint=f"{{data_option={name}=...}}",
    )  # fmt: skip
