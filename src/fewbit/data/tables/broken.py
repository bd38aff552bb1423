# SPDX-License-Identifier: Apache-2.0
"""The way a byte stream says that it cannot go on: the fault, on its way up to the table that reads it."""

from __future__ import annotations

from fewbit.data.tables.table import Fault


class Broken(Exception):
    """Raised by the streams below a table, caught by the table, never seen by a user."""

    def __init__(self, code: str, message: str, *, offset: int | None = None, fix: str | None = None):
        super().__init__(message)
        self.fault = Fault(code, message, offset=offset, fix=fix)
