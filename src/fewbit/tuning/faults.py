# SPDX-License-Identifier: Apache-2.0
"""Everything that is wrong with a call, said at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fewbit.errors import UsageError

T = TypeVar("T")


class Faults:
    """Tries one thing after the other, and raises what went wrong with all of them.

    >>> faults = Faults()
    >>> faults.tried(lambda: 1 + 1)
    2
    >>> faults.tell()
    """

    def __init__(self) -> None:
        self._found: list[UsageError] = []

    def tried(self, function: Callable[[], T]) -> T | None:
        """What a function returns; none where it says that the call is wrong, which is kept."""
        try:
            return function()
        except UsageError as error:
            self._found.append(error)
            return None

    def tell(self) -> None:
        """Raise what was found: the one fault, or all of them in one.

        Raises:
            UsageError: there was a fault.
        """
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            lines = [str(error).replace("\n", "\n    ") for error in self._found]
            raise UsageError(f"{len(lines)} faults:\n" + "\n".join(f"  - {line}" for line in lines))
